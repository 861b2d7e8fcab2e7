//! The "model": a vocabulary of 256 words and a next-token function of the whole prompt.

use std::collections::HashMap;
use std::sync::LazyLock;

const HEADS: [&str; 16] =
    ["ba", "ke", "li", "mo", "nu", "ra", "so", "ti", "vo", "wa", "ze", "fé", "gö", "日", "hy", "ju"];
const TAILS: [&str; 16] =
    ["n", "r", "st", "l", "m", "x", "ck", "nd", "ra", "to", "sé", "ph", "本", "ng", "w", "🙂"];

/// Ids below this are words of the vocabulary; all others stand for pieces of prompts.
pub(crate) const WORDS: u32 = 256;

static IDS: LazyLock<HashMap<String, u32>> = LazyLock::new(|| (0..WORDS).map(|id| (piece(id), id)).collect());

/// The text of a token.
pub(crate) fn piece(id: u32) -> String {
    let part = |of: &[&'static str; 16], at: u32| of.get(at as usize % 16).copied().unwrap_or_default();
    if id < WORDS { format!(" {}{}", part(&HEADS, id / 16), part(&TAILS, id)) } else { format!(" <{id}>") }
}

/// The id of a piece of text.
pub(crate) fn id_of(piece: &str) -> u32 {
    IDS.get(piece).copied().unwrap_or_else(|| {
        let hash = piece
            .bytes()
            .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        WORDS + hash % (0x7fff_ffff - WORDS)
    })
}

/// What a prompt's KV cache holds, as one number: it depends on every token and on their order.
pub(crate) fn digest(ids: &[u32]) -> u64 {
    let hash = ids.iter().fold(0xcbf2_9ce4_8422_2325_u64 ^ ids.len() as u64, |hash, id| {
        (hash ^ u64::from(*id)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    mix(hash)
}

/// The digest of a text that goes on after another one.
pub(crate) fn digest_after(before: u64, ids: &[u32]) -> u64 {
    mix(before ^ digest(ids))
}

/// The `position`th token that follows the prompt with this digest, for one of the n choices.
pub(crate) fn next(digest: u64, choice: usize, position: usize) -> u32 {
    let place = mix(choice as u64 ^ 0x5eed).wrapping_add(position as u64);
    (mix(digest ^ mix(place)) % u64::from(WORDS)) as u32
}

/// A log-probability that looks like one and depends on the token alone.
pub(crate) fn logprob(id: u32, rank: u32) -> f64 {
    -0.25 - f64::from(id % 64) / 64.0 - f64::from(rank)
}

fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_has_its_own_id() {
        assert_eq!(IDS.len(), WORDS as usize);
        assert!((0..WORDS).all(|id| id_of(&piece(id)) == id));
    }

    #[test]
    fn the_digest_depends_on_every_token_and_their_order() {
        let base = digest(&[1, 2, 3, 4]);
        assert_ne!(base, digest(&[1, 2, 4, 3]));
        assert_ne!(base, digest(&[1, 2, 3]));
        assert_ne!(base, digest(&[1, 2, 3, 4, 0]));
        assert_ne!(base, digest(&[9, 2, 3, 4]));
        assert_eq!(base, digest(&[1, 2, 3, 4]));
    }

    #[test]
    fn choices_differ() {
        let line = |choice| (0..8).map(|at| next(7, choice, at)).collect::<Vec<_>>();
        assert_ne!(line(0), line(1));
        assert_eq!(line(1), line(1));
    }
}

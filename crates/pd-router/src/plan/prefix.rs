//! How a prompt begins, as a chain of block hashes.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of prompt text in one of the first blocks: about 64 tokens of English, 40 token ids.
const BLOCK_BYTES: usize = 256;

/// Bytes in a block behind the first [`FINE_BYTES`]: coarser there, within 6 % of what is before it.
const LONG_BLOCK_BYTES: usize = 1024;

/// How much of a prompt is cut into small blocks.
const FINE_BYTES: usize = 16 * 1024;

/// One block of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// A hash of all the text up to its end, and of what else makes caches differ.
    pub hash: u64,
    /// How many bytes of the prompt are before its end.
    pub end: usize,
}

/// A prompt's beginning, block by block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prefix {
    blocks: Vec<Block>,
    bytes: usize,
}

impl Prefix {
    /// The chain of these parts of a request. What is in `seeds` (the model, the salt) changes every hash;
    /// the blocks of `texts` follow each other, and what is left over behind the last is in none.
    #[must_use]
    pub fn of(seeds: &[&[u8]], texts: &[&[u8]]) -> Self {
        let mut hash = seeds.iter().fold(0, |hash, seed| xxh3_64_with_seed(seed, hash));
        let bytes: usize = texts.iter().map(|text| text.len()).sum();
        let mut blocks =
            Vec::with_capacity(bytes.min(FINE_BYTES) / BLOCK_BYTES + bytes / LONG_BLOCK_BYTES + 1);
        let mut end = 0;
        for (index, text) in texts.iter().enumerate() {
            let last = index + 1 == texts.len();
            let mut rest = *text;
            while !rest.is_empty() {
                let size = if end < FINE_BYTES { BLOCK_BYTES } else { LONG_BLOCK_BYTES };
                let Some((block, behind)) = rest.split_at_checked(size).or((!last).then_some((rest, &[])))
                else {
                    break;
                };
                hash = xxh3_64_with_seed(block, hash);
                end += block.len();
                blocks.push(Block { hash, end });
                rest = behind;
            }
        }
        Self { blocks, bytes }
    }

    /// The blocks, first one first.
    #[must_use]
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// How many bytes the prompt has, those in no block included.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_prompts_have_few_blocks_and_all_their_text_counts() {
        let text = vec![b'7'; 200 * 1024];
        let whole = Prefix::of(&[b"m"], &[&text]);
        assert_eq!(whole.blocks().len(), 64 + 184);
        let ends: Vec<usize> = whole.blocks().iter().map(|block| block.end).collect();
        assert!(ends.is_sorted() && ends.last() == Some(&text.len()));
        let mut changed = text.clone();
        changed[20_000] = b'8';
        let changed = Prefix::of(&[b"m"], &[&changed]);
        let equal = whole.blocks().iter().zip(changed.blocks()).take_while(|(a, b)| a == b).count();
        assert_eq!(equal, 64 + 3, "16,384 + 3 × 1,024 bytes are before the change");
    }

    #[test]
    fn a_part_before_another_is_hashed_to_its_end() {
        let tools = |tail: &'static [u8]| Prefix::of(&[], &[tail, &[b'x'; 300]]);
        assert_eq!(tools(b"ab").blocks().len(), 2);
        assert_ne!(tools(b"ab").blocks(), tools(b"ac").blocks());
        assert_eq!(Prefix::of(&[], &[b"short"]).blocks(), []);
    }
}

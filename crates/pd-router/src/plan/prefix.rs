//! How a prompt begins, as a chain of block hashes, and what is remembered of who has which.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of prompt text in one block; about 64 tokens of English, 40 token ids.
pub const BLOCK_BYTES: usize = 256;

/// A prompt's beginning: one hash a block, each of all the text up to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prefix {
    blocks: Vec<u64>,
}

impl Prefix {
    /// The chain of these parts of a request. What is in `seeds` (the model, the salt) changes every hash;
    /// the whole blocks of `texts` follow each other.
    #[must_use]
    pub fn of(seeds: &[&[u8]], texts: &[&[u8]]) -> Self {
        let mut state = seeds.iter().fold(0, |state, seed| xxh3_64_with_seed(seed, state));
        let mut blocks = Vec::with_capacity(texts.iter().map(|text| text.len() / BLOCK_BYTES + 1).sum());
        for (index, text) in texts.iter().enumerate() {
            let last = index + 1 == texts.len();
            for block in text.chunks(BLOCK_BYTES) {
                if block.len() == BLOCK_BYTES || !last {
                    state = xxh3_64_with_seed(block, state);
                    blocks.push(state);
                }
            }
        }
        Self { blocks }
    }

    /// The hashes, first block first.
    #[must_use]
    pub fn blocks(&self) -> &[u64] {
        &self.blocks
    }
}

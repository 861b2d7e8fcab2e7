//! The first and the last bytes of a body, and the members found there: a mock engine must not cost more for
//! a prompt of 4 MiB than reading it.

use memchr::memmem;

/// How much of each end is kept. Everything but the prompt fits.
const EDGE_BYTES: usize = 4096;

/// How far the tail reaches back into the head, so that no member is cut in two.
const OVERLAP_BYTES: usize = 256;

/// Longer than any value that is asked for.
const VALUE_BYTES: usize = 32;

/// The two ends of a body that is read and dropped as it comes.
#[derive(Debug, Default)]
pub struct Edges {
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl Edges {
    /// Takes the next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        let room = EDGE_BYTES.saturating_sub(self.head.len());
        let (head, rest) = bytes.split_at(room.min(bytes.len()));
        self.head.extend_from_slice(head);
        if rest.is_empty() {
            return;
        }
        if self.tail.is_empty() {
            self.tail.extend_from_slice(end(&self.head, OVERLAP_BYTES));
        }
        let rest = end(rest, EDGE_BYTES);
        let surplus = (self.tail.len() + rest.len()).saturating_sub(2 * EDGE_BYTES);
        self.tail.drain(..surplus.min(self.tail.len()));
        self.tail.extend_from_slice(rest);
    }

    /// What follows `"name":` where the name is first found, its value at the front.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&[u8]> {
        self.find(|bytes| value(bytes, name))
    }

    /// Whether a member is there with the value `true`.
    #[must_use]
    pub fn is_true(&self, name: &str) -> bool {
        self.value(name).is_some_and(|value| value.starts_with(b"true"))
    }

    /// A member's whole number.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u64> {
        digits(self.value(name)?)
    }

    /// The number that directly follows `mark`, wherever that is.
    #[must_use]
    pub fn number_after(&self, mark: &str) -> Option<u64> {
        digits(self.find(|bytes| after(bytes, mark))?)
    }

    /// What is found in the head, else in the tail.
    fn find<'a>(&'a self, find: impl Fn(&'a [u8]) -> Option<&'a [u8]>) -> Option<&'a [u8]> {
        // A value at the very end of the head may be cut; the tail has it whole.
        let uncut = |value: &&[u8]| self.tail.is_empty() || value.len() >= VALUE_BYTES;
        find(&self.head).filter(uncut).or_else(|| find(&self.tail))
    }
}

fn end(bytes: &[u8], most: usize) -> &[u8] {
    bytes.get(bytes.len().saturating_sub(most)..).unwrap_or_default()
}

fn after<'a>(bytes: &'a [u8], mark: &str) -> Option<&'a [u8]> {
    bytes.get(memmem::find(bytes, mark.as_bytes())? + mark.len()..)
}

/// What follows `"name":` in `bytes`, without the space before it.
#[must_use]
pub fn value<'a>(bytes: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut rest = bytes;
    loop {
        let at = memmem::find(rest, name.as_bytes())?;
        let (before, after) = (rest.get(..at)?, rest.get(at + name.len()..)?);
        if before.ends_with(b"\"")
            && let Some(value) = after.strip_prefix(b"\"")
            && let Some(value) = value.trim_ascii_start().strip_prefix(b":")
        {
            return Some(value.trim_ascii_start());
        }
        rest = after;
    }
}

/// The number at the front.
#[must_use]
pub fn digits(bytes: &[u8]) -> Option<u64> {
    let length = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(bytes.get(..length)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::Edges;

    fn pushed(text: &str, step: usize) -> Edges {
        let mut edges = Edges::default();
        text.as_bytes().chunks(step).for_each(|chunk| edges.push(chunk));
        edges
    }

    #[test]
    fn members_are_found_at_both_ends_for_any_chunking() {
        let text = format!(
            r#"{{"model": "m","prompt":"bench-12345678 {}","max_tokens":16, "stream" : true}}"#,
            "a ".repeat(50_000)
        );
        for step in [1, 7, 4096, 70_000, 200_000] {
            let edges = pushed(&text, step);
            assert_eq!(edges.number("max_tokens"), Some(16), "{step}");
            assert!(edges.is_true("stream"), "{step}");
            assert_eq!(edges.number_after("bench-"), Some(12_345_678), "{step}");
            assert_eq!(edges.value("min_tokens"), None);
        }
    }

    #[test]
    fn a_member_over_the_end_of_the_head_is_found() {
        for padding in 4050..4110 {
            let text = format!(r#"{{"prompt":"{}","max_tokens":7}}"#, "x".repeat(padding));
            assert_eq!(pushed(&text, 1000).number("max_tokens"), Some(7), "{padding}");
        }
    }

    #[test]
    fn a_longer_name_and_a_value_are_not_the_member() {
        let edges = pushed(r#"{"max_tokens_x":3,"a":"max_tokens","max_tokens":4}"#, 99);
        assert_eq!(edges.number("max_tokens"), Some(4));
    }
}

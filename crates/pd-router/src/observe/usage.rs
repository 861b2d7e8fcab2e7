//! The token counts of an answer's `usage`, found in its bytes in passing, wherever they are cut.

use std::sync::LazyLock;

use memchr::memmem::Finder;

/// What opens it. Within a JSON string the quotes would be escaped, so text never looks like it.
const NAME: &[u8] = b"\"usage\":";

/// As much of the object as is kept; the counts of every API stand within its first 250 bytes.
const HELD_MAX: usize = 320;

static FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(NAME));

/// The names of the counts: of the prompt and of what was generated, OpenAI's first, then those of the
/// Responses and Messages APIs.
static COUNTS: LazyLock<[[Finder<'static>; 2]; 2]> = LazyLock::new(|| {
    [["\"prompt_tokens\":", "\"input_tokens\":"], ["\"completion_tokens\":", "\"output_tokens\":"]]
        .map(|names| names.map(Finder::new))
});

/// How many tokens an answer says that it took and made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt: Option<u64>,
    /// Tokens generated.
    pub generated: Option<u64>,
}

impl Usage {
    /// The counts of the last `usage` of a whole answer.
    #[must_use]
    pub fn of(answer: &[u8]) -> Self {
        let mut scanner = UsageScanner::default();
        scanner.feed(answer);
        scanner.usage()
    }

    fn or(self, other: Self) -> Self {
        Self { prompt: self.prompt.or(other.prompt), generated: self.generated.or(other.generated) }
    }

    /// Reads the object that this text begins with, as far as it goes.
    fn parse(text: &[u8]) -> Self {
        let mut depth = 0_u32;
        let end = text.iter().position(|byte| {
            match byte {
                b'{' => depth += 1,
                b'}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            *byte == b'}' && depth == 0
        });
        // Its end with it, which ends the last number.
        let object = text.get(..end.map_or(text.len(), |end| end + 1)).unwrap_or_default();
        let count = |names: &[Finder<'static>; 2]| names.iter().find_map(|name| number(object, name));
        let [prompt, generated] = &*COUNTS;
        Self { prompt: count(prompt), generated: count(generated) }
    }
}

fn number(object: &[u8], name: &Finder<'_>) -> Option<u64> {
    let at = name.find(object)? + name.needle().len();
    let rest = object.get(at..)?.trim_ascii_start();
    let end = rest.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(rest.get(..end)?).ok()?.parse().ok()
}

/// Looks for `usage` in an answer's bytes; the last one counts, an earlier one for what the last leaves out.
#[derive(Debug, Default)]
pub struct UsageScanner {
    held: Vec<u8>,
    filling: bool,
    first: Option<Usage>,
    tail: [u8; NAME.len() - 1],
    tail_len: usize,
}

impl UsageScanner {
    /// Takes the next bytes; whether a `usage` that is not null began in them.
    pub fn feed(&mut self, bytes: &[u8]) -> bool {
        if self.filling {
            self.fill(bytes);
        }
        let mut found = self.across_the_cut(bytes).is_some_and(|value| self.begin(value));
        let mut rest = bytes;
        while let Some(at) = FINDER.find(rest) {
            rest = rest.get(at + NAME.len()..).unwrap_or_default();
            found |= self.begin(rest);
        }
        self.keep_tail(bytes);
        found
    }

    /// What was found so far.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage::parse(&self.held).or(self.first.unwrap_or_default())
    }

    /// The bytes behind a name that began in the bytes before.
    fn across_the_cut<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let tail = self.tail.get(..self.tail_len)?;
        (1..NAME.len()).find_map(|cut| {
            let (before, after) = NAME.split_at(cut);
            if tail.ends_with(before) { bytes.strip_prefix(after) } else { None }
        })
    }

    fn begin(&mut self, value: &[u8]) -> bool {
        if value.trim_ascii_start().first().is_some_and(|byte| *byte != b'{') {
            return false;
        }
        if self.first.is_none() && !self.held.is_empty() {
            self.first = Some(Usage::parse(&self.held));
        }
        self.held.clear();
        self.filling = true;
        self.fill(value);
        true
    }

    fn fill(&mut self, bytes: &[u8]) {
        let room = HELD_MAX.saturating_sub(self.held.len());
        self.held.extend_from_slice(bytes.get(..room.min(bytes.len())).unwrap_or_default());
        self.filling = self.held.len() < HELD_MAX;
    }

    fn keep_tail(&mut self, bytes: &[u8]) {
        // Only a name that may have begun is worth keeping: an event ends with a line end.
        if bytes.last().is_none_or(|byte| *byte == b'\n' || *byte == b'}') {
            self.tail_len = 0;
            return;
        }
        let mut joined = [0; 2 * NAME.len()];
        let kept = self.tail.iter().take(self.tail_len);
        let fresh = bytes.iter().skip(bytes.len().saturating_sub(self.tail.len()));
        let mut len = 0;
        for (slot, byte) in joined.iter_mut().zip(kept.chain(fresh)) {
            *slot = *byte;
            len += 1;
        }
        self.tail_len = len.min(self.tail.len());
        for (slot, byte) in self.tail.iter_mut().zip(joined.iter().take(len).skip(len - self.tail_len)) {
            *slot = *byte;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(prompt: u64, generated: u64) -> Usage {
        Usage { prompt: Some(prompt), generated: Some(generated) }
    }

    #[test]
    fn the_counts_of_every_api_are_found() {
        for (text, expected) in [
            (r#"{"usage":{"prompt_tokens":7,"total_tokens":9,"completion_tokens":2}}"#, usage(7, 2)),
            (r#"{"usage": {"input_tokens": 7, "output_tokens": 2}}"#, usage(7, 2)),
            (
                r#"{"usage":{"input_tokens":7,"input_tokens_details":{"cached_tokens":4},"output_tokens":2}}"#,
                usage(7, 2),
            ),
            (r#"{"usage":{"input_tokens":7,"output_tokens":0}} {"usage":{"output_tokens":5}}"#, usage(7, 5)),
            (r#"{"usage":{"prompt_tokens":7,"total_tokens":7}}"#, Usage { prompt: Some(7), generated: None }),
            (r#"{"usage":null,"x":{"prompt_tokens":7}}"#, Usage::default()),
            (r#"{"usage":{"x":{}},"prompt_tokens":7,"output_tokens":1}"#, Usage::default()),
            (r#"{"text":"\"usage\":{\"prompt_tokens\":7}"}"#, Usage::default()),
            (r#"{"usage":{"prompt_tokens":99999999999999999999}}"#, Usage::default()),
        ] {
            assert_eq!(Usage::of(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn cuts_change_nothing() {
        let text = br#"data: {"a":1,"usage":{"prompt_tokens":12,"total_tokens":15,"completion_tokens":3}}"#;
        for size in 1..text.len() {
            let mut scanner = UsageScanner::default();
            let found = text.chunks(size).fold(false, |found, part| found | scanner.feed(part));
            assert!(found, "in parts of {size}");
            assert_eq!(scanner.usage(), usage(12, 3), "in parts of {size}");
        }
    }
}

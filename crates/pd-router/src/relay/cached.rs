//! `--usage-from-prefill`: puts how many prompt tokens prefill found in its cache in the place of decode's
//! count, which takes the whole handoff for a cache hit. An edit of those bytes only, in passing; what is held
//! back is an unfinished `usage`.

use bytes::{Bytes, BytesMut};
use memchr::memmem;

use crate::request::scan::{self, Names, Object};

/// What opens it. Within a JSON string the quotes would be escaped, so text never looks like it.
const NAME: &[u8] = b"\"usage\":";

/// A `usage` is shorter than 1 KiB; what goes on beyond this is left as it is.
const HELD_MAX: usize = 4096;

const CACHED: &str = "cached_tokens";
const PROMPT: &str = "prompt_tokens";

/// Where the count stands: of completions, chat and generate, and of responses.
const DETAILS: [&str; 2] = ["prompt_tokens_details", "input_tokens_details"];

/// The count of a whole prefill answer, where the engine gives one (`--enable-prompt-tokens-details`).
#[must_use]
pub fn of(answer: &[u8]) -> Option<u64> {
    let open = value_at(answer, memmem::rfind(answer, NAME)?);
    let usage = scan::object_at(answer, open, Names::once(&DETAILS)).ok()?;
    let details = DETAILS.iter().find_map(|name| usage.get(name))?;
    let details = scan::object_at(answer, details.value.start, Names::once(&[CACHED])).ok()?;
    std::str::from_utf8(answer.get(details.get(CACHED)?.value.clone())?).ok()?.parse().ok()
}

/// Puts one count in its place, wherever the answer is cut.
#[derive(Debug)]
pub struct Cached {
    tokens: u64,
    held: BytesMut,
}

impl Cached {
    /// Puts this count.
    #[must_use]
    pub fn new(tokens: u64) -> Self {
        Self { tokens, held: BytesMut::new() }
    }

    /// What goes on of what came; all of it once the `last` is there.
    pub fn pass(&mut self, data: Bytes, last: bool) -> Bytes {
        let concerns = memmem::find(&data, NAME).is_some() || (!last && begun(&data) > 0);
        if self.held.is_empty() && !concerns {
            return data;
        }
        self.held.extend_from_slice(&data);
        let text = self.held.split().freeze();
        let mut out = BytesMut::with_capacity(text.len() + 64);
        let mut rest = &*text;
        while !rest.is_empty() {
            let (done, kept) = self.step(rest, last, &mut out);
            rest = rest.get(done..).unwrap_or_default();
            if kept {
                self.held.extend_from_slice(rest);
                break;
            }
        }
        out.freeze()
    }

    /// Passes a part of `rest` on, and says how long it was and whether what is behind it is held back.
    fn step(&self, rest: &[u8], last: bool, out: &mut BytesMut) -> (usize, bool) {
        let Some(at) = memmem::find(rest, NAME) else {
            let open = rest.len() - if last { 0 } else { begun(rest) };
            out.extend_from_slice(rest.get(..open).unwrap_or_default());
            return (open, true);
        };
        let open = value_at(rest, at);
        match scan::object_at(rest, open, Names::once(&[DETAILS[0], DETAILS[1], PROMPT])) {
            Ok(usage) => {
                out.extend_from_slice(rest.get(..open).unwrap_or_default());
                self.edit(rest, open, &usage, out);
                (usage.close + 1, false)
            }
            Err(_) if !last && rest.len() - at < HELD_MAX && may_go_on(rest.get(open)) => {
                out.extend_from_slice(rest.get(..at).unwrap_or_default());
                (at, true)
            }
            // `null`, or nothing that can be read.
            Err(_) => {
                out.extend_from_slice(rest.get(..open).unwrap_or_default());
                (open, false)
            }
        }
    }

    /// Writes a `usage` that begins at `open`, with the count.
    fn edit(&self, text: &[u8], open: usize, usage: &Object, out: &mut BytesMut) {
        let cached = format!("\"{CACHED}\":{}", self.tokens);
        let (range, new) = match DETAILS.iter().find_map(|name| usage.get(name)) {
            Some(details) => match self.place(text, details.value.start) {
                Some(place) => place,
                None => (details.value.clone(), format!("{{{cached}}}")),
            },
            // Engines leave out what is null in a stream's last event.
            None if usage.get(PROMPT).is_some() => {
                (usage.close..usage.close, format!(",\"{}\":{{{cached}}}", DETAILS[0]))
            }
            None => (open..open, String::new()),
        };
        out.extend_from_slice(text.get(open..range.start).unwrap_or_default());
        out.extend_from_slice(new.as_bytes());
        out.extend_from_slice(text.get(range.end..=usage.close).unwrap_or_default());
    }

    /// Where the count goes in an object of details, and what is written there.
    fn place(&self, text: &[u8], open: usize) -> Option<(std::ops::Range<usize>, String)> {
        let details = scan::object_at(text, open, Names::once(&[CACHED])).ok()?;
        Some(match details.get(CACHED) {
            Some(cached) => (cached.value.clone(), self.tokens.to_string()),
            None => {
                let comma = if details.count == 0 { "" } else { "," };
                (details.close..details.close, format!("{comma}\"{CACHED}\":{}", self.tokens))
            }
        })
    }
}

/// Where the value begins of a name at `at`.
fn value_at(text: &[u8], at: usize) -> usize {
    let value = text.get(at + NAME.len()..).unwrap_or_default();
    at + NAME.len() + (value.len() - value.trim_ascii_start().len())
}

/// Whether an object may begin with this byte, or with what is still to come.
fn may_go_on(first: Option<&u8>) -> bool {
    first.is_none_or(|byte| *byte == b'{')
}

/// How much of the name the text ends with.
fn begun(text: &[u8]) -> usize {
    let ends = |len: &usize| NAME.get(..*len).is_some_and(|start| text.ends_with(start));
    (1..NAME.len()).rev().find(ends).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_count_changes_wherever_the_answer_is_cut() {
        for (answer, expected) in [
            (
                r#"{"id":1,"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens": 9,"x":1},"z":1e400}}"#,
                r#"{"id":1,"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens": 4,"x":1},"z":1e400}}"#,
            ),
            (
                r#"{"usage": {"prompt_tokens":9,"prompt_tokens_details":null}, "b": 1}"#,
                r#"{"usage": {"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}, "b": 1}"#,
            ),
            (
                r#"{"usage":{"prompt_tokens":9,"prompt_tokens_details":{}}}"#,
                r#"{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}}"#,
            ),
            (
                r#"{"response":{"usage":{"input_tokens":9,"input_tokens_details":{"a":1}}}}"#,
                r#"{"response":{"usage":{"input_tokens":9,"input_tokens_details":{"a":1,"cached_tokens":4}}}}"#,
            ),
            (
                "data: {\"usage\":null}\n\ndata: {\"usage\":{\"prompt_tokens\":9}}\n\ndata: [DONE]\n\n",
                "data: {\"usage\":null}\n\ndata: {\"usage\":{\"prompt_tokens\":9,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\ndata: [DONE]\n\n",
            ),
        ] {
            for size in 1..=answer.len() {
                assert_eq!(passed(answer, size), expected, "in parts of {size}");
            }
        }
    }

    fn passed(answer: &str, size: usize) -> String {
        let mut cached = Cached::new(4);
        let parts: Vec<_> = answer.as_bytes().chunks(size).collect();
        let last = parts.len() - 1;
        let parts = parts.into_iter().enumerate();
        let whole = parts.map(|(at, part)| cached.pass(Bytes::copy_from_slice(part), at == last));
        String::from_utf8(whole.flat_map(|part| part.to_vec()).collect()).unwrap()
    }

    #[test]
    fn what_is_no_usage_stays_as_it_came() {
        for answer in [
            r#"{"text":"\"usage\":{\"prompt_tokens\":7}"}"#,
            r#"{"usage":{"input_tokens":7,"output_tokens":1}}"#,
            r#"{"usage":{"prompt_tokens":7"#,
            r#"{"usage":"#,
            r#"{"usage":7,"us"#,
            r#""#,
        ] {
            for size in 1..=answer.len() {
                assert_eq!(passed(answer, size), answer, "in parts of {size}");
            }
        }
        let endless = format!(r#"{{"usage":{{"prompt_tokens":[{}"#, "1,".repeat(10_000));
        assert_eq!(passed(&endless, 1000), endless);
    }

    #[test]
    fn nothing_but_a_usage_is_held_back() {
        let mut cached = Cached::new(4);
        for event in ["data: {\"a\":1}\n\n", "data: {\"usage\":null}\n\n", "data: {\"usage\":{}}\n\n"] {
            assert_eq!(cached.pass(Bytes::from(event), false), event);
        }
        assert!(cached.pass(Bytes::from_static(b"\"usage\":{"), false).is_empty());
    }

    #[test]
    fn prefills_count_is_found_where_there_is_one() {
        let answer = br#"{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":8}}}"#;
        assert_eq!(of(answer), Some(8));
        assert_eq!(of(br#"{"usage":{"prompt_tokens":9,"prompt_tokens_details":null}}"#), None);
        assert_eq!(of(br#"{"usage":{"prompt_tokens":9}}"#), None);
        assert_eq!(of(b"{}"), None);
    }
}

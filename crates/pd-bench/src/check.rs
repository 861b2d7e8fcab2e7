//! Whether an answer is the right one: status, kind, the number and the order of its events, `[DONE]`, and
//! the text of a whole answer. Nothing that fails here counts as served.

use bytes::Bytes;
use memchr::memmem;
use serde_json::Value;
use thiserror::Error;

use crate::api::{Api, Ask, text};
use crate::edges::digits;

/// What was wrong with an answer.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Wrong {
    /// Not 200.
    #[error("status {0}: {1}")]
    Status(u16, String),
    /// A stream was asked for and none came, or the other way round.
    #[error("content-type {0:?}")]
    Kind(String),
    /// An event that is not the next one.
    #[error("event {want} was to come and is not it: {got:?}")]
    Event {
        /// Its place.
        want: u64,
        /// The beginning of what came.
        got: String,
    },
    /// Too few events.
    #[error("{got} events of {want}")]
    Few {
        /// What came.
        got: u64,
        /// What was asked for.
        want: u64,
    },
    /// The stream ended without `[DONE]`.
    #[error("no [DONE]")]
    NotDone,
    /// The whole answer is not the right one.
    #[error("not the right answer: {0:?}")]
    Text(String),
    /// The connection could not be opened, or broke.
    #[error("{0}")]
    Connection(String),
    /// Nothing came in time.
    #[error("no end within {0} s")]
    Slow(u64),
    /// The generator itself could not send it.
    #[error("not sent: {0} requests are in flight already")]
    NotSent(usize),
}

impl Wrong {
    /// A few words of a fixed set, to count by.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Status(..) => "status",
            Self::Kind(_) => "content type",
            Self::Event { .. } => "wrong event",
            Self::Few { .. } => "events missing",
            Self::NotDone => "no [DONE]",
            Self::Text(_) => "wrong answer",
            Self::Connection(_) => "connection",
            Self::Slow(_) => "too slow",
            Self::NotSent(_) => "not sent",
        }
    }
}

/// Looks at one answer as it comes.
#[derive(Debug)]
pub struct Checker {
    api: Api,
    stream: bool,
    want: u64,
    got: u64,
    done: bool,
    held: Vec<u8>,
}

impl Checker {
    /// For the answer to a request.
    #[must_use]
    pub const fn new(ask: &Ask) -> Self {
        Self { api: ask.api, stream: ask.stream, want: ask.tokens, got: 0, done: false, held: Vec::new() }
    }

    /// Looks at the head.
    ///
    /// # Errors
    /// A status other than 200 (without its body), or the wrong kind of answer.
    pub fn head(&self, status: u16, kind: Option<&str>) -> Result<(), Wrong> {
        if status != 200 {
            return Err(Wrong::Status(status, String::new()));
        }
        let kind = kind.unwrap_or_default();
        let right = if self.stream { "text/event-stream" } else { "application/json" };
        if kind.starts_with(right) { Ok(()) } else { Err(Wrong::Kind(kind.to_owned())) }
    }

    /// Takes the next bytes; how many events with content they completed.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn push(&mut self, bytes: &Bytes) -> Result<u64, Wrong> {
        if !self.stream {
            self.held.extend_from_slice(bytes);
            return Ok(0);
        }
        let before = self.got;
        if self.held.is_empty() {
            let rest = self.events(bytes)?;
            self.held.extend_from_slice(rest);
        } else {
            let mut all = std::mem::take(&mut self.held);
            all.extend_from_slice(bytes);
            let rest = self.events(&all)?.len();
            all.drain(..all.len().saturating_sub(rest));
            self.held = all;
        }
        Ok(self.got - before)
    }

    /// Takes whole events off the front and gives back what is left.
    fn events<'a>(&mut self, mut bytes: &'a [u8]) -> Result<&'a [u8], Wrong> {
        while let Some(end) = memmem::find(bytes, b"\n\n") {
            let (event, rest) = bytes.split_at(end);
            self.event(event)?;
            bytes = rest.get(2..).unwrap_or_default();
        }
        Ok(bytes)
    }

    fn event(&mut self, event: &[u8]) -> Result<(), Wrong> {
        let wrong = |want| Wrong::Event { want, got: beginning(event) };
        let data = event.strip_prefix(b"data: ").ok_or_else(|| wrong(self.got))?;
        if data == b"[DONE]" && !self.done && self.got == self.want {
            self.done = true;
            return Ok(());
        }
        let mark = self.api.event_mark().as_bytes();
        let place = memmem::find(data, mark).and_then(|at| digits(data.get(at + mark.len()..)?));
        if self.done || place != Some(self.got) || self.got == self.want {
            return Err(wrong(self.got));
        }
        self.got += 1;
        Ok(())
    }

    /// At the end of the body.
    ///
    /// # Errors
    /// What is missing, or wrong in a whole answer.
    pub fn end(self) -> Result<(), Wrong> {
        if !self.stream {
            return self.whole();
        }
        if self.got < self.want {
            return Err(Wrong::Few { got: self.got, want: self.want });
        }
        if !self.done {
            return Err(Wrong::NotDone);
        }
        if self.held.is_empty() {
            Ok(())
        } else {
            Err(Wrong::Event { want: self.want, got: beginning(&self.held) })
        }
    }

    fn whole(&self) -> Result<(), Wrong> {
        let wrong = || Wrong::Text(beginning(&self.held));
        let answer: Value = serde_json::from_slice(&self.held).map_err(|_| wrong())?;
        let choice = answer.pointer("/choices/0").ok_or_else(wrong)?;
        let right = match self.api {
            Api::Completions => choice.get("text").and_then(Value::as_str) == Some(&text(self.want)),
            Api::Chat => choice.pointer("/message/content").and_then(Value::as_str) == Some(&text(self.want)),
            Api::Generate => choice
                .get("token_ids")
                .and_then(Value::as_array)
                .is_some_and(|ids| ids.iter().map(Value::as_u64).eq((0..self.want).map(Some))),
        };
        if right { Ok(()) } else { Err(wrong()) }
    }
}

/// The first bytes of something, as text.
#[must_use]
pub fn beginning(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.get(..bytes.len().min(160)).unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::{Checker, Wrong};
    use crate::api::{Api, Ask, Prompt};

    const TOKENS: u64 = 12;

    fn ask(api: Api, stream: bool) -> Ask {
        Ask { api, prompt: Prompt::Text(20), tokens: TOKENS, stream, interval_ms: 0 }
    }

    fn stream(api: Api, places: impl IntoIterator<Item = u64>, end: &str) -> String {
        let events = places.into_iter().map(|place| format!("data: {}\n\n", api.event(place)));
        events.collect::<String>() + end
    }

    fn check(ask: &Ask, text: &str, step: usize) -> Result<u64, Wrong> {
        let mut checker = Checker::new(ask);
        let mut events = 0;
        for chunk in text.as_bytes().chunks(step) {
            events += checker.push(&Bytes::copy_from_slice(chunk))?;
        }
        checker.end().map(|()| events)
    }

    const DONE: &str = "data: [DONE]\n\n";

    #[test]
    fn a_right_stream_passes_for_any_chunking() {
        for api in Api::ALL {
            let text = stream(api, 0..TOKENS, DONE);
            for step in [1, 10, 100, 100_000] {
                assert_eq!(check(&ask(api, true), &text, step), Ok(TOKENS));
            }
        }
    }

    #[test]
    fn a_wrong_stream_does_not() {
        let api = Api::Completions;
        let checked = |text: &str| check(&ask(api, true), text, 64).map_err(|wrong| wrong.label());
        assert_eq!(checked(&stream(api, 0..TOKENS, "")), Err("no [DONE]"));
        assert_eq!(checked(&stream(api, 0..TOKENS - 1, "")), Err("events missing"));
        assert_eq!(checked(&stream(api, 0..TOKENS - 1, DONE)), Err("wrong event"));
        assert_eq!(checked(&stream(api, 0..=TOKENS, DONE)), Err("wrong event"));
        assert_eq!(checked(&stream(api, [0, 2, 1], DONE)), Err("wrong event"));
        assert_eq!(checked(&stream(api, [0, 0], DONE)), Err("wrong event"));
        assert_eq!(checked(&(stream(api, 0..TOKENS, DONE) + DONE)), Err("wrong event"));
        assert_eq!(checked(&(stream(api, 0..TOKENS, DONE) + "data: {")), Err("wrong event"));
        assert_eq!(checked("data: {\"error\":{\"message\":\"no\"}}\n\n"), Err("wrong event"));
        assert_eq!(checked(""), Err("events missing"));
    }

    #[test]
    fn a_whole_answer_is_compared_to_the_last_token() {
        for api in Api::ALL {
            let checked = |text: &str| check(&ask(api, false), text, 64).map_err(|wrong| wrong.label());
            assert_eq!(checked(&api.answer(TOKENS, "")), Ok(0));
            assert_eq!(checked(&api.answer(TOKENS - 1, "")), Err("wrong answer"));
            assert_eq!(checked(""), Err("wrong answer"));
            assert_eq!(checked("{}"), Err("wrong answer"));
        }
    }

    #[test]
    fn the_head_counts_too() {
        let (whole, streamed) = (Checker::new(&ask(Api::Chat, false)), Checker::new(&ask(Api::Chat, true)));
        assert_eq!(whole.head(200, Some("application/json")), Ok(()));
        assert_eq!(streamed.head(200, Some("text/event-stream; charset=utf-8")), Ok(()));
        assert_eq!(streamed.head(200, Some("application/json")).unwrap_err().label(), "content type");
        assert_eq!(whole.head(500, Some("application/json")).unwrap_err().label(), "status");
        assert_eq!(whole.head(200, None).unwrap_err().label(), "content type");
    }
}

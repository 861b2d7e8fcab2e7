//! The three APIs of the works: what a client asks, what the mock engines answer, and by which marks an
//! answer is checked.
//!
//! Every request carries a number in its prompt. The prefill engine puts it into its handoff, and the decode
//! engine refuses a handoff of another number; every event carries its place in the stream. So a router that
//! mixes up, loses or doubles anything does not pass for a fast one.

use std::fmt::Write;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::body::Chain;
use crate::edges::Edges;

/// Numbers of requests have eight digits, so that a body's length does not depend on them.
pub const NUMBER_FIRST: u64 = 10_000_000;
/// The last number; the next is the first again.
pub const NUMBER_LAST: u64 = 99_999_999;

/// The mark before the number in a text prompt.
const TEXT_MARK: &str = "bench-";

/// An inference API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Api {
    /// `/v1/completions`
    Completions,
    /// `/v1/chat/completions`
    Chat,
    /// `/inference/v1/generate`
    Generate,
}

/// What the prompt of a request is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prompt {
    /// A text of about this many bytes.
    Text(usize),
    /// This many token ids.
    Ids(usize),
}

/// One kind of request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// Which API.
    pub api: Api,
    /// The prompt.
    pub prompt: Prompt,
    /// Tokens of the answer, and events of a stream.
    pub tokens: u64,
    /// Whether the answer is streamed.
    pub stream: bool,
    /// Milliseconds between two events of a stream; 0: as fast as it goes. The model's name carries it to the
    /// mock engine, since every router passes that on.
    pub interval_ms: u64,
}

impl Api {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Completions, Self::Chat, Self::Generate];

    /// Where it is served.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::Completions => "/v1/completions",
            Self::Chat => "/v1/chat/completions",
            Self::Generate => "/inference/v1/generate",
        }
    }

    /// The API of a path.
    #[must_use]
    pub fn of_path(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|api| api.path() == path)
    }

    /// What stands directly before the place of an event in it.
    #[must_use]
    pub const fn event_mark(self) -> &'static str {
        match self {
            Self::Completions => "\"text\":\" ",
            Self::Chat => "\"content\":\" ",
            Self::Generate => "\"token_ids\":[",
        }
    }

    /// The data of a stream's event number `place`.
    #[must_use]
    pub fn event(self, place: u64) -> String {
        match self {
            Self::Completions => format!(
                r#"{{"id":"cmpl-bench","object":"text_completion","created":1700000000,"model":"m","choices":[{{"index":0,"text":" {place}","logprobs":null,"finish_reason":null,"stop_reason":null}}]}}"#
            ),
            Self::Chat => format!(
                r#"{{"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{{"index":0,"delta":{{"content":" {place}"}},"logprobs":null,"finish_reason":null}}]}}"#
            ),
            Self::Generate => {
                format!(
                    r#"{{"request_id":"bench","choices":[{{"index":0,"token_ids":[{place}],"logprobs":null,"finish_reason":null}}]}}"#
                )
            }
        }
    }

    /// A whole answer of this many tokens, with a further member at its end (`,"name":value` or nothing).
    #[must_use]
    pub fn answer(self, tokens: u64, further: &str) -> String {
        let text = text(tokens);
        let usage = format!(
            r#"{{"prompt_tokens":40,"total_tokens":{},"completion_tokens":{tokens}}}"#,
            tokens.saturating_add(40)
        );
        match self {
            Self::Completions => format!(
                r#"{{"id":"cmpl-bench","object":"text_completion","created":1700000000,"model":"m","choices":[{{"index":0,"text":"{text}","logprobs":null,"finish_reason":"length","stop_reason":null}}],"usage":{usage}{further}}}"#
            ),
            Self::Chat => format!(
                r#"{{"id":"chatcmpl-bench","object":"chat.completion","created":1700000000,"model":"m","choices":[{{"index":0,"message":{{"role":"assistant","content":"{text}"}},"logprobs":null,"finish_reason":"length"}}],"usage":{usage}{further}}}"#
            ),
            Self::Generate => {
                let ids: Vec<String> = (0..tokens).map(|id| id.to_string()).collect();
                format!(
                    r#"{{"request_id":"bench","choices":[{{"index":0,"token_ids":[{}],"logprobs":null,"finish_reason":"length"}}]{further}}}"#,
                    ids.join(",")
                )
            }
        }
    }

    /// The number that a request's prompt carries.
    #[must_use]
    pub fn number_of(self, body: &Edges) -> Option<u64> {
        let marks: &[&str] = match self {
            Self::Completions => &[TEXT_MARK, "\"prompt\":["],
            Self::Chat => &[TEXT_MARK],
            Self::Generate => &["\"token_ids\":["],
        };
        marks.iter().find_map(|mark| body.number_after(mark))
    }
}

/// The text of an answer of this many tokens: their places, a space before each.
#[must_use]
pub fn text(tokens: u64) -> String {
    (0..tokens).fold(String::new(), |mut text, place| {
        // Writing to a String cannot fail.
        write!(text, " {place}").ok();
        text
    })
}

/// The member with a handoff as a prefill engine of vLLM gives it (NIXL, pull).
#[must_use]
pub fn handoff(number: u64, port: u16) -> String {
    format!(
        r#","kv_transfer_params":{{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3,4]],"remote_engine_id":"4ed606ce-0000-4000-8000-{port:012}","remote_request_id":"{}{number}","remote_host":"127.0.0.1","remote_port":{port},"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":49,"remote_blocks_expiry_time":null,"transfer_mode":"pull","remote_prefill_cached_tokens":0}}"#,
        HANDOFF_MARK
    )
}

/// The mark before the number in a handoff.
pub const HANDOFF_MARK: &str = "cmpl-at-";

/// The bodies of one kind of request, made once; only the number differs.
#[derive(Clone, Debug)]
pub struct Bodies {
    before: Bytes,
    after: Bytes,
}

impl Bodies {
    /// What a client sends.
    #[must_use]
    pub fn of(ask: &Ask) -> Self {
        Self::with(ask, ask.tokens, ask.stream, "")
    }

    /// What a prefill engine gets: one token, not streamed, and the order to keep the KV cache.
    #[must_use]
    pub fn prefill(ask: &Ask) -> Self {
        Self::with(
            ask,
            1,
            false,
            r#","kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false}"#,
        )
    }

    fn with(ask: &Ask, tokens: u64, stream: bool, further: &str) -> Self {
        let (open, rest, close) = match ask.prompt {
            Prompt::Text(bytes) => (format!("\"{TEXT_MARK}"), " word".repeat(bytes / 5), "\""),
            Prompt::Ids(count) => {
                let ids = (1..count as u64).map(|at| at.wrapping_mul(7919) % 128_000);
                let rest = ids.fold(String::new(), |mut rest, id| {
                    write!(rest, ",{id}").ok();
                    rest
                });
                ("[".to_owned(), rest, "]")
            }
        };
        let model = format!("m-{}ms", ask.interval_ms);
        let (before, after) = match ask.api {
            Api::Completions => (
                format!(r#"{{"model":"{model}","prompt":{open}"#),
                format!(r#"{close},"max_tokens":{tokens},"temperature":0.7,"stream":{stream}{further}}}"#),
            ),
            Api::Chat => (
                format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":{open}"#),
                format!(r#"{close}}}],"max_tokens":{tokens},"temperature":0.7,"stream":{stream}{further}}}"#),
            ),
            Api::Generate => (
                format!(r#"{{"model":"{model}","token_ids":{open}"#),
                format!(
                    r#"{close},"sampling_params":{{"max_tokens":{tokens},"temperature":0.7}},"stream":{stream}{further}}}"#
                ),
            ),
        };
        Self { before: before.into(), after: (rest + &after).into() }
    }

    /// The body of the request with this number.
    #[must_use]
    pub fn numbered(&self, number: u64) -> Chain {
        Chain::of([self.before.clone(), Bytes::from(number.to_string()), self.after.clone()])
    }

    /// The same with a member added at its end (`,"name":value`): a decode leg's.
    #[must_use]
    pub fn with_member(&self, number: u64, member: &[u8]) -> Chain {
        let open = self.after.slice(..self.after.len().saturating_sub(1));
        let member = Bytes::copy_from_slice(member);
        let number = Bytes::from(number.to_string());
        Chain::of([self.before.clone(), number, open, member, Bytes::from_static(b"}")])
    }

    /// Bytes of a body.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.before.len() + 8 + self.after.len()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::{Api, Ask, Bodies, Prompt, handoff};
    use crate::edges::Edges;

    fn ask(api: Api, prompt: Prompt) -> Ask {
        Ask { api, prompt, tokens: 16, stream: true, interval_ms: 20 }
    }

    #[test]
    fn every_body_is_json_and_carries_its_number() {
        for api in Api::ALL {
            let prompt = if api == Api::Generate { Prompt::Ids(3000) } else { Prompt::Text(9000) };
            for bodies in [Bodies::of(&ask(api, prompt)), Bodies::prefill(&ask(api, prompt))] {
                let body = bodies.numbered(12_345_678).concat();
                serde_json::from_slice::<Value>(&body).unwrap();
                assert_eq!(body.len(), bodies.bytes());
                let mut edges = Edges::default();
                edges.push(&body);
                assert_eq!(api.number_of(&edges), Some(12_345_678), "{api:?}");
            }
            let member = handoff(12_345_678, 5600);
            let decode = Bodies::of(&ask(api, prompt)).with_member(12_345_678, member.as_bytes()).concat();
            assert!(serde_json::from_slice::<Value>(&decode).unwrap()["kv_transfer_params"].is_object());
        }
    }

    #[test]
    fn what_engines_say_is_json() {
        for api in Api::ALL {
            serde_json::from_str::<Value>(&api.event(3)).unwrap();
            let whole: Value = serde_json::from_str(&api.answer(2, &handoff(1, 2))).unwrap();
            assert_eq!(whole["kv_transfer_params"]["remote_port"], 2);
        }
    }
}

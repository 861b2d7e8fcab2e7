//! The NIXL connector in pull mode: what to ask of prefill, and the one look at what it answers.
//!
//! The member names are vLLM's (0.24 to 0.32). The object is carried as it came: engines add members from
//! version to version, and a router that copies only those it knows loses them.

use bytes::Bytes;

use super::Handoff;
use crate::ids::Missing;
use crate::request::scan::{self, Names, Object};

/// The member that carries a handoff, in bodies and answers.
pub const FIELD: &str = "kv_transfer_params";

/// What the prefill leg carries: compute here, another engine will decode.
pub const REQUEST: &str = "{\"do_remote_decode\":true,\"do_remote_prefill\":false,\"remote_engine_id\":null,\
                           \"remote_block_ids\":null,\"remote_host\":null,\"remote_port\":null}";

const FIELDS: [&str; 6] = [
    "do_remote_prefill",
    "remote_block_ids",
    "remote_engine_id",
    "remote_host",
    "remote_port",
    "transfer_mode",
];

/// What a prefill answer of status 2xx brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A handoff that decode can pull.
    Usable(Handoff),
    /// None, and why.
    Missing(Missing),
    /// A transfer mode other than pull, by name.
    OtherMode(String),
    /// Not a JSON object: no answer of an engine.
    NotJson,
}

/// Looks at a prefill answer once and takes the handoff from it, as raw bytes.
#[must_use]
pub fn find(answer: &Bytes) -> Found {
    let Ok(top) = scan::document(answer, Names::once(&[FIELD])) else { return Found::NotJson };
    let Some(member) = top.get(FIELD) else { return Found::Missing(Missing::Absent) };
    let raw = answer.slice(member.value.clone());
    if raw.as_ref() == b"null" {
        return Found::Missing(Missing::Absent);
    }
    let Ok(object) = scan::object_at(answer, member.value.start, Names::once(&FIELDS)) else {
        return Found::Missing(Missing::NotRemote);
    };
    let text = |name: &str| value(answer, &object, name);
    if text("do_remote_prefill") != b"true" {
        return Found::Missing(Missing::NotRemote);
    }
    let mode = text("transfer_mode");
    if !matches!(mode, b"" | b"null" | b"\"pull\"") {
        return Found::OtherMode(String::from_utf8_lossy(mode).trim_matches('"').chars().take(32).collect());
    }
    if text("remote_block_ids").first() != Some(&b'[') {
        return Found::Missing(Missing::NoBlocks);
    }
    if !is_some(text("remote_host")) || !is_some(text("remote_port")) {
        return Found::Missing(Missing::NoAddress);
    }
    let engine_id = answer.slice_ref(text("remote_engine_id"));
    Found::Usable(Handoff { raw, engine_id })
}

/// Whether a prefill answer says that its generation failed, which vLLM does under status 200.
#[must_use]
pub fn failed(answer: &Bytes) -> bool {
    says(answer, "finish_reason", "error")
}

/// Whether a prefill answer says that its one token ended the text.
#[must_use]
pub fn ended(answer: &Bytes) -> bool {
    const ENDS: [(&str, &str); 4] = [
        ("finish_reason", "stop"),
        ("stop_reason", "end_turn"),
        ("stop_reason", "stop_sequence"),
        ("status", "completed"),
    ];
    ENDS.iter().any(|(name, value)| says(answer, name, value))
}

/// Whether a member of this name has this value at any depth. Inside a JSON string its quotes would be
/// escaped, so generated text cannot say it.
fn says(answer: &Bytes, name: &str, value: &str) -> bool {
    ["", " "].iter().any(|space| {
        memchr::memmem::find(answer, format!("\"{name}\":{space}\"{value}\"").as_bytes()).is_some()
    })
}

fn value<'a>(answer: &'a Bytes, object: &Object, name: &str) -> &'a [u8] {
    object.get(name).and_then(|member| answer.get(member.value.clone())).unwrap_or_default()
}

fn is_some(text: &[u8]) -> bool {
    !matches!(text, b"" | b"null" | b"\"\"" | b"0" | b"false")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(answer: &str) -> Found {
        find(&Bytes::copy_from_slice(answer.as_bytes()))
    }

    #[test]
    fn a_handoff_is_taken_as_it_came() {
        let raw = r#"{"do_remote_prefill": true,"remote_block_ids":[],"remote_host":"h","remote_port":1,"big":9223372036854775809, "x":1E5}"#;
        let Found::Usable(handoff) = look(&format!(r#"{{"id":"p","kv_transfer_params":{raw},"m":null}}"#))
        else {
            panic!("not usable")
        };
        assert_eq!(handoff.raw().as_ref(), raw.as_bytes());
    }

    #[test]
    fn the_end_of_the_text_is_told_from_the_limit() {
        let says = |answer: &'static str| ended(&Bytes::from_static(answer.as_bytes()));
        assert!(says(r#"{"choices":[{"finish_reason":"stop"}]}"#));
        assert!(says(r#"{"choices": [{"finish_reason": "stop"}]}"#));
        assert!(says(r#"{"stop_reason":"end_turn"}"#) && says(r#"{"status":"completed"}"#));
        assert!(!says(r#"{"choices":[{"text":"\"finish_reason\":\"stop\"","finish_reason":"length"}]}"#));
        assert!(!says(r#"{"stop_reason":"max_tokens"}"#) && !says(r#"{"status":"incomplete"}"#));
    }

    #[test]
    fn what_would_harm_a_decode_engine_is_missing() {
        let answer = |params: &str| format!(r#"{{"kv_transfer_params":{params}}}"#);
        for (params, why) in [
            ("null", Missing::Absent),
            ("{}", Missing::NotRemote),
            ("\"x\"", Missing::NotRemote),
            (r#"{"do_remote_prefill":false}"#, Missing::NotRemote),
            (r#"{"do_remote_prefill":true,"remote_block_ids":null}"#, Missing::NoBlocks),
            (r#"{"do_remote_prefill":true}"#, Missing::NoBlocks),
            (r#"{"do_remote_prefill":true,"remote_block_ids":[[1]],"remote_host":"h"}"#, Missing::NoAddress),
            (
                r#"{"do_remote_prefill":true,"remote_block_ids":[[1]],"remote_host":"","remote_port":1}"#,
                Missing::NoAddress,
            ),
        ] {
            assert_eq!(look(&answer(params)), Found::Missing(why), "{params}");
        }
        assert_eq!(look("{}"), Found::Missing(Missing::Absent));
        assert_eq!(look("<html>"), Found::NotJson);
        assert_eq!(look("[1]"), Found::NotJson);
        let push = r#"{"do_remote_prefill":true,"transfer_mode":"push"}"#;
        assert_eq!(look(&answer(push)), Found::OtherMode("push".into()));
    }
}

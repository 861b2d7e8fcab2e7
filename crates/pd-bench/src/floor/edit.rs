//! The floor's edits: bytes cut and added at the ends of a body. It knows the bodies of the generator and no
//! others: members are written without space, once, and none of them inside the prompt.

use bytes::Bytes;
use memchr::memmem;

use crate::body::Chain;

/// Where members are looked for, from both ends of the body.
const EDGE_BYTES: usize = 4096;

const PREFILL: Bytes =
    Bytes::from_static(b"{\"kv_transfer_params\":{\"do_remote_decode\":true,\"do_remote_prefill\":false},");

/// The client's body for a prefill engine: one token, not streamed.
pub(super) fn prefill(body: &Bytes) -> Chain {
    let mut cuts: Vec<(usize, usize, &'static [u8])> = Vec::with_capacity(2);
    if let Some(at) = find(body, b"\"max_tokens\":") {
        let from = at + b"\"max_tokens\":".len();
        let digits = body.iter().skip(from).take_while(|byte| byte.is_ascii_digit()).count();
        cuts.push((from, from + digits, b"1"));
    }
    if let Some(at) = find(body, b"\"stream\":true") {
        let from = at + b"\"stream\":".len();
        cuts.push((from, from + 4, b"false"));
    }
    cuts.sort_unstable();
    let mut parts = vec![PREFILL];
    let mut from = 1;
    for (start, end, put) in cuts {
        parts.push(slice(body, from, start));
        parts.push(Bytes::from_static(put));
        from = end;
    }
    parts.push(slice(body, from, body.len()));
    Chain::of(parts)
}

/// The client's body for a decode engine: with the handoff.
pub(super) fn decode(body: &Bytes, handoff: Bytes) -> Chain {
    let open = Bytes::from_static(b"{\"kv_transfer_params\":");
    Chain::of([open, handoff, Bytes::from_static(b","), slice(body, 1, body.len())])
}

/// The object `kv_transfer_params` of a prefill answer.
pub(super) fn handoff(answer: &Bytes) -> Option<Bytes> {
    let mark = b"\"kv_transfer_params\":";
    let from = memmem::find(answer, mark)? + mark.len();
    let mut depth = 0_usize;
    let (mut in_text, mut escaped) = (false, false);
    for (at, byte) in answer.iter().enumerate().skip(from) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => in_text = !in_text,
            _ if in_text => {}
            b'{' => depth += 1,
            b'}' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(answer.slice(from..=at));
                }
            }
            _ if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

fn find(body: &[u8], mark: &[u8]) -> Option<usize> {
    let tail = body.len().saturating_sub(EDGE_BYTES);
    let in_tail = body.get(tail..).and_then(|edge| memmem::rfind(edge, mark)).map(|at| at + tail);
    in_tail.or_else(|| memmem::find(body.get(..EDGE_BYTES.min(body.len()))?, mark))
}

fn slice(body: &Bytes, from: usize, to: usize) -> Bytes {
    if from < to && to <= body.len() { body.slice(from..to) } else { Bytes::new() }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::{Value, json};

    use super::{decode, handoff, prefill};
    use crate::api::{Api, Ask, Bodies, Prompt};

    #[test]
    fn both_bodies_are_what_engines_want() {
        for (api, prompt) in [(Api::Completions, Prompt::Text(200)), (Api::Generate, Prompt::Ids(16_384))] {
            let ask = Ask { api, prompt, tokens: 16, stream: true, interval_ms: 0 };
            let client = Bytes::from(Bodies::of(&ask).numbered(12_345_678).concat());
            let first: Value = serde_json::from_slice(&prefill(&client).concat()).unwrap();
            let limit = if api == Api::Generate { "/sampling_params/max_tokens" } else { "/max_tokens" };
            assert_eq!(first.pointer(limit), Some(&json!(1)));
            assert_eq!(first["stream"], json!(false));
            assert_eq!(first["kv_transfer_params"]["do_remote_decode"], json!(true));
            let said = Bytes::from(api.answer(1, &crate::api::handoff(12_345_678, 5600)));
            let params = handoff(&said).unwrap();
            let mut second: Value = serde_json::from_slice(&decode(&client, params).concat()).unwrap();
            let given = second.as_object_mut().unwrap().remove("kv_transfer_params").unwrap();
            assert_eq!(given["remote_request_id"], json!("cmpl-at-12345678"));
            assert_eq!(second, serde_json::from_slice::<Value>(&client).unwrap());
        }
    }

    #[test]
    fn no_handoff_is_none() {
        assert_eq!(handoff(&Bytes::from_static(b"{\"kv_transfer_params\":null}")), None);
        assert_eq!(handoff(&Bytes::from_static(b"{}")), None);
    }
}

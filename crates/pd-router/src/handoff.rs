//! What flows between the two legs: the prefill body, the handoff in its answer, the decode body.

pub mod nixl;

use bytes::Bytes;

use crate::request::api::{Api, Change, Edit, Place};
use crate::request::edit::{self, Chain, Editor, Fate, is_handoff};
use crate::request::view::View;

/// A usable handoff: the prefill engine's `kv_transfer_params`, as raw JSON text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handoff {
    raw: Bytes,
    engine_id: Bytes,
}

impl Handoff {
    /// The prefill engine's `remote_engine_id`, as JSON text; empty where it gave none.
    #[must_use]
    pub const fn engine_id(&self) -> &Bytes {
        &self.engine_id
    }

    /// The JSON text.
    #[must_use]
    pub const fn raw(&self) -> &Bytes {
        &self.raw
    }
}

/// The body of the prefill leg: the client's, shaped by the API's row, with the connector's request.
#[must_use]
pub fn prefill_body(api: &Api, view: &View) -> Chain {
    let mut editor = Editor::default();
    let mut added = additions(api, view, Place::Top);
    added.push((nixl::FIELD, Bytes::from_static(nixl::REQUEST.as_bytes())));
    if view.object(Place::Sampling).is_none() && api.prefill.iter().any(|edit| edit.place == Place::Sampling)
    {
        added.push(("sampling_params", Bytes::from_static(b"{\"max_tokens\":1}")));
    }
    for place in Place::ALL {
        let Some(object) = view.object(place) else { continue };
        let added = if place == Place::Top { added.clone() } else { additions(api, view, place) };
        editor.object(object, |name| fate(api, place, name, &added), &added);
    }
    editor.apply(view.bytes())
}

/// The body of the decode leg: the client's bytes and the handoff, or the client's bytes alone. In both, a
/// handoff that the client brought itself is cut.
#[must_use]
pub fn decode_body(api: &Api, view: &View, handoff: Option<&Handoff>) -> Chain {
    let strip = [Place::Top, api.side_door];
    match handoff {
        Some(handoff) => edit::forward(view, &strip, &[(nixl::FIELD, handoff.raw.clone())]),
        None => edit::forward(view, &strip, &[]),
    }
}

fn edit_of(api: &Api, place: Place, name: &str) -> Option<&'static Edit> {
    api.prefill.iter().find(|edit| edit.place == place && edit.field == name)
}

fn fate(api: &Api, place: Place, name: &str, added: &[(&'static str, Bytes)]) -> Fate {
    let at_door = place == Place::Top || place == api.side_door;
    let replaced = added.iter().any(|(added, _)| *added == name);
    match edit_of(api, place, name).map(|edit| edit.change) {
        Some(Change::Cut) => Fate::Cut,
        Some(Change::Set(text) | Change::SetIfPresent(text)) => {
            Fate::Value(Bytes::from_static(text.as_bytes()))
        }
        None if replaced || (at_door && is_handoff(name)) => Fate::Cut,
        None => Fate::Keep,
    }
}

fn additions(api: &Api, view: &View, place: Place) -> Vec<(&'static str, Bytes)> {
    api.prefill
        .iter()
        .filter(|edit| edit.place == place && view.get(place, edit.field).is_none())
        .filter_map(|edit| match edit.change {
            Change::Set(text) => Some((edit.field, Bytes::from_static(text.as_bytes()))),
            Change::SetIfPresent(_) | Change::Cut => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::view::Route;

    fn bodies(api: &str, body: &'static str) -> (String, String) {
        let api = Api::by_name(api).unwrap();
        let view = View::read(&Route::new(api, api.path), Bytes::from_static(body.as_bytes())).unwrap();
        let handoff = Handoff { raw: Bytes::from_static(b"{\"h\":1}"), engine_id: Bytes::new() };
        let text = |chain: Chain| String::from_utf8(chain.concat()).unwrap();
        (text(prefill_body(api, &view)), text(decode_body(api, &view, Some(&handoff))))
    }

    #[test]
    fn completions_lose_what_binds_to_length_and_keep_the_rest() {
        let (prefill, decode) = bodies(
            "completions",
            r#"{ "stream":true , "model":"m","min_tokens":4,"temperature":1E0,"max_tokens":9,"stream_options":{}}"#,
        );
        let added = format!(",\"kv_transfer_params\":{}}}", nixl::REQUEST);
        assert_eq!(
            prefill,
            format!(r#"{{ "stream":false , "model":"m","temperature":1E0,"max_tokens":1{added}"#)
        );
        assert!(decode.ends_with(r#""stream_options":{},"kv_transfer_params":{"h":1}}"#), "{decode}");
    }

    #[test]
    fn a_clients_own_handoff_is_cut_from_both() {
        let (prefill, decode) = bodies(
            "chat",
            r#"{"kv_transfer_params":{"evil":1},"vllm_xargs":{"kv_transfer_params":"evil","x":1},"ec_transfer_params":2}"#,
        );
        assert_eq!(decode, r#"{"vllm_xargs":{"x":1},"kv_transfer_params":{"h":1}}"#);
        assert!(
            prefill.starts_with(r#"{"vllm_xargs":{"x":1},"max_tokens":1,"stream":false,"kv_tr"#),
            "{prefill}"
        );
    }

    #[test]
    fn an_object_left_empty_stays_an_object() {
        let (prefill, decode) = bodies("chat", r#"{"kv_transfer_params":1,"ec_transfer_params":2}"#);
        assert_eq!(decode, r#"{"kv_transfer_params":{"h":1}}"#);
        assert!(prefill.starts_with(r#"{"max_tokens":1,"stream":false,"#), "{prefill}");
        assert_eq!(bodies("chat", "{}").1, r#"{"kv_transfer_params":{"h":1}}"#);
    }

    #[test]
    fn generate_is_limited_inside_its_sampling_params() {
        let (prefill, _) = bodies(
            "generate",
            r#"{"token_ids":[1],"sampling_params":{"min_tokens":2,"max_tokens":64,"n":1,"extra_args":{"kv_transfer_params":{},"k":1.0}}}"#,
        );
        assert!(
            prefill.starts_with(
                r#"{"token_ids":[1],"sampling_params":{"max_tokens":1,"n":1,"extra_args":{"k":1.0}},"stream":false,"#
            ),
            "{prefill}"
        );
        for body in [r#"{"token_ids":[1]}"#, r#"{"token_ids":[1],"sampling_params":null}"#] {
            let (prefill, _) = bodies("generate", body);
            assert_eq!(prefill.matches("sampling_params").count(), 1);
            assert!(prefill.contains(r#""sampling_params":{"max_tokens":1}"#), "{prefill}");
        }
        let (prefill, _) = bodies("generate", r#"{"sampling_params":{}}"#);
        assert!(prefill.starts_with(r#"{"sampling_params":{"max_tokens":1},"#), "{prefill}");
    }
}

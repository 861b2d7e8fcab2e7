//! A body as a view: the places of the members that matter, over the bytes that the client sent.

use bytes::Bytes;

use super::api::{Api, HANDOFF_FIELDS, Place, Rule, Test};
use super::scan::{self, Member, Names, Object, ScanError};
use crate::ids::WholeReason;

/// An API row with its lists of names worked out, on one path.
#[derive(Debug)]
pub struct Route {
    /// The row.
    pub api: &'static Api,
    /// The path; not the row's own where `--pd-path` gave another.
    pub path: String,
    names: [Vec<&'static str>; Place::ALL.len()],
    told: Vec<&'static str>,
}

impl Route {
    /// Serves `api` on `path`.
    #[must_use]
    pub fn new(api: &'static Api, path: &str) -> Self {
        Self { api, path: path.to_owned(), names: Place::ALL.map(|place| api.names(place)), told: api.told() }
    }

    fn names(&self, place: Place) -> Names<'_> {
        let once = self.names.get(place as usize).map_or(&[][..], Vec::as_slice);
        Names { once, last: if place == Place::Top { &self.told } else { &[] } }
    }
}

/// A client's body, as it came, and where in it the members are that the router reads or writes.
#[derive(Debug)]
pub struct View {
    bytes: Bytes,
    objects: [Option<Object>; Place::ALL.len()],
}

impl View {
    /// Reads a body in one pass.
    ///
    /// # Errors
    /// [`ScanError`] if the body is not one JSON object within bounds, or has a key twice that the router
    /// reads or writes.
    pub fn read(route: &Route, bytes: Bytes) -> Result<Self, ScanError> {
        let top = scan::document(&bytes, route.names(Place::Top))?;
        let mut view = Self { bytes, objects: [Some(top), None, None, None] };
        for place in Place::ALL {
            let Some((parent, name)) = place.parent() else { continue };
            if !route.api.looks_into(place) {
                continue;
            }
            let Some(member) = view.member(parent, name) else { continue };
            if view.text(member).first() != Some(&b'{') {
                continue;
            }
            let object = scan::object_at(&view.bytes, member.value.start, route.names(place))?;
            if let Some(slot) = view.objects.get_mut(place as usize) {
                *slot = Some(object);
            }
        }
        Ok(view)
    }

    /// The client's bytes.
    #[must_use]
    pub const fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The object at this place, where the body has one.
    #[must_use]
    pub fn object(&self, place: Place) -> Option<&Object> {
        self.objects.get(place as usize).and_then(Option::as_ref)
    }

    /// One member's JSON text.
    #[must_use]
    pub fn get(&self, place: Place, name: &str) -> Option<&[u8]> {
        self.member(place, name).map(|member| self.text(member))
    }

    /// A string inside an object of the body: `session_params.session_id`. JSON text, quotes included.
    #[must_use]
    pub fn inside(&self, name: &str, field: &'static str) -> Option<&[u8]> {
        let member = self.member(Place::Top, name)?;
        let object = scan::object_at(&self.bytes, member.value.start, Names::once(&[field])).ok()?;
        object.get(field).map(|member| self.text(member))
    }

    /// Whether the client asked for a stream.
    #[must_use]
    pub fn streams(&self) -> bool {
        self.get(Place::Top, "stream") == Some(b"true")
    }

    /// How many members of the client's own handoff have to be cut.
    #[must_use]
    pub fn client_handoffs(&self, api: &Api) -> usize {
        [Place::Top, api.side_door]
            .into_iter()
            .filter_map(|place| self.object(place))
            .map(|object| object.members.iter().filter(|m| HANDOFF_FIELDS.contains(&m.name)).count())
            .sum()
    }

    /// Why one handoff cannot serve this request, if so.
    #[must_use]
    pub fn whole(&self, api: &Api) -> Option<WholeReason> {
        api.whole.iter().find(|rule| self.holds(rule)).map(|rule| rule.reason)
    }

    fn member(&self, place: Place, name: &str) -> Option<&Member> {
        self.object(place).and_then(|object| object.get(name))
    }

    fn text(&self, member: &Member) -> &[u8] {
        self.bytes.get(member.value.clone()).unwrap_or_default()
    }

    fn present(&self, place: Place, name: &str) -> Option<&[u8]> {
        self.get(place, name).filter(|text| *text != b"null")
    }

    fn holds(&self, rule: &Rule) -> bool {
        let Some(text) = self.present(rule.place, rule.field) else {
            return rule.test == Test::NotPositiveOrAbsent;
        };
        match rule.test {
            Test::SeveralItems => self
                .member(rule.place, rule.field)
                .is_some_and(|member| scan::several_items(&self.bytes, member.value.start)),
            Test::BesideOther(other) => self.present(rule.place, other).is_some(),
            Test::NotOne => text != b"1",
            Test::NotNull => true,
            Test::NotFalse => text != b"false",
            Test::NotPositive | Test::NotPositiveOrAbsent => integer(text).is_none_or(|limit| limit < 1),
            Test::NotUpTo(limits) => {
                let most = limits.iter().find_map(|limit| self.present(rule.place, limit)).and_then(integer);
                integer(text).is_none_or(|least| least < 0 || most.is_some_and(|most| least > most))
            }
            Test::WithoutStream => !self.streams(),
            Test::NotObject => text.first() != Some(&b'{'),
        }
    }
}

fn integer(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(api: &str, body: &str) -> Option<WholeReason> {
        let api = Api::by_name(api).unwrap();
        let route = Route::new(api, api.path);
        View::read(&route, Bytes::copy_from_slice(body.as_bytes())).unwrap().whole(api)
    }

    #[test]
    fn what_one_handoff_serves_takes_both_legs() {
        for (api, body) in [
            ("completions", r#"{"prompt":"a"}"#),
            ("completions", r#"{"prompt":[1,2],"n":1,"best_of":1,"echo":false,"use_beam_search":null}"#),
            ("completions", r#"{"prompt_embeds":"AAAA","prompt":null}"#),
            ("completions", r#"{"prompt":["a"],"max_tokens":null,"prompt_logprobs":null}"#),
            ("chat", r#"{"messages":[],"min_tokens":3,"max_tokens":2,"max_completion_tokens":3}"#),
            ("chat", r#"{"messages":[],"stream_options":{"include_usage":true},"stream":true}"#),
            ("chat", r#"{"messages":[],"stream_options":null}"#),
            ("generate", r#"{"token_ids":[1,2],"sampling_params":null}"#),
            ("generate", r#"{"token_ids":[1,2],"sampling_params":{"n":1,"max_tokens":4}}"#),
            ("responses", r#"{"input":"a","background":false,"previous_response_id":null}"#),
            ("messages", r#"{"messages":[],"max_tokens":4}"#),
        ] {
            assert_eq!(whole(api, body), None, "{api} {body}");
        }
    }

    #[test]
    fn what_one_handoff_cannot_serve_goes_whole() {
        use WholeReason::{
            BeamSearch, Echo, PromptLogprobs, Refused, SeveralChoices, SeveralPrompts, Stateful,
        };
        for (api, body, reason) in [
            ("completions", r#"{"prompt":["a","b"]}"#, SeveralPrompts),
            ("completions", r#"{"prompt":[[1],[2]]}"#, SeveralPrompts),
            ("completions", r#"{"prompt":"a","prompt_embeds":"AAAA"}"#, SeveralPrompts),
            ("completions", r#"{"prompt":"a","n":2}"#, SeveralChoices),
            ("completions", r#"{"prompt":"a","n":"1"}"#, SeveralChoices),
            ("completions", r#"{"prompt":"a","best_of":3}"#, SeveralChoices),
            ("completions", r#"{"prompt":"a","use_beam_search":true}"#, BeamSearch),
            ("chat", r#"{"echo":true}"#, Echo),
            ("chat", r#"{"prompt_logprobs":0}"#, PromptLogprobs),
            ("generate", r#"{"sampling_params":{"prompt_logprobs":1}}"#, PromptLogprobs),
            ("generate", r#"{"sampling_params":{"n":3}}"#, SeveralChoices),
            ("generate", r#"{"sampling_params":[]}"#, Refused),
            ("completions", r#"{"max_tokens":0}"#, Refused),
            ("completions", r#"{"max_tokens":-4}"#, Refused),
            ("completions", r#"{"max_tokens":"8"}"#, Refused),
            ("completions", r#"{"max_tokens":8.0}"#, Refused),
            ("chat", r#"{"max_completion_tokens":0,"max_tokens":5}"#, Refused),
            ("chat", r#"{"min_tokens":9,"max_tokens":5}"#, Refused),
            ("chat", r#"{"min_tokens":-1}"#, Refused),
            ("chat", r#"{"stream_options":{}}"#, Refused),
            ("responses", r#"{"background":true}"#, Stateful),
            ("responses", r#"{"previous_response_id":"r"}"#, Stateful),
            ("responses", r#"{"max_output_tokens":0}"#, Refused),
            ("messages", r#"{"messages":[]}"#, Refused),
        ] {
            assert_eq!(whole(api, body), Some(reason), "{api} {body}");
        }
    }

    #[test]
    fn a_clients_own_handoff_is_seen_wherever_an_engine_would_find_it() {
        for (api, body, count) in [
            ("chat", r#"{"kv_transfer_params":{},"vllm_xargs":{"ec_transfer_params":1}}"#, 2),
            ("chat", r#"{"k\u0076_transfer_params":{}}"#, 1),
            ("generate", r#"{"sampling_params":{"extra_args":{"kv_transfer_params":{}}}}"#, 1),
            ("generate", r#"{"sampling_params":{"extra_args":null}}"#, 0),
            ("chat", r#"{"metadata":{"kv_transfer_params":1}}"#, 0),
        ] {
            let api = Api::by_name(api).unwrap();
            let view = View::read(&Route::new(api, api.path), Bytes::from_static(body.as_bytes())).unwrap();
            assert_eq!(view.client_handoffs(api), count, "{body}");
        }
    }
}

//! What a policy sees of a request: whose session it is of, how its prompt begins, how long that is.

use http::header::HeaderName;
use http::{HeaderMap, HeaderValue};
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64;

use super::prefix::Prefix;
use crate::request::api::{Api, CACHE_FIELDS, Place, SESSION_FIELDS, SESSION_PARAMS};
use crate::request::view::View;

/// Bytes of text that make one token, about: English in the vocabularies of today's models.
const BYTES_A_TOKEN: u64 = 4;

/// Headers that name a session, the first that is there counts; the default of `--session-headers`.
pub const SESSION_HEADERS: [HeaderName; 4] = [
    HeaderName::from_static("x-session-id"),
    HeaderName::from_static("x-user-id"),
    HeaderName::from_static("x-tenant-id"),
    HeaderName::from_static("x-correlation-id"),
];

/// Headers that name a session where nothing else does: those of one request only, mostly.
const LAST_HEADERS: [&str; 2] = ["x-request-id", "x-trace-id"];

/// What a policy sees of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// The session's key, hashed alike in every process; `None` where the request names no session.
    pub session: Option<u64>,
    /// How the prompt begins: one hash a block, each of all the text up to its end. Empty where no policy
    /// wants it.
    pub prefix: Prefix,
    /// How many tokens the prompt has: counted where it is a list of token ids, else estimated from its
    /// bytes.
    pub tokens: u64,
}

/// The key of a session that is named by this text.
#[must_use]
pub fn session_key(text: &[u8]) -> u64 {
    xxh3_64(text)
}

/// Whose session a request is of: a header of `names`, then a member of the body, then `x-request-id` or
/// `x-trace-id`.
#[must_use]
pub fn session<'a>(headers: &'a HeaderMap, names: &[HeaderName], view: &'a View) -> Option<u64> {
    let named =
        |value: Option<&'a HeaderValue>| value.map(HeaderValue::as_bytes).filter(|text| !text.is_empty());
    let first = names.iter().find_map(|name| named(headers.get(name)));
    let last = || LAST_HEADERS.iter().find_map(|name| named(headers.get(*name)));
    first.or_else(|| in_body(view)).or_else(last).map(session_key)
}

/// A string in JSON without its quotes, so that it names the same session as a header with this text; other
/// scalars as they are written.
fn in_body(view: &View) -> Option<&[u8]> {
    let nested = view.inside(SESSION_PARAMS, "session_id");
    let fields = SESSION_FIELDS.iter().map(|name| view.get(Place::Top, name));
    [nested].into_iter().chain(fields).flatten().find_map(|text| match text {
        [b'"', inside @ .., b'"'] if !inside.is_empty() => Some(inside),
        [b'-' | b'0'..=b'9', ..] => Some(text),
        _ => None,
    })
}

/// How a request's prompt begins.
#[must_use]
pub fn prefix(api: &Api, view: &View) -> Prefix {
    let seeds: SmallVec<[&[u8]; 4]> =
        CACHE_FIELDS.iter().map(|name| view.get(Place::Top, name).unwrap_or_default()).collect();
    Prefix::of(&seeds, &texts(api, view))
}

/// How many tokens a request's prompt has, about; see [`Ask::tokens`].
#[must_use]
pub fn tokens(api: &Api, view: &View) -> u64 {
    texts(api, view).iter().map(|text| tokens_of(text)).sum()
}

fn texts<'a>(api: &Api, view: &'a View) -> SmallVec<[&'a [u8]; 4]> {
    api.prompt.iter().filter_map(|name| view.get(Place::Top, name)).collect()
}

fn tokens_of(text: &[u8]) -> u64 {
    let ids = text.first() == Some(&b'[')
        && text.get(1..).and_then(|rest| rest.trim_ascii_start().first()).is_some_and(u8::is_ascii_digit);
    if ids {
        memchr::memchr_iter(b',', text).count() as u64 + 1
    } else {
        (text.len() as u64).div_ceil(BYTES_A_TOKEN)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::request::view::Route;

    fn view(api: &str, body: &str) -> (&'static Api, View) {
        let api = Api::by_name(api).unwrap();
        (api, View::read(&Route::new(api, api.path), Bytes::copy_from_slice(body.as_bytes())).unwrap())
    }

    fn key(headers: &[(&'static str, &'static str)], body: &str) -> Option<u64> {
        let headers = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), http::HeaderValue::from_static(value)))
            .collect();
        session(&headers, &SESSION_HEADERS, &view("chat", body).1)
    }

    #[test]
    fn a_session_is_named_by_a_header_then_the_body_then_the_request_id() {
        let named = |text: &str| Some(session_key(text.as_bytes()));
        let body = r#"{"messages":[{"role":"user","content":"\"user\":\"x\""}],"user":"u","user_id":"i"}"#;
        assert_eq!(key(&[("x-user-id", "b"), ("x-session-id", "a")], body), named("a"));
        assert_eq!(key(&[("x-request-id", "r")], body), named("u"));
        assert_eq!(key(&[], r#"{"user":"u","session_id":"s"}"#), named("s"));
        assert_eq!(key(&[], r#"{"user":"u","session_params":{"session_id":"p"}}"#), named("p"));
        assert_eq!(key(&[], r#"{"prompt_cache_key":7}"#), named("7"));
        assert_eq!(key(&[], r#"{"user":null,"user_id":"","prompt_cache_key":"k"}"#), named("k"));
        assert_eq!(key(&[("x-request-id", "r")], "{}"), named("r"));
        assert_eq!(key(&[], r#"{"session_params":[],"user":{}}"#), None);
    }

    #[test]
    fn a_prefix_is_of_the_prompt_and_of_what_changes_its_cache() {
        let long = "word ".repeat(200);
        let of = |body: String| prefix(view("chat", &body).0, &view("chat", &body).1);
        let body = |model: &str, tail: &str| {
            format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":"{long}{tail}"}}]}}"#)
        };
        assert_eq!(of(body("m", "a")).blocks(), of(body("m", "b")).blocks());
        assert_eq!(of(body("m", "a")).blocks().len(), 4);
        assert_ne!(of(body("m", "a")).blocks().first(), of(body("n", "a")).blocks().first());
    }

    #[test]
    fn token_ids_are_counted_and_text_is_estimated() {
        let of = |api: &str, body: &str| tokens(view(api, body).0, &view(api, body).1);
        assert_eq!(of("generate", r#"{"token_ids":[ 5, 6,7]}"#), 3);
        assert_eq!(of("completions", r#"{"prompt":"12345678901234"}"#), 4);
        assert_eq!(of("completions", r#"{"prompt":[[1,2,3,4]]}"#), 3);
        assert_eq!(of("chat", "{}"), 0);
    }
}

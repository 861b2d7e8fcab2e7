//! What a policy sees of a request: whose session it is of, how its prompt begins, how long that is.

use std::sync::LazyLock;

use http::header::HeaderName;
use http::{HeaderMap, HeaderValue};
use memchr::memmem::Finder;
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64;

use super::prefix::Prefix;
use crate::request::api::{Api, CACHE_FIELDS, Place, SESSION_FIELDS, SESSION_PARAMS};
use crate::request::view::View;

/// Bytes of text that make one token, about: English in the vocabularies of today's models.
const BYTES_A_TOKEN: u64 = 4;

/// What an image, a sound or a video counts for: about what vision models make of a picture of 1,000 by 1,000
/// pixels.
const MEDIA_TOKENS: u64 = 1000;

/// The key under which chat messages have images, sound and video: `image_url`, `audio_url`, `video_url`.
static MEDIA: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"_url\":"));

/// How far into a prompt the first of them is looked for: looking through all of a long text would cost more
/// than it is worth.
const MEDIA_WITHIN: usize = 64 * 1024;

/// How far behind its key a data URL begins.
const DATA_WITHIN: usize = 256;

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
    /// Whether that key is one of this request only, such as its id: it spreads requests, and nothing is gained
    /// by remembering it.
    pub one_off: bool,
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

/// Whose session a request is of: a header of `names`, then a member of the body.
#[must_use]
pub fn session(headers: &HeaderMap, names: &[HeaderName], view: &View) -> Option<u64> {
    let header = names.iter().find_map(|name| named(headers.get(name)));
    header.or_else(|| in_body(view))
}

/// The key of a request that names no session: its `x-request-id` or `x-trace-id`.
#[must_use]
pub fn one_off(headers: &HeaderMap) -> Option<u64> {
    LAST_HEADERS.iter().find_map(|name| named(headers.get(*name)))
}

fn named(value: Option<&HeaderValue>) -> Option<u64> {
    value.map(HeaderValue::as_bytes).filter(|text| !text.is_empty()).map(session_key)
}

/// A string in JSON by the text that it stands for, so that it names the same session as a header with this
/// text; other scalars as they are written.
fn in_body(view: &View) -> Option<u64> {
    let nested = view.inside(SESSION_PARAMS, "session_id");
    let fields = SESSION_FIELDS.iter().map(|name| view.get(Place::Top, name));
    [nested].into_iter().chain(fields).flatten().find_map(|text| match text {
        [b'"', inside @ .., b'"'] if inside.contains(&b'\\') => {
            Some(session_key(serde_json::from_slice::<String>(text).ok()?.as_bytes()))
        }
        [b'"', inside @ .., b'"'] if !inside.is_empty() => Some(session_key(inside)),
        [b'-' | b'0'..=b'9', ..] => Some(session_key(text)),
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

/// Bytes of text and how many parts of them are images, sound or video, which an engine does not read as text.
fn media(text: &[u8]) -> (u64, u64) {
    let start = text.get(..MEDIA_WITHIN).unwrap_or(text);
    if MEDIA.find(start).is_none() {
        return (0, 0);
    }
    let parts = MEDIA.find_iter(text).map(|at| text.get(at..).unwrap_or_default());
    parts.fold((0, 0), |(bytes, count), part| {
        let data = part.get(..DATA_WITHIN).unwrap_or(part);
        let begins = memchr::memmem::find(data, b";base64,").and_then(|at| part.get(at..));
        let length = begins.map_or(0, |data| memchr::memchr(b'"', data).unwrap_or(data.len()));
        (bytes + length as u64, count + 1)
    })
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
        let (bytes, parts) = media(text);
        (text.len() as u64 - bytes).div_ceil(BYTES_A_TOKEN) + parts * MEDIA_TOKENS
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
        session(&headers, &SESSION_HEADERS, &view("chat", body).1).or_else(|| one_off(&headers))
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
        assert_eq!(key(&[], r#"{"user":"caf\u00e9"}"#), named("café"));
        assert_eq!(key(&[], r#"{"user":"a\/b"}"#), named("a/b"));
        assert_eq!(key(&[], r#"{"user":"\ud800","user_id":"i"}"#), named("i"));
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
        let image = |url: &str| {
            of(
                "chat",
                &format!(
                    r#"{{"messages":[{{"content":[{{"type":"image_url","image_url":{{"url":"{url}"}}}}]}}]}}"#
                ),
            )
        };
        let by_url = image("http://a/b.png");
        assert!((1000..1050).contains(&by_url), "{by_url}");
        let inline = image(&format!("data:image/png;base64,{}", "A".repeat(100_000)));
        assert!(inline < by_url + 10, "{inline}");
    }
}

//! An engine's answer on its way to the client: the head with its headers filtered, the body frame by frame.

pub mod body;

use std::time::Duration;

use body::Relay;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::{Method, Response};

use crate::leg::decode::Answer;
use crate::leg::head::{self, X_REQUEST_ID};
use crate::observe::record::Record;
use crate::request::api::StreamError;

const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// What a relay needs to know about its request.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How a broken stream of this API says so; none for paths that need no handoff.
    pub stream_error: Option<StreamError>,
    /// The longest silence within a stream.
    pub idle_timeout: Duration,
}

/// Turns an engine's answer into the client's, with a body that passes every frame on as it comes.
#[must_use]
pub fn relay(answer: Answer, record: Record, method: &Method, settings: Settings) -> Response<Relay> {
    let (mut parts, body) = answer.response.into_parts();
    let close_delimited =
        !parts.headers.contains_key(TRANSFER_ENCODING) && !parts.headers.contains_key(CONTENT_LENGTH);
    let length = parts.headers.get(CONTENT_LENGTH).filter(|_| *method == Method::HEAD).cloned();
    head::strip_hop_by_hop(&mut parts.headers);
    // The router's own id stands for the engine's echo of it.
    parts.headers.remove(X_REQUEST_ID);
    if let Some(length) = length {
        parts.headers.insert(CONTENT_LENGTH, length);
    }
    let events = head::is_media_type(parts.headers.get(CONTENT_TYPE), "text/event-stream");
    if events && !parts.headers.contains_key(CACHE_CONTROL) {
        parts.headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        parts.headers.entry(X_ACCEL_BUFFERING).or_insert(HeaderValue::from_static("no"));
    }
    let status = parts.status;
    let relay = Relay::new(body, answer.in_flight, record, status)
        .close_delimited(close_delimited)
        .events(events.then_some(settings));
    Response::from_parts(parts, relay)
}

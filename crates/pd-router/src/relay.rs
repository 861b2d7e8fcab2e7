//! An engine's answer on its way to the client: the head with its headers filtered, the body frame by frame.

pub mod body;
pub mod cached;
pub mod first;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use body::Relay;
use http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, TRANSFER_ENCODING,
};
use http::{Method, Response};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::fleet::breaker::Verdict;
use crate::ids::X_REQUEST_ID;
use crate::leg::decode::Answer;
use crate::leg::head;
use crate::observe::record::Record;
use crate::request::api::StreamError;

const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// What a relay needs to know about its request.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How a broken stream of this API says so; none for paths that need no handoff.
    pub stream_error: Option<StreamError>,
    /// The longest silence before the first byte of a stream.
    pub first_byte_timeout: Duration,
    /// The longest silence within a stream.
    pub idle_timeout: Duration,
    /// When the answer must have ended.
    pub deadline: Option<Instant>,
    /// Cancelled when the router ends and does not wait any longer.
    pub cut: CancellationToken,
}

/// Another try of a request whose stream failed before its first event went on.
pub trait Again: Send + std::fmt::Debug {
    /// Tries again, or says no.
    fn again(self: Box<Self>) -> Option<Retrying>;
}

/// The try, under way: in the end a way to try yet again, and the answer if there is one.
pub type Retrying = Pin<Box<dyn Future<Output = (Box<dyn Again>, Option<Answer>)> + Send>>;

/// Turns an engine's answer into the client's, with a body that passes every frame on as it comes.
#[must_use]
pub fn relay(
    mut answer: Answer,
    record: Record,
    method: &Method,
    settings: Settings,
    again: Option<Box<dyn Again>>,
) -> Response<Relay> {
    let events = is_events(&answer);
    let headers = answer.response.headers_mut();
    let close_delimited = !headers.contains_key(TRANSFER_ENCODING) && !headers.contains_key(CONTENT_LENGTH);
    let length = headers.get(CONTENT_LENGTH).filter(|_| *method == Method::HEAD).cloned();
    head::strip_hop_by_hop(headers);
    // The router's own id stands for the engine's echo of it.
    headers.remove(X_REQUEST_ID);
    if let Some(length) = length {
        headers.insert(CONTENT_LENGTH, length);
    }
    if events && !headers.contains_key(CACHE_CONTROL) {
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.entry(X_ACCEL_BUFFERING).or_insert(HeaderValue::from_static("no"));
    }
    if headers.contains_key(CONTENT_ENCODING) {
        answer.cached = None;
    }
    let mut head = Response::new(());
    *head.status_mut() = answer.response.status();
    *head.headers_mut() = std::mem::take(answer.response.headers_mut());
    let again = again.filter(|_| events && head.status().is_success());
    let relay = Relay::new(answer, record, settings, events, again);
    head.map(|()| relay.close_delimited(close_delimited))
}

/// Whether an answer is a stream of events.
#[must_use]
pub fn is_events(answer: &Answer) -> bool {
    let headers = answer.response.headers();
    // What is compressed cannot be looked at, and no plain event may be put into it.
    let plain = headers.get(CONTENT_ENCODING).is_none_or(|encoding| encoding == "identity");
    plain && head::is_media_type(headers.get(CONTENT_TYPE), "text/event-stream")
}

/// The verdict on an answer that came whole.
const fn whole(status_is_success: bool) -> Verdict {
    if status_is_success { Verdict::Success } else { Verdict::Neutral }
}

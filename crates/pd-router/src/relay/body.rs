//! The body that the client reads: decode's frames unchanged, unbuffered, back-pressure being the socket's
//! own. It holds the engine's count and the request's record to the last byte.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http_body::{Body, Frame, SizeHint};
use thiserror::Error;
use tokio::time::{Instant, Sleep};

use super::Settings;
use crate::fleet::engine::InFlight;
use crate::leg::body::AnswerBody;
use crate::observe::record::{Outcome, Record};
use crate::request::api::StreamError;
use crate::sse::SseScanner;

/// The engine broke its answer off where nothing could be said in its place; the client's transfer is
/// aborted.
#[derive(Debug, Error)]
#[error("the engine broke its answer off")]
pub struct BrokenOff;

#[derive(Debug)]
struct Events {
    scanner: SseScanner,
    error: Option<StreamError>,
    idle_timeout: Duration,
    idle: Pin<Box<Sleep>>,
}

/// An answer's body on its way.
#[derive(Debug)]
pub struct Relay {
    answer: AnswerBody,
    record: Record,
    status: StatusCode,
    close_delimited: bool,
    events: Option<Events>,
    ended: bool,
    _in_flight: InFlight,
}

impl Relay {
    pub(super) fn new(answer: AnswerBody, in_flight: InFlight, record: Record, status: StatusCode) -> Self {
        Self {
            answer,
            record,
            status,
            close_delimited: false,
            events: None,
            ended: false,
            _in_flight: in_flight,
        }
        .if_empty()
    }

    pub(super) const fn close_delimited(mut self, close_delimited: bool) -> Self {
        self.close_delimited = close_delimited;
        self
    }

    pub(super) fn events(mut self, settings: Option<Settings>) -> Self {
        self.events = settings.map(|settings| Events {
            scanner: SseScanner::default(),
            error: settings.stream_error,
            idle_timeout: settings.idle_timeout,
            idle: Box::pin(tokio::time::sleep(settings.idle_timeout)),
        });
        self
    }

    /// hyper asks no body for a frame that says it is empty.
    fn if_empty(mut self) -> Self {
        if self.answer.is_end_stream() {
            self.end();
        }
        self
    }

    fn pass(&mut self, data: &Bytes) {
        if let Some(events) = &mut self.events {
            events.scanner.feed(data);
            events.idle.as_mut().reset(Instant::now() + events.idle_timeout);
            if events.scanner.data_events() > 0 {
                self.record.first_event();
            }
        }
        if self.answer.is_end_stream() {
            self.end();
        }
    }

    fn end(&mut self) {
        self.ended = true;
        let outcome = match &self.events {
            Some(events) if events.scanner.failed() => Outcome::EngineError,
            Some(events) if events.error.is_some() && !events.scanner.done() && self.status.is_success() => {
                Outcome::IncompleteStream
            }
            Some(_) | None if self.status.is_server_error() => Outcome::EngineError,
            Some(_) | None => Outcome::Ok,
        };
        self.record.end(outcome);
    }

    /// The engine is gone. Between two events the client is told in the stream; elsewhere the transfer is
    /// aborted, so that half an answer never looks like a whole one.
    fn break_off(&mut self, code: &'static str) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        self.ended = true;
        self.record.end(Outcome::EngineError);
        let told = self.events.as_ref().filter(|events| events.scanner.between_events());
        match told.and_then(|events| events.error) {
            Some(error) => Poll::Ready(Some(Ok(Frame::data(error_event(error, code))))),
            None => Poll::Ready(Some(Err(BrokenOff))),
        }
    }

    fn idle_is_over(&mut self, cx: &mut Context<'_>) -> bool {
        self.events.as_mut().is_some_and(|events| events.idle.as_mut().poll(cx).is_ready())
    }

    fn cut_short(&self) -> bool {
        self.close_delimited && self.events.as_ref().is_some_and(|events| !events.scanner.between_events())
    }
}

impl Body for Relay {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        let relay = self.get_mut();
        if relay.ended {
            return Poll::Ready(None);
        }
        match Pin::new(&mut relay.answer).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    relay.pass(data);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(_))) => relay.break_off("decode_broke_off"),
            Poll::Ready(None) if relay.cut_short() => relay.break_off("decode_broke_off"),
            Poll::Ready(None) => {
                relay.end();
                Poll::Ready(None)
            }
            Poll::Pending if relay.idle_is_over(cx) => relay.break_off("decode_idle_timeout"),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.answer.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.answer.size_hint()
    }
}

/// The event, or events, that tell a stream's reader that it ends here.
fn error_event(error: StreamError, code: &str) -> Bytes {
    let message = match code {
        "decode_idle_timeout" => "the decode engine fell silent in the middle of the stream",
        _ => "the decode engine ended the stream before its end",
    };
    let text = match error {
        StreamError::OpenAi => format!(
            "data: {{\"error\":{{\"message\":\"{message}\",\"type\":\"engine_error\",\"param\":null,\
             \"code\":\"{code}\"}}}}\n\ndata: [DONE]\n\n"
        ),
        StreamError::Responses => format!(
            "event: error\ndata: {{\"type\":\"error\",\"code\":\"{code}\",\"message\":\"{message}\",\
             \"param\":null}}\n\n"
        ),
        StreamError::Messages => format!(
            "event: error\ndata: {{\"type\":\"error\",\"error\":{{\"type\":\"api_error\",\
             \"message\":\"{message} ({code})\"}}}}\n\n"
        ),
    };
    Bytes::from(text)
}

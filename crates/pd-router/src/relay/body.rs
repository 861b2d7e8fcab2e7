//! The body that the client reads: decode's frames unchanged, unbuffered, back-pressure being the socket's
//! own. It holds the engine's count and the request's record to the last byte.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use thiserror::Error;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::cached::Cached;
use super::first::{First, Step};
use super::{Again, Settings, whole};
use crate::failure::code_word;
use crate::fleet::breaker::Verdict;
use crate::leg::decode::Answer;
use crate::observe::failures::{Blame, Cause};
use crate::observe::meter::Events;
use crate::observe::record::{Outcome, Record};
use crate::request::api::StreamError;
use crate::sse::SseScanner;

/// The engine broke its answer off where nothing could be said in its place; the client's transfer is
/// aborted.
#[derive(Debug, Error)]
#[error("the engine broke its answer off")]
pub struct BrokenOff;

type Next = Option<Result<Frame<Bytes>, BrokenOff>>;

/// An answer's body on its way.
#[derive(Debug)]
pub struct Relay {
    answer: Answer,
    record: Record,
    settings: Settings,
    scanner: Option<SseScanner>,
    first: First,
    cached: Option<Box<Cached>>,
    timer: Option<Pin<Box<Sleep>>>,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    broken: Option<&'static str>,
    leg_failed: bool,
    close_delimited: bool,
    ended: bool,
}

impl Relay {
    pub(super) fn new(
        answer: Answer,
        mut record: Record,
        settings: Settings,
        events: bool,
        again: Option<Box<dyn Again>>,
    ) -> Self {
        record.answered(answer.response.status().as_u16());
        if events {
            record.stream(answer.in_flight.engine().metrics());
        }
        let first_byte = events.then(|| Instant::now() + settings.first_byte_timeout);
        let until = first_byte.into_iter().chain(settings.deadline).min();
        let cached = answer.cached.map(Cached::new).map(Box::new);
        let mut relay = Self {
            cut: Box::pin(settings.cut.clone().cancelled_owned()),
            answer,
            record,
            settings,
            scanner: events.then(SseScanner::default),
            first: First::hold(again),
            cached,
            timer: until.map(|until| Box::pin(tokio::time::sleep_until(until))),
            broken: None,
            leg_failed: false,
            close_delimited: false,
            ended: false,
        };
        // hyper asks no body for a frame that says it is empty.
        if relay.answer.response.body().is_end_stream() {
            relay.end();
        }
        relay
    }

    pub(super) const fn close_delimited(mut self, close_delimited: bool) -> Self {
        self.close_delimited = close_delimited;
        self
    }

    /// What came from the engine: on to the client, or held, or the cause of another try.
    fn take(&mut self, data: Bytes) -> Option<Bytes> {
        let Some(scanner) = &mut self.scanner else {
            self.record.part(&data);
            return Some(data);
        };
        let now = Instant::now();
        scanner.feed(&data);
        let events = Events {
            data: scanner.data_events(),
            tokens: scanner.token_events(),
            between: scanner.between_events(),
        };
        self.record.frame(&data, events, now.into_std());
        let step = self.first.take(data, scanner);
        self.wait(now + self.settings.idle_timeout);
        match step {
            Step::Pass(data) => Some(data),
            Step::Wait => None,
            Step::Retry => {
                self.failed_leg();
                None
            }
        }
    }

    /// The engine failed this leg: counted once, also where its answer stands because no other try went well.
    fn failed_leg(&mut self) {
        if !std::mem::replace(&mut self.leg_failed, true) {
            self.answer.in_flight.engine().metrics().errors.inc();
        }
        self.answer.settle(Verdict::Failure);
    }

    /// The engine has until then to say something.
    fn wait(&mut self, until: Instant) {
        if let Some(timer) = &mut self.timer {
            timer.as_mut().reset(self.settings.deadline.map_or(until, |deadline| deadline.min(until)));
        }
    }

    fn end(&mut self) {
        self.ended = true;
        let success = self.answer.response.status().is_success();
        let (failed, incomplete) = self.scanner.as_ref().map_or((false, false), |scanner| {
            (scanner.failed(), success && self.settings.stream_error.is_some() && !scanner.done())
        });
        match (failed, success) {
            (true, true) => self.failed_leg(),
            // A status other than 2xx was judged at once.
            (true, false) => self.answer.settle(Verdict::Failure),
            (false, _) => self.answer.settle(whole(success)),
        }
        let outcome = if failed {
            Outcome::EngineError
        } else if incomplete {
            Outcome::IncompleteStream
        } else {
            Outcome::of_status(self.answer.response.status())
        };
        if outcome == Outcome::ClientError {
            let (leg, blame) = (self.answer.leg, Blame::Client);
            let code = format!("{}_status", code_word(leg));
            self.record.end_for(Cause { outcome, code, blame, leg: Some(leg) });
        } else {
            self.record.end(outcome);
        }
    }

    /// The engine is gone. Between two events the client is told in the stream; elsewhere the transfer is
    /// aborted, so that half an answer never looks like a whole one.
    fn break_off(&mut self, code: &'static str) -> Next {
        self.ended = true;
        let between = self.scanner.as_ref().is_some_and(SseScanner::between_events);
        let (outcome, blame, leg) = match code {
            "router_draining" => (Outcome::RouterError, Blame::Router, None),
            _ => (Outcome::EngineError, Blame::Engine, Some(self.answer.leg)),
        };
        self.record.end_for(Cause { outcome, code: code.to_owned(), blame, leg });
        match self.settings.stream_error.filter(|_| between) {
            Some(error) => Some(Ok(Frame::data(error_event(error, code)))),
            None => Some(Err(BrokenOff)),
        }
    }

    /// The engine failed: before the first event another try, after it the end.
    fn failed(&mut self, code: &'static str, eject: bool) -> Option<Next> {
        if self.scanner.as_ref().is_some_and(|scanner| scanner.done() && scanner.between_events()) {
            // Everything was said; only the framing's end is missing.
            self.end();
            return Some(None);
        }
        if eject {
            self.answer.in_flight.engine().eject("connection reset");
        }
        self.failed_leg();
        match self.first.retry() {
            Step::Retry => {
                self.broken = Some(code);
                None
            }
            Step::Pass(_) | Step::Wait => Some(self.break_off(code)),
        }
    }

    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Next> {
        loop {
            if let First::Retrying { .. } = self.first {
                match ready!(self.poll_retry(cx)) {
                    Some(end) => return Poll::Ready(end),
                    None => continue,
                }
            }
            let frame = match Pin::new(self.answer.response.body_mut()).poll_frame(cx) {
                Poll::Pending => return self.poll_limits(cx),
                Poll::Ready(Some(Ok(frame))) => frame,
                Poll::Ready(Some(Err(_))) => match self.failed("decode_broke_off", true) {
                    Some(end) => return Poll::Ready(end),
                    None => continue,
                },
                Poll::Ready(None) => return Poll::Ready(self.came_to_its_end()),
            };
            let data = match frame.into_data() {
                Ok(data) => data,
                Err(other) => return Poll::Ready(Some(Ok(other))),
            };
            if let Some(data) = self.take(data) {
                let last = self.answer.response.body().is_end_stream();
                if last {
                    self.end();
                }
                let data = self.edited(data, last);
                if last || !data.is_empty() {
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
            }
        }
    }

    /// What goes on of what was taken, with prefill's count where that is wanted.
    fn edited(&mut self, data: Bytes, last: bool) -> Bytes {
        match &mut self.cached {
            Some(cached) => cached.pass(data, last),
            None => data,
        }
    }

    fn came_to_its_end(&mut self) -> Next {
        let expects_end = self.settings.stream_error.is_some() && self.answer.response.status().is_success();
        let whole = self
            .scanner
            .as_ref()
            .is_none_or(|scanner| scanner.between_events() && (scanner.done() || !expects_end));
        // Where only the end of the connection ends an answer, an engine that dies looks the same.
        if self.close_delimited && !whole {
            self.failed_leg();
            return self.break_off("decode_broke_off");
        }
        let held = self.first.pass();
        let held = self.edited(held, true);
        self.end();
        (!held.is_empty()).then(|| Ok(Frame::data(held)))
    }

    /// Another try, under the headers that are out: its stream goes on in the place of the failed one.
    fn poll_retry(&mut self, cx: &mut Context<'_>) -> Poll<Option<Next>> {
        let First::Retrying { retrying, .. } = &mut self.first else { return Poll::Ready(None) };
        let (again, answer) = ready!(retrying.as_mut().poll(cx));
        match answer.filter(|answer| answer.response.status().is_success() && super::is_events(answer)) {
            Some(answer) => {
                self.cached = answer.cached.map(Cached::new).map(Box::new);
                self.answer = answer;
                self.scanner = Some(SseScanner::default());
                self.first = First::hold(Some(again));
                self.record.stream(self.answer.in_flight.engine().metrics());
                self.wait(Instant::now() + self.settings.first_byte_timeout);
                (self.broken, self.leg_failed) = (None, false);
                Poll::Ready(None)
            }
            None => Poll::Ready(self.give_up()),
        }
    }

    /// No other try: the error event of the failed one and its end, which the engine sent behind it; or the
    /// router's own, where the engine broke off.
    fn give_up(&mut self) -> Option<Next> {
        let error = self.first.pass();
        self.scanner = Some(SseScanner::default());
        if let Some(code) = self.broken.take() {
            return Some(self.break_off(code));
        }
        self.answer.response.body_mut().put_first(error);
        None
    }

    fn poll_limits(&mut self, cx: &mut Context<'_>) -> Poll<Next> {
        if self.cut.as_mut().poll(cx).is_ready() {
            return Poll::Ready(self.break_off("router_draining"));
        }
        let over = self.timer.as_mut().is_some_and(|timer| timer.as_mut().poll(cx).is_ready());
        if !over {
            return Poll::Pending;
        }
        let total = self.settings.deadline.is_some_and(|deadline| deadline <= Instant::now());
        if total {
            self.failed_leg();
            return Poll::Ready(self.break_off("request_timeout"));
        }
        match self.failed("decode_idle_timeout", false) {
            Some(end) => Poll::Ready(end),
            None => self.poll_answer(cx),
        }
    }
}

impl Body for Relay {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Next> {
        let relay = self.get_mut();
        let next = if relay.ended { Poll::Ready(None) } else { relay.poll_answer(cx) };
        if let Poll::Ready(Some(Ok(frame))) = &next {
            relay.record.sent(frame.data_ref().map_or(0, Bytes::len));
        }
        next
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }

    fn size_hint(&self) -> SizeHint {
        if self.scanner.is_some() || self.cached.is_some() {
            SizeHint::default()
        } else {
            self.answer.response.body().size_hint()
        }
    }
}

/// The event, or events, that tell a stream's reader that it ends here.
fn error_event(error: StreamError, code: &str) -> Bytes {
    let message = match code {
        "decode_idle_timeout" => {
            "the decode engine fell silent (--first-byte-timeout-secs, --idle-timeout-secs)"
        }
        "request_timeout" => "the request took longer than it may (--request-timeout-secs)",
        "router_draining" => "the router ends and does not wait any longer (--drain-timeout-secs)",
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

//! The body of a mock engine's answer: a document, or events that were written once and are sent to all.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use crate::api::Api;

/// Events that are kept written; beyond these they are written when they are sent.
const KEPT: u64 = 1024;

/// The events of one API.
#[derive(Clone, Debug)]
pub(super) struct Events {
    api: Api,
    kept: Arc<[Bytes]>,
}

impl Events {
    pub(super) fn of(api: Api) -> Self {
        Self { api, kept: (0..KEPT).map(|place| written(api, place)).collect() }
    }

    fn get(&self, place: u64) -> Bytes {
        let kept = usize::try_from(place).ok().and_then(|place| self.kept.get(place));
        kept.cloned().unwrap_or_else(|| written(self.api, place))
    }
}

fn written(api: Api, place: u64) -> Bytes {
    format!("data: {}\n\n", api.event(place)).into()
}

/// An answer's body.
#[derive(Debug)]
pub(super) enum Answer {
    /// One document.
    Whole(Option<Bytes>),
    /// Events.
    Events(Box<Stream>),
}

/// A stream in progress.
#[derive(Debug)]
pub(super) struct Stream {
    events: Events,
    next: u64,
    count: u64,
    pace: Pace,
}

#[derive(Debug)]
enum Pace {
    /// As fast as it goes, each event in a write of its own, as an engine that yields after each token does.
    Fast { yielded: bool },
    /// By the clock; a late event does not move the next.
    Every { interval: Duration, sleep: Pin<Box<Sleep>> },
}

impl Answer {
    pub(super) fn whole(body: impl Into<Bytes>) -> Self {
        Self::Whole(Some(body.into()))
    }

    pub(super) fn events(events: &Events, count: u64, interval_ms: u64) -> Self {
        let interval = Duration::from_millis(interval_ms);
        let pace = if interval.is_zero() {
            Pace::Fast { yielded: true }
        } else {
            Pace::Every { interval, sleep: Box::pin(tokio::time::sleep_until(Instant::now())) }
        };
        Self::Events(Box::new(Stream { events: events.clone(), next: 0, count, pace }))
    }
}

impl Stream {
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.next > self.count {
            return Poll::Ready(None);
        }
        match &mut self.pace {
            Pace::Fast { yielded } if !*yielded => {
                *yielded = true;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Pace::Fast { yielded } => *yielded = false,
            Pace::Every { interval, sleep } => {
                ready!(sleep.as_mut().poll(cx));
                // The last event and [DONE] come together, as from vLLM.
                if self.next + 1 < self.count {
                    let next = sleep.deadline() + *interval;
                    sleep.as_mut().reset(next);
                }
            }
        }
        let place = self.next;
        self.next += 1;
        let done = place == self.count;
        Poll::Ready(Some(if done { Bytes::from_static(b"data: [DONE]\n\n") } else { self.events.get(place) }))
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let data = match &mut *self {
            Self::Whole(body) => body.take(),
            Self::Events(stream) => ready!(stream.poll_event(cx)),
        };
        Poll::Ready(data.map(|data| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_none(),
            Self::Events(stream) => stream.next > stream.count,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => SizeHint::with_exact(body.as_ref().map_or(0, |body| body.len() as u64)),
            Self::Events(_) => SizeHint::default(),
        }
    }
}

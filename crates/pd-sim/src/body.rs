//! An answer's body: its frames at their times, and the faults that end it early.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::time::{Sleep, sleep_until};

use crate::engine::{Engine, Running};

/// What comes next.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// These bytes, after this time.
    Data(Duration, Bytes),
    /// Nothing, ever.
    Hang,
    /// The end of the connection: reset, or closed.
    Break {
        /// Whether by RST.
        reset: bool,
    },
}

/// Set to end the connection by RST rather than FIN.
pub(crate) type ResetFlag = Arc<AtomicBool>;

/// The connection is to end here.
#[derive(Debug)]
pub(crate) struct Broken;

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a fault ended the connection")
    }
}

impl std::error::Error for Broken {}

/// The request as the log and the counters know it; ends them when dropped.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) engine: Arc<Engine>,
    pub(crate) log: u64,
    pub(crate) reset: ResetFlag,
    pub(crate) ended: bool,
    pub(crate) running: Option<Running>,
}

impl Drop for Open {
    fn drop(&mut self) {
        let ended = self.ended;
        self.engine.log().change(self.log, |recorded| {
            recorded.finished = Some(Instant::now());
            recorded.closed_early = !ended;
        });
    }
}

/// Steps that are not known yet: the engine is still at work.
type Work = Pin<Box<dyn Future<Output = Vec<Step>> + Send>>;

/// The body.
pub(crate) struct SimBody {
    work: Option<Work>,
    steps: VecDeque<Step>,
    /// When the next step is due; steps are timed from one another, not from when each was sent.
    due: Instant,
    sleep: Option<Pin<Box<Sleep>>>,
    open: Open,
}

impl SimBody {
    /// A body that is known.
    pub(crate) fn new(steps: impl IntoIterator<Item = Step>, mut open: Open) -> SimBody {
        let steps: VecDeque<_> = steps.into_iter().collect();
        open.ended = steps.is_empty();
        SimBody { work: None, steps, due: Instant::now(), sleep: None, open }
    }

    /// A body that follows a head which is sent at once, as a real engine's stream does.
    pub(crate) fn later(work: impl Future<Output = Vec<Step>> + Send + 'static, open: Open) -> SimBody {
        let mut body = SimBody::new([], open);
        body.open.ended = false;
        body.work = Some(Box::pin(work));
        body
    }
}

impl Body for SimBody {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let body = self.get_mut();
        if let Some(work) = &mut body.work {
            let Poll::Ready(steps) = work.as_mut().poll(cx) else { return Poll::Pending };
            (body.work, body.steps, body.due) = (None, steps.into(), Instant::now());
        }
        match body.steps.front() {
            None => return Poll::Ready(None),
            Some(Step::Hang) => return Poll::Pending,
            Some(Step::Break { reset }) => {
                body.open.reset.store(*reset, Ordering::Relaxed);
                body.open.ended = true;
                return Poll::Ready(Some(Err(Broken)));
            }
            Some(Step::Data(delay, _)) if !delay.is_zero() => {
                let due = body.due + *delay;
                if due > Instant::now() {
                    let sleep = body.sleep.get_or_insert_with(|| Box::pin(sleep_until(due.into())));
                    if sleep.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                }
                (body.sleep, body.due) = (None, due);
            }
            Some(Step::Data(..)) => {}
        }
        let next = body.steps.pop_front();
        body.open.ended = body.steps.is_empty();
        match next {
            Some(Step::Data(_, bytes)) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            Some(Step::Hang | Step::Break { .. }) | None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.work.is_none() && self.steps.is_empty()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        match self.steps.front() {
            None if self.work.is_none() => http_body::SizeHint::with_exact(0),
            None | Some(_) => http_body::SizeHint::default(),
        }
    }
}

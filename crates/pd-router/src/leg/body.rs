//! The bodies of a leg: the request's chain of slices, and the engine's answer with its connection.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::pool::Lease;
use crate::request::edit::Chain;

/// A request body of known length, sent slice by slice.
#[derive(Debug)]
pub struct ChainBody {
    parts: smallvec::IntoIter<[Bytes; 8]>,
    left: u64,
}

impl ChainBody {
    /// A body of these slices.
    #[must_use]
    pub fn new(chain: Chain) -> Self {
        let left = chain.iter().map(|part| part.len() as u64).sum();
        Self { parts: chain.into_iter(), left }
    }
}

impl Body for ChainBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let part = self.parts.next();
        self.left -= part.as_ref().map_or(0, |part| part.len() as u64);
        Poll::Ready(part.map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// An engine's answer as it comes. Read to its end, it gives the connection back; dropped before, it closes
/// the connection, which is how the engine learns that nobody reads on.
#[derive(Debug)]
pub struct AnswerBody {
    incoming: Incoming,
    lease: Option<Lease>,
    first: Option<Frame<Bytes>>,
}

impl AnswerBody {
    pub(super) const fn new(incoming: Incoming, lease: Lease) -> Self {
        Self { incoming, lease: Some(lease), first: None }
    }

    /// Waits for the first bytes, which then come first again: while none went on, all can be done again.
    ///
    /// # Errors
    /// The connection ended.
    pub async fn await_first(&mut self) -> Result<(), hyper::Error> {
        if self.first.is_none() {
            self.first = std::future::poll_fn(|cx| self.poll_incoming(cx)).await.transpose()?;
        }
        Ok(())
    }

    /// Puts bytes in front of what is still to come.
    pub fn put_first(&mut self, bytes: Bytes) {
        self.first = Some(Frame::data(bytes));
    }

    fn poll_incoming(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(cx));
        if frame.is_none() || self.incoming.is_end_stream() {
            if let Some(lease) = self.lease.take() {
                lease.give_back();
            }
        } else if matches!(frame, Some(Err(_))) {
            self.lease = None;
        }
        Poll::Ready(frame)
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(Ok(first))),
            None => self.poll_incoming(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let held = self.first.as_ref().and_then(Frame::data_ref).map_or(0, |data| data.len() as u64);
        let rest = self.incoming.size_hint();
        let mut both = SizeHint::new();
        both.set_lower(held + rest.lower());
        if let Some(upper) = rest.upper() {
            both.set_upper(held + upper);
        }
        both
    }
}

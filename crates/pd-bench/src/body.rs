//! A request body as a chain of slices with an exact length: what is edited is never copied.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

/// Slices that are sent one after another.
#[derive(Clone, Debug, Default)]
pub struct Chain {
    parts: VecDeque<Bytes>,
    bytes: u64,
}

impl Chain {
    /// A body of these parts; empty ones are left out.
    #[must_use]
    pub fn of(parts: impl IntoIterator<Item = Bytes>) -> Self {
        let parts: VecDeque<Bytes> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        let bytes = parts.iter().map(|part| part.len() as u64).sum();
        Self { parts, bytes }
    }

    /// The parts in one piece.
    #[must_use]
    pub fn concat(&self) -> Vec<u8> {
        self.parts.iter().flat_map(|part| part.iter().copied()).collect()
    }
}

impl Body for Chain {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(part) = self.parts.pop_front() else { return Poll::Ready(None) };
        self.bytes = self.bytes.saturating_sub(part.len() as u64);
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.parts.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes)
    }
}

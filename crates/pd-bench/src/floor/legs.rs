//! Hand-kept connections to one pool of engines, in turns, one set a runtime.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, HeaderValue};
use http::{Method, Request, Response, Uri};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use parking_lot::Mutex;
use thiserror::Error;

use crate::body::Chain;
use crate::dial::dial;

/// Why a leg failed.
#[derive(Debug, Error)]
pub(super) enum LegError {
    #[error(transparent)]
    Connect(#[from] std::io::Error),
    #[error(transparent)]
    Http(#[from] hyper::Error),
    #[error("prefill gave no kv_transfer_params")]
    NoHandoff,
    #[error("no engine")]
    NoEngine,
}

/// The engines of one pool.
#[derive(Debug)]
pub(super) struct Legs {
    engines: Vec<Arc<Shelf>>,
    next: AtomicUsize,
}

#[derive(Debug)]
struct Shelf {
    address: SocketAddr,
    host: HeaderValue,
    idle: Mutex<Vec<SendRequest<Chain>>>,
}

impl Legs {
    pub(super) fn new(addresses: &[SocketAddr]) -> Self {
        let shelf = |address: &SocketAddr| {
            let host = HeaderValue::try_from(address.to_string());
            let host = host.unwrap_or(HeaderValue::from_static("engine"));
            Arc::new(Shelf { address: *address, host, idle: Mutex::default() })
        };
        Self { engines: addresses.iter().map(shelf).collect(), next: AtomicUsize::new(0) }
    }

    /// Sends a body to the next engine and waits for the head of its answer.
    pub(super) async fn exchange(&self, uri: Uri, body: Chain) -> Result<Response<Relay>, LegError> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let shelf = self.engines.get(turn % self.engines.len().max(1)).ok_or(LegError::NoEngine)?;
        let mut sender = shelf.sender().await?;
        let mut request = Request::new(body);
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri;
        request.headers_mut().insert(HOST, shelf.host.clone());
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let answer = sender.send_request(request).await?;
        let lease = (Arc::clone(shelf), sender);
        Ok(answer.map(|body| Relay { body, lease: Some(lease) }))
    }
}

impl Shelf {
    async fn sender(&self) -> Result<SendRequest<Chain>, LegError> {
        loop {
            let idle = self.idle.lock().pop();
            let Some(mut sender) = idle else { break };
            if sender.ready().await.is_ok() {
                return Ok(sender);
            }
        }
        Ok(dial(self.address).await?)
    }
}

/// An engine's answer on its way; its connection goes back at the end.
#[derive(Debug)]
pub(super) struct Relay {
    body: Incoming,
    lease: Option<(Arc<Shelf>, SendRequest<Chain>)>,
}

impl Body for Relay {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        let ended = match &polled {
            Poll::Ready(Some(Ok(_))) => self.body.is_end_stream(),
            Poll::Ready(None) => true,
            Poll::Ready(Some(Err(_))) | Poll::Pending => false,
        };
        if ended && let Some((shelf, sender)) = self.lease.take() {
            shelf.idle.lock().push(sender);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

//! The floor: about the least that a prefill/decode router in Rust can cost. A hyper server with hand-kept
//! hyper connections on two current-thread runtimes; it reads the body, edits bytes, makes the two legs and
//! passes frames on. No policy but turns, no metrics, no health, no retries, no limits: it is a measure to
//! compare with and nothing to run.

mod edit;
mod legs;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

use crate::workers::Workers;
use legs::{LegError, Legs, Relay};

/// Runtimes of the floor.
pub const THREADS: usize = 2;

type Answer = Response<Either<Full<Bytes>, Relay>>;

/// Serves without end.
///
/// # Errors
/// The system refused a thread.
pub async fn serve(
    listener: TcpListener,
    prefill: Vec<SocketAddr>,
    decode: Vec<SocketAddr>,
) -> io::Result<()> {
    let workers = Workers::start(THREADS)?;
    let pools = || Arc::new((Legs::new(&prefill), Legs::new(&decode)));
    let pools: Arc<[_]> = (0..workers.count()).map(|_| pools()).collect();
    let serve = move |worker: usize, stream| {
        let pools = pools.get(worker).cloned();
        async move {
            if let Some(pools) = pools {
                connection(stream, pools).await;
            }
        }
    };
    workers.accept(listener, serve).await;
    Ok(())
}

async fn connection(stream: TcpStream, pools: Arc<(Legs, Legs)>) {
    let service = service_fn(move |request| {
        let pools = Arc::clone(&pools);
        async move { Ok::<_, std::convert::Infallible>(answer(request, &pools.0, &pools.1).await) }
    });
    http1::Builder::new().serve_connection(TokioIo::new(stream), service).await.ok();
}

async fn answer(request: Request<Incoming>, prefill: &Legs, decode: &Legs) -> Answer {
    if request.method() == Method::GET {
        return say(StatusCode::OK, "{}".into());
    }
    both_legs(request, prefill, decode)
        .await
        .unwrap_or_else(|error| say(StatusCode::BAD_GATEWAY, format!("{{\"error\":\"{error}\"}}").into()))
}

async fn both_legs(request: Request<Incoming>, prefill: &Legs, decode: &Legs) -> Result<Answer, LegError> {
    let (head, body) = request.into_parts();
    let body = whole(&head.headers, body).await?;
    let first = prefill.exchange(head.uri.clone(), edit::prefill(&body)).await?;
    if first.status() != StatusCode::OK {
        return Ok(first.map(Either::Right));
    }
    let said = whole_relay(first.into_body()).await?;
    let handoff = edit::handoff(&said).ok_or(LegError::NoHandoff)?;
    let (mut head, body) = decode.exchange(head.uri, edit::decode(&body, handoff)).await?.into_parts();
    let mut relayed = Response::new(Either::Right(body));
    *relayed.status_mut() = head.status;
    if let Some(kind) = head.headers.remove(CONTENT_TYPE) {
        relayed.headers_mut().insert(CONTENT_TYPE, kind);
    }
    Ok(relayed)
}

/// A body in one piece, copied once into room of its length.
async fn whole(headers: &http::HeaderMap, mut body: Incoming) -> Result<Bytes, LegError> {
    let length = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        if all.is_empty() && length == Some(data.len()) {
            return Ok(data);
        }
        all.reserve(length.unwrap_or(0).saturating_sub(all.len()));
        all.extend_from_slice(&data);
    }
    Ok(all.freeze())
}

/// A prefill answer in one piece; its connection goes back.
async fn whole_relay(mut body: Relay) -> Result<Bytes, LegError> {
    let mut all = Bytes::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        all = if all.is_empty() { data } else { [all, data].concat().into() };
    }
    Ok(all)
}

fn say(status: StatusCode, text: Bytes) -> Answer {
    let mut answer = Response::new(Either::Left(Full::new(text)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

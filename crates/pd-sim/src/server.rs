//! The HTTP side: accepts, reads a request whole, answers it, and ends connections as faults demand.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, SERVER, VARY};
use http::{Method, Request, Response, Uri};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::SockRef;
use tokio::net::TcpStream;

use crate::ask::Api;
use crate::body::{Broken, Open, ResetFlag, SimBody, Step};
use crate::engine::Engine;
use crate::{infer, pages};

/// Accepts until dropped.
pub(crate) async fn serve(engine: Arc<Engine>) {
    loop {
        let (stream, shut) = engine.door().accept().await;
        let served = connection(stream, Arc::clone(&engine));
        // Dropping a connection resets it.
        engine.tasks().spawn(async move { shut.run_until_cancelled_owned(served).await.unwrap_or_default() });
    }
}

struct Connected(Arc<Engine>);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A stream whose end is a reset while the flag is set, as when a process dies.
struct Guarded {
    stream: std::net::TcpStream,
    reset: ResetFlag,
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if self.reset.load(Ordering::Relaxed) {
            // Without it the peer sees FIN in the place of RST.
            SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)).ok();
        }
    }
}

async fn connection(stream: TcpStream, engine: Arc<Engine>) {
    engine.connections.fetch_add(1, Ordering::Relaxed);
    let _connected = Connected(Arc::clone(&engine));
    stream.set_nodelay(true).ok();
    // Set while requests run: a task that is dropped then is an engine that dies.
    let reset: ResetFlag = Arc::new(AtomicBool::new(true));
    let Ok(stream) = stream.into_std() else { return };
    let Ok(second) = stream.try_clone() else { return };
    let _guarded = Guarded { stream: second, reset: Arc::clone(&reset) };
    let Ok(stream) = TcpStream::from_std(stream) else { return };
    let keep_alive = engine.config().keep_alive;
    let flag = Arc::clone(&reset);
    let service = service_fn(move |request| handle(Arc::clone(&engine), request, Arc::clone(&flag)));
    let ended = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(keep_alive)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if ended.is_ok() || ended.is_err_and(|error| error.is_timeout() || error.is_incomplete_message()) {
        reset.store(false, Ordering::Relaxed);
    }
}

async fn handle(
    engine: Arc<Engine>,
    request: Request<Incoming>,
    reset: ResetFlag,
) -> Result<Response<SimBody>, Broken> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Broken)?.to_bytes();
    let path = parts.uri.path();
    let log = if parts.method == Method::POST && !path.starts_with("/sim/") {
        engine.log().begin(&parts, &body, engine.config().record_max)
    } else {
        0
    };
    let open = Open { engine: Arc::clone(&engine), log, reset, ended: false, running: None };
    let mut response = match Api::on(path).filter(|_| parts.method == Method::POST) {
        Some(api) => infer::infer(api, &parts.headers, body, open).await?,
        None => page(&engine, &parts.method, &parts.uri, &body, open).await,
    };
    response.headers_mut().insert(SERVER, HeaderValue::from_static("uvicorn"));
    response.headers_mut().insert(VARY, HeaderValue::from_static("Origin"));
    let status = response.status().as_u16();
    engine.log().change(log, |recorded| recorded.status = Some(status));
    Ok(response)
}

async fn page(
    engine: &Arc<Engine>,
    method: &Method,
    uri: &Uri,
    body: &Bytes,
    open: Open,
) -> Response<SimBody> {
    let path = uri.path();
    if path == "/health" {
        let delay = engine.faults().health_delay();
        tokio::time::sleep(delay).await;
    }
    let page = pages::answer(engine, method, uri, body);
    let length = page.text.len();
    let empty = page.text.is_empty() || *method == Method::HEAD;
    let steps = if empty { Vec::new() } else { vec![Step::Data(Duration::ZERO, Bytes::from(page.text))] };
    let mut response = Response::new(SimBody::new(steps, open));
    *response.status_mut() = page.status;
    if length > 0 {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(page.kind));
    }
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    if let Some(allow) = page.allow {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    }
    response
}

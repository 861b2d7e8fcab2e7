//! The paths that clients see, and the layer around them all: a request id in, the same id out.

pub mod cors;
pub mod endpoints;

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, any, get, post};
use cors::Cors;
use endpoints::{ENDPOINTS, Who};
use http::header::{CONNECTION, HeaderName, HeaderValue};
use tower::{Layer, Service};

use crate::admin::{self, Admin};
use crate::dispatch::{self, Context, Failed};
use crate::failure::Fault;
use crate::ids::{RequestId, X_REQUEST_ID};
use crate::observe::failures::Cause;
use crate::observe::record::Record;
use crate::observe::{Observe, UNKNOWN};
use crate::relay::body::Relay;
use crate::request::view::Route;
use crate::respond;

/// Whether a path is served already, by one engine or by the router itself.
#[must_use]
pub fn is_taken(path: &str) -> bool {
    let parts = |path: &'static str| path.split_once('{').map_or((path, false), |(start, _)| (start, true));
    ENDPOINTS.iter().any(|endpoint| match parts(endpoint.path) {
        (start, true) => path.starts_with(start),
        (whole, false) => path == whole,
    })
}

/// What is done with every request, whatever its path.
#[derive(Clone, Debug)]
pub struct Front {
    /// The headers that may bring a request's id; the first that brings a good one counts.
    pub request_id_headers: Arc<[HeaderName]>,
    /// Which sites' pages may call.
    pub cors: Arc<Cors>,
}

/// What the handlers work with.
#[derive(Clone, Debug)]
struct Edge {
    context: Arc<Context>,
}

/// All paths of one worker.
pub fn router(context: Arc<Context>, routes: &[Arc<Route>], admin: &Arc<Admin>, front: &Front) -> Router {
    let mut router = Router::new();
    for route in routes {
        let served = Arc::clone(route);
        let handler = move |State(edge): State<Edge>, id: axum::Extension<RequestId>, request: Request| {
            let route = Arc::clone(&served);
            async move { finish(dispatch::inference(&edge.context, &route, &id.0, request).await) }
        };
        router = router.route(&route.path, only("POST", post(handler)));
    }
    for endpoint in ENDPOINTS.iter().filter(|endpoint| endpoint.who == Who::AnyEngine) {
        let route = match endpoint.method {
            "GET" => only("GET, HEAD", get(one_hop)),
            _ => only("POST", post(one_hop)),
        };
        router = router.route(endpoint.path, route);
    }
    let layer = RequestIdLayer { observe: Arc::clone(&context.observe), front: front.clone() };
    let router = router.with_state(Edge { context });
    router.merge(admin::router(admin)).fallback(unknown_path).layer(layer)
}

/// What answers while as many connections are open as may: the router's own paths; any other is refused.
/// Each answer ends its connection.
pub fn full(admin: &Arc<Admin>, front: &Front) -> Router {
    let close = |mut response: Response| async move {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        response
    };
    admin::router(admin)
        .fallback(|| async { not_served(&Fault::ConnectionsFull) })
        .layer(axum::middleware::map_response(close))
        .layer(RequestIdLayer { observe: Arc::clone(&admin.observe), front: front.clone() })
}

/// A route whose other methods are refused with the list of those that it takes.
pub fn only<S>(allow: &'static str, route: MethodRouter<S, Infallible>) -> MethodRouter<S, Infallible>
where
    S: Clone + Send + Sync + 'static,
{
    route.fallback_service(any(move || async move { not_served(&Fault::WrongMethod { allow }) }))
}

async fn one_hop(State(edge): State<Edge>, id: axum::Extension<RequestId>, request: Request) -> Response {
    finish(dispatch::one_hop(&edge.context, &id.0, request).await)
}

async fn unknown_path() -> Response {
    not_served(&Fault::UnknownPath)
}

/// The mark of an answer to what no handler takes, to be counted by the layer around them all.
#[derive(Clone, Debug)]
struct NotServed(Cause);

fn not_served(fault: &Fault) -> Response {
    let (mut response, cause) = respond::fault(fault);
    response.extensions_mut().insert(NotServed(cause));
    response
}

fn finish(result: Result<http::Response<Relay>, Failed>) -> Response {
    match result {
        Ok(response) => response.map(Body::new).into_response(),
        Err(Failed { fault, mut record }) => {
            let (response, cause) = respond::fault(&fault);
            record.answered(response.status().as_u16());
            record.end_for(cause);
            response
        }
    }
}

/// Gives every request an id and every answer the same, says what browsers need to hear, and counts what no
/// handler takes.
#[derive(Clone, Debug)]
struct RequestIdLayer {
    observe: Arc<Observe>,
    front: Front,
}

impl<S> Layer<S> for RequestIdLayer {
    type Service = WithRequestId<S>;

    fn layer(&self, inner: S) -> Self::Service {
        WithRequestId { inner, observe: Arc::clone(&self.observe), front: self.front.clone() }
    }
}

/// The service of [`RequestIdLayer`].
#[derive(Clone, Debug)]
struct WithRequestId<S> {
    inner: S,
    observe: Arc<Observe>,
    front: Front,
}

impl<S> Service<Request> for WithRequestId<S>
where
    S: Service<Request, Response = Response, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let id = RequestId::from_client(request.headers(), &self.front.request_id_headers);
        let cors = self.front.cors.of(&request);
        if let Some(mut response) = cors.as_ref().and_then(|said| said.preflight(&request)) {
            response.headers_mut().insert(X_REQUEST_ID, id.as_header().clone());
            return Box::pin(std::future::ready(Ok(response)));
        }
        request.extensions_mut().insert(id.clone());
        let answer = self.inner.call(request);
        let observe = Arc::clone(&self.observe);
        Box::pin(async move {
            let mut response = answer.await?;
            if let Some(NotServed(cause)) = response.extensions_mut().remove() {
                let mut record = Record::open(&observe, UNKNOWN, &id, None);
                record.answered(response.status().as_u16());
                record.end_for(cause);
            }
            if let Some(said) = cors {
                said.mark(response.headers_mut());
            }
            response.headers_mut().insert(X_REQUEST_ID, id.as_header().clone());
            Ok(response)
        })
    }
}

//! The router's own paths: is it alive, can it serve, what does it count.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde_json::json;

use crate::edge::only;
use crate::fleet::Fleet;
use crate::observe::Observe;
use crate::respond::json_response;

/// What these paths read.
#[derive(Debug)]
pub struct Admin {
    /// The engines.
    pub fleet: Arc<Fleet>,
    /// The metric families.
    pub observe: Arc<Observe>,
}

/// The router's own paths.
pub fn router(admin: &Arc<Admin>) -> Router {
    Router::new()
        .route("/liveness", only("GET, HEAD", get(|| async { "OK" })))
        .route("/health", only("GET, HEAD", get(readiness)))
        .route("/readiness", only("GET, HEAD", get(readiness)))
        .with_state(Arc::clone(admin))
        .merge(metrics_router(admin))
}

/// `/metrics` alone, for the Prometheus port.
pub fn metrics_router(admin: &Arc<Admin>) -> Router {
    Router::new().route("/metrics", only("GET, HEAD", get(metrics))).with_state(Arc::clone(admin))
}

async fn readiness(State(admin): State<Arc<Admin>>) -> Response {
    let fleet = admin.fleet.snapshot();
    let pool = |engines: usize| json!({"healthy": engines, "total": engines});
    json_response(
        StatusCode::OK,
        &json!({
            "status": "ready",
            "prefill": pool(fleet.prefill.len()),
            "decode": pool(fleet.decode.len()),
        }),
    )
}

async fn metrics(State(admin): State<Arc<Admin>>) -> Response {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], admin.observe.render()).into_response()
}

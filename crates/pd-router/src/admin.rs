//! The router's own paths: is it alive, can it serve, what does it count.

pub mod control;
pub mod fan_out;
pub mod guard;

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use control::{CONTROLS, Control};
use fan_out::FanOut;
use guard::AdminKey;
use http::header::CONTENT_TYPE;
use http::{Method, StatusCode};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::admit;
use crate::edge::only;
use crate::failure::Fault;
use crate::fleet::Fleet;
use crate::ids::Role;
use crate::observe::Observe;
use crate::plan::Planner;
use crate::respond::{self, json_response};
use crate::ui;

/// What these paths read.
#[derive(Debug)]
pub struct Admin {
    /// Cancelled when the router is about to end.
    pub draining: CancellationToken,
    /// The engines.
    pub fleet: Arc<Fleet>,
    /// The policies.
    pub planner: Arc<Planner>,
    /// The metric families.
    pub observe: Arc<Observe>,
    /// What changes to the fleet need.
    pub key: Option<AdminKey>,
    /// The limits on bodies.
    pub admit: admit::Settings,
    /// How engines are told something.
    pub fan_out: FanOut,
}

/// The router's own paths, but for those that go to every engine.
const PATHS: [&str; 5] = ["/liveness", "/health", "/readiness", "/metrics", "/finish_session"];

/// Whether a path is the router's own.
#[must_use]
pub fn is_own(path: &str) -> bool {
    PATHS.contains(&path) || ui::PATHS.contains(&path) || CONTROLS.iter().any(|control| control.path == path)
}

/// The router's own paths, served.
pub fn router(admin: &Arc<Admin>) -> Router {
    Router::new()
        .route("/liveness", only("GET, HEAD", get(|| async { "OK" })))
        .route("/health", only("GET, HEAD", get(readiness)))
        .route("/readiness", only("GET, HEAD", get(readiness)))
        .route("/finish_session", only("POST", post(finish_session)))
        .with_state(Arc::clone(admin))
        .merge(metrics_router(admin))
        .merge(control_router(admin))
}

/// What changes the fleet or its engines, behind the guard.
fn control_router(admin: &Arc<Admin>) -> Router {
    let mut router = Router::new();
    for control in &CONTROLS {
        let handler = move |State(admin): State<Arc<Admin>>, request: Request| tell(admin, control, request);
        let method = if control.method == Method::GET { get(handler) } else { post(handler) };
        let allow = if control.method == Method::GET { "GET, HEAD" } else { "POST" };
        router = router.route(control.path, only(allow, method));
    }
    let guard = axum::middleware::from_fn_with_state(admin.key.clone(), guard::guard);
    router.route_layer(guard).with_state(Arc::clone(admin))
}

/// Sends a call to the engines.
async fn tell(admin: Arc<Admin>, control: &'static Control, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    match admit::receive(&admin.admit, &parts.headers, body).await {
        Ok((body, _room)) => {
            let query = parts.uri.query().unwrap_or_default();
            admin.fan_out.clone().call(control, query, &parts.headers, body).await
        }
        Err(fault) => respond::fault(&fault).0,
    }
}

/// What only reads, for the Prometheus port: `/metrics` and the page.
pub fn metrics_router(admin: &Arc<Admin>) -> Router {
    let metrics = Router::new().route("/metrics", only("GET, HEAD", get(metrics)));
    metrics.with_state(Arc::clone(admin)).merge(ui::router(admin))
}

/// Lets the policies forget a session; done for a session that nobody knows, too.
async fn finish_session(
    State(admin): State<Arc<Admin>>,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    let Some(session) = query.get("session_id").filter(|session| !session.is_empty()) else {
        return respond::fault(&Fault::Query { name: "session_id" }).0;
    };
    admin.planner.finish(session);
    json_response(StatusCode::OK, &json!({"status": "ok", "session_id": session}))
}

/// Ready while each pool has an engine that is up and the router does not end.
async fn readiness(State(admin): State<Arc<Admin>>) -> Response {
    let fleet = admin.fleet.snapshot();
    let pool = |role| json!({"healthy": fleet.up(role), "total": fleet.pool(role).len()});
    let empty = [Role::Prefill, Role::Decode].into_iter().find(|role| !fleet.can_serve(*role));
    let reason = match empty {
        _ if admin.draining.is_cancelled() => Some("the router is about to end".to_owned()),
        Some(role) => Some(format!("no {role} engine is up")),
        None => None,
    };
    let engines: Vec<_> = fleet.prefill.iter().chain(&fleet.decode).collect();
    let down: Vec<_> = engines
        .iter()
        .filter(|engine| !engine.up())
        .map(|engine| json!({"url": engine.url().as_str(), "role": engine.role().as_str(), "state": engine.health().as_str()}))
        .collect();
    let document = json!({
        "status": if reason.is_none() { "ready" } else { "not_ready" },
        "reason": reason,
        "prefill": pool(Role::Prefill),
        "decode": pool(Role::Decode),
        "down": down,
    });
    json_response(if reason.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, &document)
}

/// Rendered off the worker, whose streams would wait for it.
async fn metrics(State(admin): State<Arc<Admin>>) -> Response {
    let text = tokio::task::spawn_blocking(move || admin.observe.render()).await.unwrap_or_default();
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

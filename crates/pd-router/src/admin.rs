//! The router's own paths: is it alive, can it serve, what does it count.

pub mod control;
pub mod fan_out;
pub mod guard;
pub mod workers;

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use control::{CONTROLS, Control};
use fan_out::FanOut;
use guard::AdminKey;
use http::header::CONTENT_TYPE;
use http::{Method, StatusCode};
use serde_json::{Map, json};
use tokio_util::sync::CancellationToken;

use crate::admit;
use crate::edge::only;
use crate::failure::Fault;
use crate::fleet::Fleet;
use crate::ids::Role;
use crate::observe::Observe;
use crate::plan::Planner;
use crate::respond::{self, json_response};
use crate::roster::Roster;
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
    /// Who is in the fleet.
    pub roster: Arc<Roster>,
    /// The names of the policies of the prefill and the decode pool.
    pub policies: [&'static str; 2],
    /// Whether `/health` answers as vllm-router's does.
    pub strict_health: bool,
    /// What changes to the fleet need.
    pub key: Option<AdminKey>,
    /// The limits on bodies.
    pub admit: admit::Settings,
    /// How engines are told something.
    pub fan_out: FanOut,
}

/// The router's own paths, served.
pub fn router(admin: &Arc<Admin>) -> Router {
    Router::new()
        .route("/liveness", only("GET, HEAD", get(|| async { "OK" })))
        .route("/health", only("GET, HEAD", get(health)))
        .route("/readiness", only("GET, HEAD", get(readiness)))
        .route("/finish_session", only("POST", post(finish_session)))
        .route("/list_workers", only("GET, HEAD", get(workers::urls)))
        .route("/get_loads", only("GET, HEAD", get(workers::loads)))
        .route("/get_server_info", only("GET, HEAD", get(workers::server_info)))
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
    let fleet = post(workers::add).layer(guard.clone()).get(workers::list);
    let engine = delete(workers::remove).post(workers::drain).layer(guard.clone()).get(workers::one);
    router
        .route("/add_worker", only("POST", post(workers::add_by_query)))
        .route("/remove_worker", only("POST", post(workers::remove_by_query)))
        .route_layer(guard)
        .route("/workers", only("GET, HEAD, POST", fleet))
        .route("/workers/{*url}", only("GET, HEAD, DELETE, POST", engine))
        .with_state(Arc::clone(admin))
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

/// As readiness or, with `--strict-health`, as vllm-router: only while every engine is up.
async fn health(admin: State<Arc<Admin>>) -> Response {
    if !admin.strict_health {
        return readiness(admin).await;
    }
    let fleet = admin.fleet.snapshot();
    let down: Vec<String> = fleet
        .prefill
        .iter()
        .chain(&fleet.decode)
        .filter(|engine| !engine.up())
        .map(|engine| {
            let role = match engine.role() {
                Role::Prefill => "Prefill",
                Role::Decode => "Decode",
                Role::Regular => "Regular",
            };
            format!("{role}: {}", engine.url())
        })
        .collect();
    if down.is_empty() && !admin.draining.is_cancelled() {
        return "All servers healthy".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("Unhealthy servers: {down:?}")).into_response()
}

/// Ready while each pool that the router has has an engine that is up and the router does not end.
async fn readiness(State(admin): State<Arc<Admin>>) -> Response {
    let fleet = admin.fleet.snapshot();
    let pool = |role| json!({"healthy": fleet.up(role), "total": fleet.pool(role).len()});
    let roles = admin.fleet.pools().roles();
    let empty = roles.iter().find(|role| !fleet.can_serve(**role));
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
    let (status, word) = match reason {
        None => (StatusCode::OK, "ready"),
        Some(_) => (StatusCode::SERVICE_UNAVAILABLE, "not_ready"),
    };
    let mut document =
        Map::from_iter([("status".to_owned(), json!(word)), ("reason".to_owned(), json!(reason))]);
    document.extend(roles.iter().map(|role| (role.as_str().to_owned(), pool(*role))));
    document.insert("down".to_owned(), down.into());
    json_response(status, &document.into())
}

/// Rendered off the worker, whose streams would wait for it.
async fn metrics(State(admin): State<Arc<Admin>>) -> Response {
    let text = tokio::task::spawn_blocking(move || admin.observe.render()).await.unwrap_or_default();
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

//! The fleet as others see it and change it, under vllm-router's names.

use std::sync::Arc;

use axum::extract::{Path, Query, Request, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Admin;
use crate::admit;
use crate::failure::Fault;
use crate::fleet::Pools;
use crate::fleet::engine::Engine;
use crate::fleet::url::EngineUrl;
use crate::ids::Role;
use crate::respond::{self, json_response};
use crate::roster::Refused;

type Answer = Result<Response, Refusal>;

/// A fault as an answer.
#[derive(Debug)]
pub struct Refusal(Fault);

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Self(fault)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        respond::fault(&self.0).0
    }
}

/// The longest description of an engine, in bytes.
const DESCRIPTION_BYTES_MAX: usize = 64 * 1024;

fn ok(document: &Value) -> Response {
    json_response(StatusCode::OK, document)
}

/// An engine to take in, as a body or a query describes it.
#[derive(Debug, Deserialize)]
pub struct New {
    url: Option<String>,
    #[serde(alias = "role")]
    worker_type: Option<String>,
    /// What vllm-router takes and this router has no use for.
    #[serde(flatten)]
    ignored: Map<String, Value>,
}

/// An engine that is named in the query.
#[derive(Debug, Deserialize)]
pub struct Named {
    url: Option<String>,
}

/// Every engine.
pub async fn list(State(admin): State<Arc<Admin>>) -> Response {
    let fleet = admin.fleet.snapshot();
    let workers: Vec<Value> = fleet.prefill.iter().chain(&fleet.decode).map(worker).collect();
    let roles = admin.fleet.pools().roles();
    let count = |role| if roles.contains(&role) { fleet.pool(role).len() } else { 0 };
    ok(&json!({
        "total": workers.len(),
        "workers": workers,
        "stats": {
            "prefill_count": count(Role::Prefill),
            "decode_count": count(Role::Decode),
            "regular_count": count(Role::Regular),
        },
    }))
}

/// Every engine's base URL.
pub async fn urls(State(admin): State<Arc<Admin>>) -> Response {
    let fleet = admin.fleet.snapshot();
    let urls: Vec<&str> =
        fleet.prefill.iter().chain(&fleet.decode).map(|engine| engine.url().as_str()).collect();
    ok(&json!({ "urls": urls }))
}

/// How many requests each engine has by the router's own count.
pub async fn loads(State(admin): State<Arc<Admin>>) -> Response {
    let fleet = admin.fleet.snapshot();
    let loads: Map<String, Value> = fleet
        .prefill
        .iter()
        .chain(&fleet.decode)
        .map(|engine| (format!("{}_{}", engine.role(), engine.url()), load(engine).into()))
        .collect();
    ok(&json!({"loads": loads, "errors": []}))
}

/// What this router is.
pub async fn server_info(State(admin): State<Arc<Admin>>) -> Response {
    let fleet = admin.fleet.snapshot();
    let mut document = Map::new();
    document.insert("server".to_owned(), "pd-router".into());
    document.insert("version".to_owned(), env!("CARGO_PKG_VERSION").into());
    for (role, policy) in admin.fleet.pools().roles().iter().zip(admin.policies) {
        document.insert(format!("{role}_policy"), policy.into());
        document.insert(role.as_str().to_owned(), fleet.pool(*role).len().into());
    }
    ok(&document.into())
}

/// One engine.
pub async fn one(State(admin): State<Arc<Admin>>, Path(url): Path<String>) -> Answer {
    Ok(ok(&worker(&find(&admin, &url)?)))
}

/// Takes in the engine that the body describes.
pub async fn add(State(admin): State<Arc<Admin>>, request: Request) -> Answer {
    let (parts, body) = request.into_parts();
    let limits = admit::Settings {
        body_bytes_max: admin.admit.body_bytes_max.min(DESCRIPTION_BYTES_MAX),
        ..admin.admit.clone()
    };
    let received = admit::receive(&limits, &parts.headers, body).await;
    let (bytes, _room) = received?;
    let new = serde_json::from_slice(&bytes).map_err(|error| {
        Fault::WorkerInvalid(format!(
            "the body is not {{\"url\": URL, \"worker_type\": \"prefill\" or \"decode\"}}: {error}"
        ))
    })?;
    take_in(&admin, new)
}

/// Takes in the engine that the query describes.
pub async fn add_by_query(State(admin): State<Arc<Admin>>, Query(new): Query<New>) -> Answer {
    take_in(&admin, new)
}

/// Lets the engine go that the query names.
pub async fn remove_by_query(State(admin): State<Arc<Admin>>, Query(named): Query<Named>) -> Answer {
    let url = named.url.ok_or(Fault::Query { name: "url" })?;
    let_go(&admin, &url)
}

/// Lets the engine go that the path names.
pub async fn remove(State(admin): State<Arc<Admin>>, Path(url): Path<String>) -> Answer {
    let_go(&admin, &url)
}

/// `/workers/{url}/drain`: an engine gets no new requests, and stays.
pub async fn drain(State(admin): State<Arc<Admin>>, Path(path): Path<String>) -> Answer {
    let Some(url) = path.strip_suffix("/drain") else { return Err(Fault::UnknownPath.into()) };
    let engine = find(&admin, url)?;
    admin.roster.drain(&engine);
    Ok(ok(&worker(&engine)))
}

fn take_in(admin: &Admin, new: New) -> Answer {
    let invalid = Fault::WorkerInvalid;
    let url = new.url.ok_or_else(|| invalid("give the engine's base URL as `url`".to_owned()))?;
    let pools = admin.fleet.pools();
    let role = match (new.worker_type.as_deref(), pools) {
        (Some("prefill"), _) => Role::Prefill,
        (Some("decode"), _) => Role::Decode,
        (Some("regular"), _) | (None, Pools::Regular) => Role::Regular,
        _ => return Err(invalid(Refused::WrongPools(pools).to_string()).into()),
    };
    let url = EngineUrl::parse(&url).map_err(|error| invalid(error.to_string()))?;
    let added = admin.roster.add(role, &url);
    let engine = added.map_err(|refused| match refused {
        Refused::WrongPools(_) => invalid(refused.to_string()),
        Refused::OtherRole { .. } | Refused::Full => Fault::WorkerRefused(refused.to_string()),
    })?;
    let mut document = worker(&engine);
    if let Some(members) = document.as_object_mut() {
        members.insert("status".to_owned(), "added".into());
        if !new.ignored.is_empty() {
            members.insert("ignored".to_owned(), new.ignored.keys().cloned().collect());
        }
    }
    Ok(ok(&document))
}

fn let_go(admin: &Admin, url: &str) -> Answer {
    let engine = find(admin, url)?;
    admin.roster.remove(&engine);
    let mut document = worker(&engine);
    if let Some(members) = document.as_object_mut() {
        members.insert("status".to_owned(), "draining".into());
    }
    Ok(ok(&document))
}

fn find(admin: &Admin, url: &str) -> Result<Arc<Engine>, Fault> {
    let engine = EngineUrl::parse(url).ok().and_then(|url| admin.fleet.find(url.as_str()));
    engine.ok_or(Fault::UnknownWorker)
}

/// The requests of an engine, and those promised to it.
fn load(engine: &Arc<Engine>) -> i64 {
    engine.candidates().map(|one| one.requests()).sum()
}

/// An engine under vllm-router's keys, and what there is to know beyond them.
fn worker(engine: &Arc<Engine>) -> Value {
    json!({
        "url": engine.url().as_str(),
        "model_id": "unknown",
        "worker_type": engine.role().as_str(),
        "is_healthy": engine.up(),
        "load": load(engine),
        "connection_mode": "Http",
        "priority": 50,
        "cost": 1.0,
        "health": engine.health().as_str(),
        "state": engine.resting().now().as_str(),
        "draining": engine.draining(),
        "in_flight": engine.in_flight(),
        "version": engine.version().map(|version| version.as_str().to_owned()),
    })
}

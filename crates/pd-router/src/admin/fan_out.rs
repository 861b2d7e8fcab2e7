//! Sends one call to every engine, or to those of a role, and gathers what each answered.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, Response, StatusCode};
use serde_json::{Value, json};

use super::control::{Control, Meaning, values};
use crate::failure::Fault;
use crate::fleet::Fleet;
use crate::fleet::engine::Engine;
use crate::ids::Role;
use crate::leg::aside;
use crate::respond::{self, json_response};
use crate::task;

/// The longest answer of an engine that is passed on, in bytes.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// The headers that go on to the engines.
const PASSED: [http::HeaderName; 2] = [AUTHORIZATION, CONTENT_TYPE];

/// What calls are sent with.
#[derive(Clone, Debug)]
pub struct FanOut {
    /// The engines.
    pub fleet: Arc<Fleet>,
    /// The connections to them.
    pub client: reqwest::Client,
    /// How long an engine may take: pausing waits for requests in flight, and weights are large.
    pub timeout: Duration,
}

/// One call, as it goes to each engine.
#[derive(Debug)]
struct Call {
    control: &'static Control,
    query: String,
    headers: HeaderMap,
    body: Bytes,
}

/// What one engine made of it.
#[derive(Debug)]
struct Told {
    engine: Arc<Engine>,
    status: Option<StatusCode>,
    body: Value,
}

impl Told {
    fn ok(&self) -> bool {
        self.status.is_some_and(|status| status.is_success())
    }
}

/// The client: a connection a call, since an idle one belongs to the worker that opened it.
///
/// # Errors
/// Where TLS cannot be set up.
pub fn client(connect_timeout: Duration, tls: &rustls::ClientConfig) -> reqwest::Result<reqwest::Client> {
    aside::client(tls).connect_timeout(connect_timeout).pool_max_idle_per_host(0).build()
}

impl FanOut {
    /// Calls the engines. Once begun it goes on to its end, even if the client leaves.
    pub async fn call(
        self,
        control: &'static Control,
        query: &str,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Response<axum::body::Body> {
        let role = match role(query) {
            Ok(Some(role)) if !self.fleet.pools().roles().contains(&role) => {
                let values = if role == Role::Regular { "prefill or decode" } else { "regular" };
                return respond::fault(&Fault::QueryValue { name: "role", values }).0;
            }
            Ok(role) => role,
            Err(fault) => return respond::fault(&fault).0,
        };
        let mut passed = HeaderMap::new();
        for name in &PASSED {
            if let Some(value) = headers.get(name) {
                passed.insert(name.clone(), value.clone());
            }
        }
        let call = Call { control, query: without_role(query), headers: passed, body };
        let (answer, answered) = tokio::sync::oneshot::channel();
        task::background(async move {
            let document = self.all(&call, role).await;
            answer.send(document).ok();
        });
        match answered.await {
            Ok((status, document)) => json_response(status, &document),
            // The runtime ends.
            Err(_) => respond::fault(&Fault::Draining).0,
        }
    }

    async fn all(&self, call: &Call, role: Option<Role>) -> (StatusCode, Value) {
        let snapshot = self.fleet.snapshot();
        let pool = |one: Role| if role.is_none_or(|role| role == one) { snapshot.pool(one) } else { &[] };
        let (prefill, decode) = (pool(Role::Prefill), pool(self.fleet.pools().last()));
        let mut told;
        if call.control.meaning.prefill_first() {
            told = join_all(prefill.iter().map(|engine| self.one(call, engine))).await;
            told.extend(join_all(decode.iter().map(|engine| self.one(call, engine))).await);
        } else {
            told = join_all(prefill.iter().chain(decode).map(|engine| self.one(call, engine))).await;
        }
        self.fleet.woke();
        document(call.control, &told)
    }

    async fn one(&self, call: &Call, engine: &Arc<Engine>) -> Told {
        let meaning = call.control.meaning;
        let before = meaning.rests().then(|| engine.resting().tell(|rest| meaning.change(&call.query, rest)));
        let (status, body) = match self.send(call, engine).await {
            Ok((status, body)) => (Some(status), body),
            Err(error) => (None, Value::String(error)),
        };
        let told = Told { engine: Arc::clone(engine), status, body };
        match before {
            Some(before) if !told.ok() => {
                engine.resting().tell(|rest| *rest = before);
            }
            None if told.ok() && meaning != Meaning::Other => {
                engine.resting().tell(|rest| meaning.change(&call.query, rest));
            }
            Some(_) | None => {}
        }
        let (path, rest) = (call.control.path, engine.resting().now().as_str());
        let code = status.map(|status| status.as_u16());
        tracing::info!(engine = %engine.url(), path, status = code, rest, "told an engine");
        told
    }

    /// The status and the body, or what went wrong, without an address.
    async fn send(&self, call: &Call, engine: &Engine) -> Result<(StatusCode, Value), String> {
        let mut url = format!("{}{}", engine.url(), call.control.engine_path);
        if !call.query.is_empty() {
            url.push('?');
            url.push_str(&call.query);
        }
        let request = self.client.request(call.control.method.clone(), url).timeout(self.timeout);
        let request = request.headers(call.headers.clone()).body(call.body.clone());
        let mut answer = request.send().await.map_err(in_words)?;
        let whole = aside::whole(&mut answer, ANSWER_BYTES_MAX).await.map_err(in_words)?;
        let whole = whole.ok_or_else(|| format!("its answer is over {ANSWER_BYTES_MAX} bytes"))?;
        let text = || Value::String(String::from_utf8_lossy(&whole).into_owned());
        let body = if whole.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&whole).unwrap_or_else(|_| text())
        };
        Ok((answer.status(), body))
    }
}

#[allow(clippy::needless_pass_by_value, reason = "it stands in map_err")]
fn in_words(error: reqwest::Error) -> String {
    let words = match () {
        () if error.is_timeout() => "no answer in time",
        () if error.is_connect() => "it cannot be reached",
        () => "the connection ended before its answer",
    };
    words.to_owned()
}

/// 200 where all agreed; what all refused with, where that is the same; else 502.
fn document(control: &Control, told: &[Told]) -> (StatusCode, Value) {
    let failed = told.iter().filter(|one| !one.ok()).count();
    let first = told.first().and_then(|one| one.status);
    let same = told.iter().all(|one| one.status == first);
    let status = match first {
        _ if failed == 0 => StatusCode::OK,
        Some(refused) if same && (refused.is_client_error() || refused.is_server_error()) => refused,
        _ => StatusCode::BAD_GATEWAY,
    };
    let engines: Vec<Value> = told.iter().map(engine).collect();
    let mut document = json!({
        "status": if failed == 0 { "ok" } else { "failed" },
        "path": control.engine_path,
        "failed": failed,
        "engines": engines,
    });
    if let (Meaning::Ask(key), Some(members)) = (control.meaning, document.as_object_mut()) {
        let answer = |one: &Told| one.body.get(key).cloned();
        let all = told.first().and_then(answer);
        let same = told.iter().all(|one| answer(one) == all);
        members.insert(key.to_owned(), all.filter(|_| same).unwrap_or_default());
    }
    (status, document)
}

fn engine(told: &Told) -> Value {
    let (url, role) = (told.engine.url().as_str(), told.engine.role().as_str());
    let rest = told.engine.resting().now().as_str();
    match told.status {
        Some(status) => {
            json!({"url": url, "role": role, "state": rest, "status": status.as_u16(), "body": told.body})
        }
        None => json!({"url": url, "role": role, "state": rest, "status": null, "error": told.body}),
    }
}

fn role(query: &str) -> Result<Option<Role>, Fault> {
    let mut role = None;
    for value in values(query, "role") {
        role = match value.as_ref() {
            "prefill" => Some(Role::Prefill),
            "decode" => Some(Role::Decode),
            "regular" => Some(Role::Regular),
            _ => return Err(Fault::QueryValue { name: "role", values: "prefill or decode" }),
        };
    }
    Ok(role)
}

/// The query as it came, but for the router's own parameter.
fn without_role(query: &str) -> String {
    let kept: Vec<&str> =
        query.split('&').filter(|pair| *pair != "role" && !pair.starts_with("role=")).collect();
    kept.join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_query_stays_but_for_the_role() {
        for (query, kept) in [
            ("role=prefill&mode=abort", "mode=abort"),
            ("tags=a%20b&role=decode&tags=c", "tags=a%20b&tags=c"),
            ("level=1", "level=1"),
            ("", ""),
        ] {
            assert_eq!(without_role(query), kept);
        }
        assert_eq!(role("role=decode").unwrap(), Some(Role::Decode));
        assert_eq!(role("mode=abort").unwrap(), None);
        assert!(role("role=both").is_err());
    }
}

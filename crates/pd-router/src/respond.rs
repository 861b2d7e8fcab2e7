//! The one door from a fault to what the client sees: status, OpenAI error object, headers, outcome.

use axum::body::Body;
use http::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use serde_json::json;

use crate::failure::{Failure, FailureKind, Fault};
use crate::ids::{Leg, Role};
use crate::observe::failures::{Blame, Cause};
use crate::observe::record::Outcome;
use crate::request::scan::ScanError;

/// What a client is told of a fault.
#[derive(Debug)]
struct Verdict {
    status: StatusCode,
    kind: &'static str,
    code: String,
    param: Option<&'static str>,
    message: String,
    outcome: Outcome,
    retry_after: bool,
    allow: Option<&'static str>,
    leg: Option<Leg>,
}

/// The answer to a fault, and the cause to count. The text names the leg and never an address.
#[must_use]
pub fn fault(fault: &Fault) -> (Response<Body>, Cause) {
    let verdict = judge(fault);
    let blame = match (verdict.leg, verdict.outcome) {
        (Some(_), _) => Blame::Engine,
        (None, Outcome::Shed) => Blame::Router,
        (None, _) => Blame::Client,
    };
    let cause = Cause { outcome: verdict.outcome, code: verdict.code.clone(), blame, leg: verdict.leg };
    (verdict.response(), cause)
}

fn judge(fault: &Fault) -> Verdict {
    match fault {
        Fault::Body(error) => body(error),
        Fault::BodyCut => client(
            StatusCode::BAD_REQUEST,
            "body_cut",
            "the body ended before its announced end; send it again",
        ),
        Fault::BodyTooLarge { limit } => client(
            StatusCode::PAYLOAD_TOO_LARGE,
            "body_too_large",
            format!("the body is over {limit} bytes, the limit of this router (--max-payload-size)"),
        ),
        Fault::BodyCompressed => client(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "body_compressed",
            "compressed request bodies are not supported; send the body without Content-Encoding",
        ),
        Fault::BodySlow { seconds } => client(
            StatusCode::REQUEST_TIMEOUT,
            "body_timeout",
            format!("the body did not arrive within {seconds} s (--body-timeout-secs)"),
        ),
        Fault::BuffersFull => overload(
            "buffers_full",
            "the bodies in flight fill this router's buffers (--max-buffered-bytes); try again",
        ),
        Fault::QueueFull => Verdict {
            status: StatusCode::TOO_MANY_REQUESTS,
            ..overload("queue_full", "this router serves and queues as many requests as it may; try again")
        },
        Fault::QueueSlow { seconds } => overload(
            "queue_timeout",
            format!("no slot became free within {seconds} s (--queue-timeout-secs); try again"),
        ),
        Fault::ConnectionsFull => overload(
            "connections_full",
            "as many connections are open as this router's descriptor limit allows (ulimit -n); try again",
        ),
        Fault::Draining => overload("draining", "this router is about to end; send the request to another"),
        Fault::WrongAdminKey => wrong_admin_key(),
        Fault::NotLocal => not_local(),
        Fault::WorkerInvalid(message) => client(StatusCode::BAD_REQUEST, "worker_invalid", message),
        Fault::WorkerRefused(message) => client(StatusCode::CONFLICT, "worker_refused", message),
        Fault::UnknownWorker => unknown_worker(),
        Fault::Query { name } => query(
            name,
            "query_parameter_missing",
            format!("give the query parameter `{name}`: ?{name}=VALUE"),
        ),
        Fault::QueryValue { name, values } => {
            query(name, "query_parameter_invalid", format!("the query parameter `{name}` is {values}"))
        }
        Fault::UnknownPath => {
            client(StatusCode::NOT_FOUND, "unknown_path", "this router serves no such path; see its README")
        }
        Fault::WrongMethod { allow } => Verdict {
            allow: Some(allow),
            ..client(
                StatusCode::METHOD_NOT_ALLOWED,
                "wrong_method",
                format!("this path takes {allow} requests only"),
            )
        },
        Fault::NoEngine(role) => no_engine(*role),
        Fault::EnginesFull(role) => engines_full(*role),
        Fault::Resting(role) => resting(*role),
        Fault::Leg(failure) => leg(failure),
    }
}

fn body(error: &ScanError) -> Verdict {
    let (code, param) = match error {
        ScanError::Duplicate { name } => ("duplicate_key", Some(*name)),
        ScanError::TooDeep { .. } => ("body_too_deep", None),
        ScanError::Empty | ScanError::NotObject | ScanError::Utf8 { .. } | ScanError::Syntax { .. } => {
            ("invalid_json", None)
        }
    };
    Verdict { param, ..client(StatusCode::BAD_REQUEST, code, error.to_string()) }
}

fn client(status: StatusCode, code: &str, message: impl Into<String>) -> Verdict {
    Verdict {
        status,
        kind: "invalid_request_error",
        code: code.to_owned(),
        param: None,
        message: message.into(),
        outcome: Outcome::ClientError,
        retry_after: false,
        allow: None,
        leg: None,
    }
}

fn overload(code: &str, message: impl Into<String>) -> Verdict {
    Verdict {
        kind: "overloaded_error",
        outcome: Outcome::Shed,
        retry_after: true,
        ..client(StatusCode::SERVICE_UNAVAILABLE, code, message)
    }
}

fn wrong_admin_key() -> Verdict {
    client(
        StatusCode::UNAUTHORIZED,
        "admin_key",
        "this path needs the admin key (--admin-api-key): send Authorization: Bearer KEY, or X-Admin-Key: KEY",
    )
}

fn not_local() -> Verdict {
    client(
        StatusCode::FORBIDDEN,
        "not_local",
        "without an admin key this path answers on loopback only, to requests that nobody passed on and no web \
         page makes: start the router with --admin-api-key KEY and send Authorization: Bearer KEY",
    )
}

fn unknown_worker() -> Verdict {
    client(
        StatusCode::NOT_FOUND,
        "worker_not_found",
        "no engine of this URL is in the fleet; GET /workers lists those that are",
    )
}

fn query(name: &'static str, code: &str, message: String) -> Verdict {
    Verdict { param: Some(name), ..client(StatusCode::BAD_REQUEST, code, message) }
}

fn resting(role: Role) -> Verdict {
    overload(
        "engines_paused",
        format!("every {role} engine is paused or asleep; try again when it is resumed or woken"),
    )
}

fn engines_full(role: Role) -> Verdict {
    overload(
        "engines_full",
        match role {
            Role::Prefill => {
                "every prefill engine has as many requests as it may (--max-prefill-per-engine); try again"
            }
            Role::Decode => {
                "every decode engine has as many requests as it may (--max-decode-per-engine); try again"
            }
            Role::Regular => {
                "every engine has as many requests as it may (--max-decode-per-engine); try again"
            }
        },
    )
}

fn no_engine(role: Role) -> Verdict {
    Verdict {
        kind: "engine_unavailable",
        outcome: Outcome::EngineError,
        retry_after: true,
        leg: Some(if role == Role::Prefill { Leg::Prefill } else { Leg::Decode }),
        ..client(
            StatusCode::SERVICE_UNAVAILABLE,
            &format!("no_{role}_engine"),
            format!("no {role} engine can serve now; try again"),
        )
    }
}

fn leg(failure: &Failure) -> Verdict {
    let engine = match failure.leg {
        Leg::Prefill => "the prefill engine",
        Leg::Decode => "the decode engine",
        Leg::OneHop => "the engine",
    };
    let (status, message) = match &failure.kind {
        FailureKind::Connect(_) => {
            (StatusCode::SERVICE_UNAVAILABLE, format!("{engine} cannot be reached; try again"))
        }
        FailureKind::ConnectSlow => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("{engine} could not be connected to in time (--connect-timeout-secs); try again"),
        ),
        FailureKind::MissingHandoff => {
            (StatusCode::BAD_GATEWAY, format!("{engine} gave no handoff that decode could use"))
        }
        FailureKind::Reset { .. } => {
            (StatusCode::BAD_GATEWAY, format!("{engine} closed the connection before its answer"))
        }
        FailureKind::Cut => (StatusCode::BAD_GATEWAY, format!("{engine} broke its answer off")),
        FailureKind::Slow { seconds } => {
            (StatusCode::GATEWAY_TIMEOUT, format!("{engine} gave no answer within {seconds} s"))
        }
        FailureKind::BadAnswer(why) => {
            (StatusCode::BAD_GATEWAY, format!("{engine} gave an answer that is {why}"))
        }
        FailureKind::TransferMode(mode) => (
            StatusCode::BAD_GATEWAY,
            format!(
                "{engine} hands over in the transfer mode \"{mode}\"; this router speaks \"pull\" only: set it \
                 in the engine's --kv-transfer-config"
            ),
        ),
    };
    Verdict {
        kind: "engine_error",
        outcome: Outcome::EngineError,
        retry_after: status == StatusCode::SERVICE_UNAVAILABLE,
        leg: Some(failure.leg),
        ..client(status, &failure.code(), message)
    }
}

impl Verdict {
    fn response(self) -> Response<Body> {
        let body = json!({
            "error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        });
        let mut response = json_response(self.status, &body);
        if self.retry_after {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if self.code == "draining" {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(allow) = self.allow {
            response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
        }
        response
    }
}

/// A JSON document as an answer.
#[must_use]
pub fn json_response(status: StatusCode, document: &serde_json::Value) -> Response<Body> {
    let mut response = Response::new(Body::from(document.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    async fn text(fault_: Fault) -> String {
        let (response, cause) = fault(&fault_);
        let status = response.status().as_u16();
        let retry = response.headers().contains_key(RETRY_AFTER);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        format!("{status} {} retry-after={retry} {}", cause.outcome.as_str(), String::from_utf8_lossy(&body))
    }

    #[tokio::test]
    async fn every_fault_has_its_answer() {
        let failure = |leg, kind| Fault::Leg(Failure::new(leg, kind));
        let mut all = String::new();
        for fault in [
            Fault::Body(ScanError::NotObject),
            Fault::Body(ScanError::Duplicate { name: "stream" }),
            Fault::BodyCut,
            Fault::BodyTooLarge { limit: 9 },
            Fault::BodyCompressed,
            Fault::BodySlow { seconds: 3 },
            Fault::BuffersFull,
            Fault::WrongAdminKey,
            Fault::NotLocal,
            Fault::WorkerInvalid("what is wrong".into()),
            Fault::WorkerRefused("why not".into()),
            Fault::UnknownWorker,
            Fault::UnknownPath,
            Fault::WrongMethod { allow: "POST" },
            Fault::NoEngine(Role::Prefill),
            Fault::EnginesFull(Role::Prefill),
            Fault::Resting(Role::Decode),
            failure(Leg::Prefill, FailureKind::Connect("to 10.0.0.1:80".into())),
            failure(Leg::Decode, FailureKind::ConnectSlow),
            failure(Leg::Decode, FailureKind::Reset { reused: true }),
            failure(Leg::Prefill, FailureKind::Cut),
            failure(Leg::Prefill, FailureKind::Slow { seconds: 300 }),
            failure(Leg::Prefill, FailureKind::BadAnswer("not a JSON object")),
            failure(Leg::Prefill, FailureKind::TransferMode("push".into())),
            failure(Leg::OneHop, FailureKind::ConnectSlow),
        ] {
            all.push_str(&text(fault).await);
            all.push('\n');
        }
        assert!(!all.contains("10.0.0.1"));
        insta::assert_snapshot!(all);
    }
}

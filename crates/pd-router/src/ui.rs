//! A page to watch: `/ui`, one self-contained page, and `/ui/state`, the document that it reads. Both only
//! read, and are served where `/metrics` is: who may see the metrics sees nothing new here but request ids.

mod gather;
pub mod state;

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::extract::State;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderMap, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use ring::digest::{SHA256, digest};

use crate::admin::Admin;
use crate::edge::only;
use crate::respond::json_response;

const PAGE: &str = include_str!("ui/page.html");

/// Nothing but the page's own style and script, named by their hashes, and its own state.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let policy = format!(
        "default-src 'none'; style-src {}; script-src {}; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        source(PAGE, "style"),
        source(PAGE, "script")
    );
    HeaderValue::from_str(&policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
});

/// The page and its state, served.
pub fn router(admin: &Arc<Admin>) -> Router {
    Router::new()
        .route("/ui", only("GET, HEAD", get(page)))
        .route("/ui/state", only("GET, HEAD", get(state)))
        .with_state(Arc::clone(admin))
}

/// A content security policy's word for what an element of the page contains.
fn source(page: &str, element: &str) -> String {
    let (open, close) = (format!("<{element}>"), format!("</{element}>"));
    let inside = page.split_once(&open).and_then(|(_, rest)| rest.split_once(&close));
    inside.map_or("'none'".to_owned(), |(text, _)| {
        format!("'sha256-{}'", STANDARD.encode(digest(&SHA256, text.as_bytes())))
    })
}

fn guarded(mut response: Response, cache: &'static str) -> Response {
    let set = |headers: &mut HeaderMap, name: HeaderName, value| {
        headers.insert(name, HeaderValue::from_static(value));
    };
    let headers = response.headers_mut();
    set(headers, CACHE_CONTROL, cache);
    set(headers, X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(headers, REFERRER_POLICY, "no-referrer");
    headers.insert(CONTENT_SECURITY_POLICY, POLICY.clone());
    response
}

async fn page() -> Response {
    guarded(Html(PAGE).into_response(), "no-cache")
}

/// Gathered off the worker, whose streams would wait for it.
async fn state(State(admin): State<Arc<Admin>>) -> Response {
    let gathered = tokio::task::spawn_blocking(move || serde_json::to_value(gather::state(&admin))).await;
    let answer = match gathered {
        Ok(Ok(document)) => json_response(StatusCode::OK, &document),
        Ok(Err(_)) | Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    };
    guarded(answer.into_response(), "no-store")
}

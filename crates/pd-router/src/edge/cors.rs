//! Calls from pages that a browser shows: which sites may make them, and to which paths. A request without
//! `Origin` is none of them and costs one look for that header.
//!
//! Not tower-http's layer: that writes its headers on every answer, and this router's answers to other clients
//! are to stay as engines gave them.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderValue, ORIGIN, VARY,
};
use http::{Method, StatusCode};

use super::endpoints::{ENDPOINTS, Who};
use crate::request::view::Route;

/// The router's own paths that any site's page may read: whether it lives.
const OWN: [&str; 3] = ["/health", "/readiness", "/liveness"];

/// How long a browser may keep the answer to a preflight, in seconds.
const PREFLIGHT_SECONDS: &str = "600";

/// The sites whose pages may call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Allowed {
    /// All.
    #[default]
    Any,
    /// These origins, as browsers write them; none where it is empty.
    Only(Vec<HeaderValue>),
}

impl Allowed {
    /// An origin as browsers write it, from what was typed.
    ///
    /// # Errors
    /// What to write.
    pub fn origin(text: &str) -> Result<HeaderValue, String> {
        let wrong =
            || "write SCHEME://HOST or SCHEME://HOST:PORT, such as https://chat.example.com".to_owned();
        let url = url::Url::parse(text).map_err(|_| wrong())?;
        let bare =
            url.path().trim_end_matches('/').is_empty() && url.query().is_none() && url.fragment().is_none();
        let origin = url.origin();
        if !origin.is_tuple() || !bare || !url.username().is_empty() {
            return Err(wrong());
        }
        HeaderValue::from_str(&origin.ascii_serialization()).map_err(|_| wrong())
    }
}

/// Who may call what.
#[derive(Debug)]
pub struct Cors {
    allowed: Allowed,
    paths: Vec<Arc<Route>>,
}

/// What is said of one call from a page.
#[derive(Debug)]
pub struct Said {
    origin: Option<HeaderValue>,
}

impl Cors {
    /// Opens the inference paths and those that one engine answers to these sites. What changes the fleet or its
    /// engines, or shows it, is open to none.
    #[must_use]
    pub fn new(allowed: Allowed, routes: &[Arc<Route>]) -> Self {
        Self { allowed, paths: routes.to_vec() }
    }

    /// What is to be said of a request; `None` where it is from no page, or its path is open to none.
    #[must_use]
    pub fn of(&self, request: &Request) -> Option<Box<Said>> {
        let origin = request.headers().get(ORIGIN)?;
        self.is_open(request.uri().path()).then(|| Box::new(Said { origin: self.allow(origin) }))
    }

    fn allow(&self, origin: &HeaderValue) -> Option<HeaderValue> {
        match &self.allowed {
            Allowed::Any => Some(HeaderValue::from_static("*")),
            Allowed::Only(listed) => listed.contains(origin).then(|| origin.clone()),
        }
    }

    fn is_open(&self, path: &str) -> bool {
        let engine = || ENDPOINTS.iter().filter(|endpoint| endpoint.who == Who::AnyEngine);
        OWN.contains(&path)
            || self.paths.iter().any(|route| route.path == path)
            || engine().any(|endpoint| match endpoint.path.split_once('{') {
                Some((start, _)) => path.starts_with(start),
                None => path == endpoint.path,
            })
    }
}

impl Said {
    /// The answer to a preflight, which no engine sees; `None` for any other request.
    #[must_use]
    pub fn preflight(&self, request: &Request) -> Option<Response> {
        let asked = request.headers();
        if request.method() != Method::OPTIONS || !asked.contains_key(ACCESS_CONTROL_REQUEST_METHOD) {
            return None;
        }
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        let headers = response.headers_mut();
        self.mark(headers);
        if self.origin.is_some() {
            headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, HEAD, POST"));
            headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(PREFLIGHT_SECONDS));
            // By name: a star does not stand for `Authorization`.
            if let Some(names) = asked.get(ACCESS_CONTROL_REQUEST_HEADERS) {
                headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
            }
        }
        Some(response)
    }

    /// Says it in an answer, in the place of what an engine said.
    pub fn mark(&self, headers: &mut HeaderMap) {
        for name in
            [ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_EXPOSE_HEADERS]
        {
            headers.remove(name);
        }
        let any = self.origin.as_ref().is_some_and(|origin| origin == "*");
        if !any && headers.get_all(VARY).iter().all(|said| !said.as_bytes().eq_ignore_ascii_case(b"origin")) {
            headers.append(VARY, HeaderValue::from_static("origin"));
        }
        if let Some(origin) = &self.origin {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_taken_as_browsers_write_it() {
        for (text, origin) in [
            ("https://Chat.Example.com", "https://chat.example.com"),
            ("https://a:443/", "https://a"),
            ("http://localhost:3000", "http://localhost:3000"),
            ("http://[::1]:80", "http://[::1]"),
        ] {
            assert_eq!(Allowed::origin(text).unwrap(), origin, "{text}");
        }
        for text in ["", "*", "a.b", "https://a/path", "https://a?x", "file:///a", "https://u@a"] {
            assert!(Allowed::origin(text).is_err(), "{text}");
        }
    }

    #[test]
    fn control_paths_are_open_to_no_site() {
        let cors = Cors::new(Allowed::Any, &[]);
        for endpoint in ENDPOINTS.iter().filter(|endpoint| endpoint.who != Who::AnyEngine) {
            assert_eq!(cors.is_open(endpoint.path), OWN.contains(&endpoint.path), "{}", endpoint.path);
        }
        assert!(cors.is_open("/v1/models") && cors.is_open("/v1/models/a%2Fb") && cors.is_open("/tokenize"));
        assert!(!cors.is_open("/workers/http%3A%2F%2Fa") && !cors.is_open("/nowhere"));
    }
}

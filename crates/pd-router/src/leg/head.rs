//! The head of a leg's request and of the client's answer: which headers go through.

use http::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{Method, Request, Uri};

use super::body::ChainBody;
use crate::fleet::url::EngineUrl;
use crate::ids::{Leg, RequestId, X_REQUEST_ID};
use crate::observe::trace::TRACEPARENT;
use crate::request::edit::Chain;

/// Headers with which a client could steer an engine.
pub const ROUTING: [HeaderName; 2] = [HeaderName::from_static("x-prefiller-host-port"), DATA_PARALLEL_RANK];

/// The header that names one data-parallel rank of an engine; the router's to set.
const DATA_PARALLEL_RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");

/// Headers of one connection only (RFC 9110, section 7.6.1), and those that the router writes itself.
const HOP_BY_HOP: [HeaderName; 11] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    EXPECT,
    CONTENT_LENGTH,
];

/// Whom a leg goes to.
#[derive(Debug)]
pub struct To<'a> {
    /// The engine.
    pub url: &'a EngineUrl,
    /// Its data-parallel rank, where it has some.
    pub rank: Option<u16>,
    /// The leg's span, where traces are wanted; in the place of the client's.
    pub traceparent: Option<HeaderValue>,
}

/// The header that belongs to [`TRACEPARENT`].
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// What of a client's request every leg carries.
#[derive(Debug)]
pub struct Head {
    method: Method,
    path_and_query: String,
    headers: HeaderMap,
}

impl Head {
    /// Takes a client's head: end-to-end headers stay, the request id is set, routing headers go.
    #[must_use]
    pub fn new(method: Method, uri: &Uri, mut headers: HeaderMap, id: &RequestId) -> Self {
        strip_hop_by_hop(&mut headers);
        headers.remove(HOST);
        for name in ROUTING {
            headers.remove(name);
        }
        headers.insert(X_REQUEST_ID, id.for_engines());
        let path_and_query = uri.path_and_query().map_or("/", |both| both.as_str()).to_owned();
        Self { method, path_and_query, headers }
    }

    /// The client's headers, as every leg carries them.
    #[must_use]
    pub const fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The method.
    #[must_use]
    pub const fn method(&self) -> &Method {
        &self.method
    }

    /// The request of one leg to one engine.
    #[must_use]
    pub fn request(&self, leg: Leg, to: &To<'_>, body: Chain) -> Request<ChainBody> {
        let mut request = Request::new(ChainBody::new(body));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = target(to.url.prefix(), &self.path_and_query);
        let mut headers = self.headers.clone();
        if leg == Leg::Prefill {
            // The router reads this answer, so it has to come uncompressed.
            headers.remove(ACCEPT_ENCODING);
        }
        if let Some(rank) = to.rank {
            headers.insert(DATA_PARALLEL_RANK, HeaderValue::from(rank));
        }
        if let Some(traceparent) = &to.traceparent {
            let begun = !headers.contains_key(TRACEPARENT);
            headers.insert(TRACEPARENT, traceparent.clone());
            if begun {
                // It belongs to a traceparent, and there was none.
                headers.remove(TRACESTATE);
            }
        }
        headers.insert(HOST, to.url.authority().clone());
        *request.headers_mut() = headers;
        request
    }
}

fn target(prefix: &str, path_and_query: &str) -> Uri {
    let parsed =
        if prefix.is_empty() { path_and_query.parse() } else { format!("{prefix}{path_and_query}").parse() };
    // Both parts were parsed before, so this cannot fail; an engine would answer 404 to `/`.
    parsed.unwrap_or_else(|_| Uri::from_static("/"))
}

/// Removes the headers of one connection, and those that its Connection header names.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in HOP_BY_HOP.iter().chain(&named) {
        headers.remove(name);
    }
}

/// Whether a header says that the body is one of these media types.
#[must_use]
pub fn is_media_type(value: Option<&HeaderValue>, media_type: &str) -> bool {
    value
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .is_some_and(|value| value.trim().eq_ignore_ascii_case(media_type))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_to_end_headers_stay_and_hop_by_hop_ones_go() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("authorization", "Bearer k"),
            ("x-custom", "a,b ; c"),
            ("connection", "close, X-Mine"),
            ("x-mine", "1"),
            ("keep-alive", "5"),
            ("te", "trailers"),
            ("host", "router"),
            ("content-length", "9"),
            ("expect", "100-continue"),
            ("x-data-parallel-rank", "99"),
            ("accept-encoding", "gzip"),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let uri = "/v1/completions?a=%20b".parse().unwrap();
        let head = Head::new(Method::POST, &uri, headers, &RequestId::generate());
        let url = EngineUrl::parse("http://[::1]:81/p").unwrap();
        let names = |leg| {
            let to = To { url: &url, rank: None, traceparent: None };
            let request = head.request(leg, &to, Chain::new());
            assert_eq!(request.uri(), "/p/v1/completions?a=%20b");
            let mut names: Vec<_> = request.headers().keys().map(|name| name.as_str().to_owned()).collect();
            names.sort();
            names
        };
        assert_eq!(names(Leg::Prefill), ["authorization", "host", "x-custom", "x-request-id"]);
        assert!(names(Leg::Decode).contains(&"accept-encoding".to_owned()));
    }
}

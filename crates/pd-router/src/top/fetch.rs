//! The state of a router, asked for over HTTP.

use std::error::Error;
use std::time::Duration;

use http::StatusCode;
use thiserror::Error;
use url::Url;

use crate::leg::aside;
use crate::leg::dial::{CaFileError, tls_config};
use crate::ui::state::State;

/// How long a router may take; it answers in milliseconds.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The longest state that is read, in bytes; with a hundred engines it is about 60 KB.
const STATE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Why the state cannot be had, and what to try.
#[derive(Debug, Error)]
pub enum FetchError {
    /// No URL of a router.
    #[error("`{0}` is no URL of a router: write http://HOST:PORT, such as http://127.0.0.1:30000")]
    Url(String),
    /// The system's roots.
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] CaFileError),
    /// The client.
    #[error("cannot set up the HTTP client: {0}")]
    Client(reqwest::Error),
    /// No answer.
    #[error(
        "cannot reach {url}: {reason}; is pd-router running there? Try `curl {url}/health`, or give its --host \
         and --port as http://HOST:PORT"
    )]
    Unreachable {
        /// The router.
        url: String,
        /// What the system says.
        reason: String,
    },
    /// An answer that is none of a pd-router that has the page.
    #[error(
        "{url}/ui/state answers {said}; is it a pd-router of this version ({version})? Try `curl {url}/ui/state`",
        version = env!("CARGO_PKG_VERSION")
    )]
    Strange {
        /// The router.
        url: String,
        /// What came.
        said: String,
    },
}

/// A router to ask.
#[derive(Debug)]
pub(super) struct Source {
    client: reqwest::Client,
    base: String,
}

impl Source {
    /// A router by what was typed: a URL, with or without a scheme, or that of its page.
    ///
    /// # Errors
    /// [`FetchError::Url`], or what keeps the client from being built.
    pub(super) fn new(typed: &str) -> Result<Self, FetchError> {
        let base = base(typed).ok_or_else(|| FetchError::Url(typed.escape_debug().to_string()))?;
        let client = aside::client(&*tls_config(None)?).timeout(TIMEOUT).build();
        let client = client.map_err(FetchError::Client)?;
        Ok(Self { client, base })
    }

    /// The router's base URL.
    pub(super) fn shown(&self) -> &str {
        &self.base
    }

    /// Its state now.
    ///
    /// # Errors
    /// [`FetchError`], which says what to try.
    pub(super) async fn state(&self) -> Result<State, FetchError> {
        let unreachable =
            |error: reqwest::Error| FetchError::Unreachable { url: self.base.clone(), reason: root(&error) };
        let strange = |said: String| FetchError::Strange { url: self.base.clone(), said };
        let mut answer =
            self.client.get(format!("{}/ui/state", self.base)).send().await.map_err(unreachable)?;
        if answer.status() != StatusCode::OK {
            return Err(strange(answer.status().to_string()));
        }
        let body = aside::whole(&mut answer, STATE_BYTES_MAX).await.map_err(unreachable)?;
        let body = body.ok_or_else(|| strange(format!("more than {STATE_BYTES_MAX} bytes")))?;
        serde_json::from_slice(&body).map_err(|error| strange(format!("something else ({error})")))
    }
}

/// The base URL of what was typed, without a slash at its end.
fn base(typed: &str) -> Option<String> {
    let typed = typed.trim();
    let with_scheme = if typed.contains("://") { typed.to_owned() } else { format!("http://{typed}") };
    let url = Url::parse(&with_scheme).ok()?;
    let host = url.host_str().filter(|host| !host.is_empty());
    if !matches!(url.scheme(), "http" | "https") || host.is_none() || url.query().is_some() {
        return None;
    }
    let plain = url.as_str().split('#').next()?.trim_end_matches('/');
    Some(plain.strip_suffix("/ui/state").or(plain.strip_suffix("/ui")).unwrap_or(plain).to_owned())
}

/// What lies at the bottom of an error: that names the cause.
fn root(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return format!("no answer within {} s", TIMEOUT.as_secs());
    }
    let mut deepest: &dyn Error = error;
    while let Some(below) = deepest.source() {
        deepest = below;
    }
    match deepest.to_string() {
        // rustls' word on an answer that is no TLS.
        said if said.contains("InvalidContentType") => "it speaks no TLS, try http:// there".to_owned(),
        said => said,
    }
}

#[cfg(test)]
mod tests {
    use super::base;

    #[test]
    fn what_a_person_types_is_a_base_url() {
        for (typed, expected) in [
            ("http://127.0.0.1:30000", Some("http://127.0.0.1:30000")),
            ("127.0.0.1:30000", Some("http://127.0.0.1:30000")),
            ("router:30000/", Some("http://router:30000")),
            ("http://[::1]:30000/ui", Some("http://[::1]:30000")),
            ("https://host/behind/ui/state", Some("https://host/behind")),
            ("ftp://host", None),
            ("http://", None),
            ("http://h:notaport", None),
            ("http://h?x=1", None),
            ("", None),
        ] {
            assert_eq!(base(typed).as_deref(), expected, "{typed}");
        }
    }
}

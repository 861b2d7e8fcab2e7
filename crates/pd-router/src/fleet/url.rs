//! An engine's base URL: checked once at the start, split into what each use needs.

use http::HeaderValue;
use thiserror::Error;

/// Why a text is not an engine's base URL.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum UrlError {
    /// Not a URL at all, or without a host.
    #[error("`{text}` is not a URL ({reason}); write it as http://HOST:PORT")]
    Syntax {
        /// What was typed.
        text: String,
        /// The parser's words.
        reason: String,
    },
    /// A scheme that the router does not speak.
    #[error("`{text}` has the scheme `{scheme}`; engines are reached over http or https")]
    Scheme {
        /// What was typed.
        text: String,
        /// Its scheme.
        scheme: String,
    },
    /// User name or password, which would end up in logs; also what `@RANK` looks like.
    #[error(
        "the URL for host `{host}` has a part before `@`; credentials do not belong in an engine URL (clients \
         send their own Authorization header), and data-parallel ranks are not written as `@RANK`"
    )]
    Credentials {
        /// The host only: the rest may be secret.
        host: String,
    },
    /// A query or a fragment.
    #[error("`{text}` has a query or a fragment; give the base URL only")]
    Extra {
        /// What was typed.
        text: String,
    },
    /// A base that ends in `/v1`, which request paths bring themselves.
    #[error("`{text}` ends in /v1, which request paths bring themselves; leave it out")]
    Versioned {
        /// What was typed.
        text: String,
    },
}

/// An engine's base URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineUrl {
    text: String,
    https: bool,
    host: String,
    port: u16,
    authority: HeaderValue,
    prefix: String,
}

impl EngineUrl {
    /// Parses a base URL: http or https, a host name or an IP literal, optional port and path prefix.
    ///
    /// # Errors
    /// [`UrlError`], which names the text and what to write instead.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let typed = || text.to_owned();
        let syntax = |reason: String| UrlError::Syntax { text: typed(), reason };
        let url = url::Url::parse(text).map_err(|error| syntax(error.to_string()))?;
        let https = match url.scheme() {
            "http" => false,
            "https" => true,
            scheme => return Err(UrlError::Scheme { text: typed(), scheme: scheme.to_owned() }),
        };
        let host = url.host_str().ok_or_else(|| syntax("no host".to_owned()))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(UrlError::Credentials { host: host.to_owned() });
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(UrlError::Extra { text: typed() });
        }
        let prefix = url.path().trim_end_matches('/');
        if prefix.ends_with("/v1") {
            return Err(UrlError::Versioned { text: typed() });
        }
        let authority = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
        Ok(Self {
            text: format!("{}://{authority}{prefix}", url.scheme()),
            https,
            host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: url.port_or_known_default().unwrap_or(80),
            authority: HeaderValue::from_str(&authority).map_err(|error| syntax(error.to_string()))?,
            prefix: prefix.to_owned(),
        })
    }

    /// The URL in its one spelling: lower-case host, no default port, no trailing slash.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the engine is reached over TLS.
    #[must_use]
    pub const fn https(&self) -> bool {
        self.https
    }

    /// The host to dial, IPv6 literals without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port to dial.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The value of the Host header.
    #[must_use]
    pub const fn authority(&self) -> &HeaderValue {
        &self.authority
    }

    /// The path in front of every request path; empty or without a trailing slash.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}

impl std::fmt::Display for EngineUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_engine_are_one() {
        for (typed, text, host, port, prefix) in [
            ("http://h:8000", "http://h:8000", "h", 8000, ""),
            ("http://H:8000/", "http://h:8000", "h", 8000, ""),
            ("http://h:80", "http://h", "h", 80, ""),
            ("https://h/engine-a/", "https://h/engine-a", "h", 443, "/engine-a"),
            ("http://[::1]:8100", "http://[::1]:8100", "::1", 8100, ""),
        ] {
            let url = EngineUrl::parse(typed).unwrap();
            assert_eq!((url.as_str(), url.host(), url.port(), url.prefix()), (text, host, port, prefix));
        }
        let url = EngineUrl::parse("http://[::1]:8100").unwrap();
        assert_eq!(url.authority(), "[::1]:8100");
    }

    #[test]
    fn a_bad_url_is_named() {
        for (typed, says) in [
            ("http://127.0.0.1:notaport", "invalid port"),
            ("h:8000", "scheme `h`"),
            ("::1:8100", "not a URL"),
            ("ftp://h", "scheme `ftp`"),
            ("grpc://h:1", "scheme `grpc`"),
            ("http://user:secret@h:1", "host `h`"),
            ("http://node1:8087@3", "@RANK"),
            ("http://h/?a=1", "query"),
            ("http://h:1/v1/", "/v1"),
        ] {
            let error = EngineUrl::parse(typed).unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains("secret"), "{typed}: {error}");
        }
    }
}

//! Who may change the fleet: whoever has the admin key or, where none is set, this machine.

use std::fmt;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::HeaderMap;
use http::header::{AUTHORIZATION, ORIGIN};
use subtle::ConstantTimeEq;

use crate::failure::Fault;
use crate::listen::Loopback;
use crate::respond;

/// The header that carries the key where `Authorization` is meant for the engines.
pub const X_ADMIN_KEY: &str = "x-admin-key";

/// Marks of a request that somebody else passed on: it may come from anywhere.
const PASSED_ON: [&str; 3] = ["forwarded", "x-forwarded-for", "x-real-ip"];

/// The admin key; never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct AdminKey(Arc<str>);

impl AdminKey {
    /// Takes a key from the command line or the environment.
    ///
    /// # Errors
    /// Why it is none.
    pub fn parse(text: &str) -> Result<Self, String> {
        let good = |byte: u8| byte.is_ascii_graphic();
        if text.is_empty() || !text.bytes().all(good) {
            return Err("give one or more printable ASCII characters, without spaces".to_owned());
        }
        Ok(Self(text.into()))
    }

    /// Compares in a time that does not tell how much of it was right.
    fn is(&self, given: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(given).into()
    }
}

impl fmt::Debug for AdminKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdminKey(..)")
    }
}

/// The guard of the paths that change something.
pub async fn guard(State(key): State<Option<AdminKey>>, mut request: Request, next: Next) -> Response {
    let local = request.extensions().get::<Loopback>().is_some();
    match check(key.as_ref(), local, request.headers_mut()) {
        Ok(()) => next.run(request).await,
        Err(fault) => respond::fault(&fault).0,
    }
}

/// Lets a request pass or says why not. The header that brought the key goes no further.
fn check(key: Option<&AdminKey>, local: bool, headers: &mut HeaderMap) -> Result<(), Fault> {
    let Some(key) = key else {
        let passed_on = PASSED_ON.iter().any(|name| headers.contains_key(*name));
        // A page that a browser on this machine shows. Browsers name its site with every request that may change
        // something; even the router's own is refused: a site can have its name point to this machine.
        let page = headers.contains_key(ORIGIN);
        let site = headers.get("sec-fetch-site").map(http::HeaderValue::as_bytes);
        let own = !page && site.is_none_or(|site| matches!(site, b"same-origin" | b"none"));
        return if local && !passed_on && own { Ok(()) } else { Err(Fault::NotLocal) };
    };
    if let Some(given) = headers.remove(X_ADMIN_KEY) {
        return if key.is(given.as_bytes()) { Ok(()) } else { Err(Fault::WrongAdminKey) };
    }
    let given = headers.remove(AUTHORIZATION);
    let bearer = given.as_ref().and_then(|given| {
        let (scheme, given) = given.as_bytes().split_at_checked(b"bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(given)
    });
    if bearer.is_some_and(|given| key.is(given)) { Ok(()) } else { Err(Fault::WrongAdminKey) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn passes(key: Option<&str>, local: bool, pairs: &[(&'static str, &'static str)]) -> bool {
        let key = key.map(|key| AdminKey::parse(key).unwrap());
        check(key.as_ref(), local, &mut headers(pairs)).is_ok()
    }

    #[test]
    fn without_a_key_only_this_machine_passes() {
        assert!(passes(None, true, &[]));
        assert!(passes(None, true, &[("sec-fetch-site", "same-origin")]));
        assert!(!passes(None, false, &[]));
        assert!(!passes(None, true, &[("x-forwarded-for", "10.0.0.1")]));
        assert!(!passes(None, true, &[("sec-fetch-site", "cross-site")]));
        for origin in ["https://elsewhere.example", "http://127.0.0.1:30000", "null"] {
            assert!(!passes(None, true, &[("origin", origin)]), "{origin}");
            assert!(
                !passes(None, true, &[("origin", origin), ("sec-fetch-site", "same-origin")]),
                "{origin}"
            );
            assert!(passes(Some("k"), false, &[("origin", origin), ("x-admin-key", "k")]), "{origin}");
        }
    }

    #[test]
    fn with_a_key_only_the_key_passes() {
        for local in [true, false] {
            assert!(passes(Some("k1"), local, &[("authorization", "Bearer k1")]));
            assert!(passes(Some("k1"), local, &[("authorization", "bearer k1")]));
            assert!(passes(Some("k1"), local, &[("x-admin-key", "k1"), ("authorization", "Bearer engine")]));
            assert!(!passes(Some("k1"), local, &[]));
            assert!(!passes(Some("k1"), local, &[("authorization", "k1")]));
            assert!(!passes(Some("k1"), local, &[("authorization", "Bearer k11")]));
            assert!(!passes(Some("k1"), local, &[("authorization", "Bearer ")]));
            assert!(!passes(Some("k1"), local, &[("x-admin-key", "no"), ("authorization", "Bearer k1")]));
        }
    }

    #[test]
    fn the_key_goes_no_further_and_is_not_shown() {
        let key = AdminKey::parse("secret").unwrap();
        let mut given = headers(&[("x-admin-key", "secret"), ("authorization", "Bearer engine")]);
        check(Some(&key), false, &mut given).unwrap();
        assert!(!given.contains_key(X_ADMIN_KEY) && given.contains_key(AUTHORIZATION));
        let mut given = headers(&[("authorization", "Bearer secret")]);
        check(Some(&key), false, &mut given).unwrap();
        assert!(given.is_empty());
        assert!(!format!("{key:?}").contains("secret"));
        assert!(AdminKey::parse("").is_err() && AdminKey::parse("a b").is_err());
    }
}

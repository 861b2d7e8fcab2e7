//! Calls beside the requests, over reqwest: probes of engines, calls to all of them, and what `pd-router top`
//! asks a router.

use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, Response, Result};

/// A client that goes where it is told and nowhere else: through no proxy from the environment and after no
/// redirect.
pub fn client(tls: &rustls::ClientConfig) -> ClientBuilder {
    Client::builder().no_proxy().redirect(Policy::none()).tls_backend_preconfigured(tls.clone())
}

/// An answer's body in one piece; none where it is over `bytes_max`.
///
/// # Errors
/// The connection ended, or the time was up, before the end of the body.
pub async fn whole(answer: &mut Response, bytes_max: usize) -> Result<Option<Vec<u8>>> {
    let mut whole = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        if whole.len() + chunk.len() > bytes_max {
            return Ok(None);
        }
        whole.extend_from_slice(&chunk);
    }
    Ok(Some(whole))
}

//! At the door: what a request's body may weigh, how long it may take to come, and how much is held at once.

pub mod budget;
pub mod queue;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use budget::{Budget, Buffered};
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use http_body::Body;
use http_body_util::BodyExt;

use crate::failure::Fault;

/// The most that is allocated on the word of a Content-Length header alone, in bytes.
const FIRST_ALLOCATION_MAX: usize = 1024 * 1024;

/// The limits on bodies.
#[derive(Clone, Debug)]
pub struct Settings {
    /// One body, in bytes.
    pub body_bytes_max: usize,
    /// From the head to the end of the body.
    pub body_timeout: Duration,
    /// All bodies together.
    pub budget: Arc<Budget>,
}

/// Receives a request's whole body within the limits. The guard counts its bytes until it is dropped.
///
/// # Errors
/// [`Fault`]: compressed, too large, too slow, cut short, or no room.
pub async fn receive<B>(settings: &Settings, headers: &HeaderMap, body: B) -> Result<(Bytes, Buffered), Fault>
where
    B: Body<Data = Bytes>,
{
    let plain = |encoding: &http::HeaderValue| matches!(encoding.as_bytes(), b"" | b"identity");
    if !headers.get_all(CONTENT_ENCODING).iter().all(plain) {
        return Err(Fault::BodyCompressed);
    }
    let announced = headers
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<usize>().ok())
        .unwrap_or(0);
    if announced > settings.body_bytes_max {
        return Err(Fault::BodyTooLarge { limit: settings.body_bytes_max });
    }
    tokio::time::timeout(settings.body_timeout, collect(settings, announced, body))
        .await
        .unwrap_or_else(|_| Err(Fault::BodySlow { seconds: settings.body_timeout.as_secs() }))
}

async fn collect<B>(settings: &Settings, announced: usize, body: B) -> Result<(Bytes, Buffered), Fault>
where
    B: Body<Data = Bytes>,
{
    let mut body = pin!(body);
    let mut room = settings.budget.buffered();
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return Err(Fault::BodyCut) };
        let Ok(data) = frame.into_data() else { continue };
        if whole.len() + data.len() > settings.body_bytes_max {
            return Err(Fault::BodyTooLarge { limit: settings.body_bytes_max });
        }
        if !room.grow(data.len()) {
            return Err(Fault::BuffersFull);
        }
        if whole.is_empty() && data.len() >= announced && body.is_end_stream() {
            return Ok((data, room));
        }
        whole.reserve(data.len().max(announced.min(FIRST_ALLOCATION_MAX).saturating_sub(whole.len())));
        whole.extend_from_slice(&data);
    }
    Ok((whole.freeze(), room))
}

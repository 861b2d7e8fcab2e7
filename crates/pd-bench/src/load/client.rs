//! One client of the generator: its connections, one request at a time, read to the end and checked.

use std::net::SocketAddr;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, HeaderValue};
use http::{Method, Request, Response, Uri};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use tokio::time::Instant;

use super::{Load, Notes, Target};
use crate::api::Api;
use crate::body::Chain;
use crate::check::{Checker, Wrong, beginning};
use crate::dial::dial;
use crate::edges;

/// A client: a connection to the router, or one to each pool.
#[derive(Debug, Default)]
pub(super) struct Client {
    first: Connection,
    second: Connection,
}

#[derive(Debug, Default)]
struct Connection(Option<(SocketAddr, SendRequest<Chain>)>);

fn broken(error: impl std::fmt::Display) -> Wrong {
    Wrong::Connection(error.to_string())
}

impl Connection {
    async fn send(&mut self, to: SocketAddr, api: Api, body: Chain) -> Result<Response<Incoming>, Wrong> {
        let usable = match &mut self.0 {
            Some((open, sender)) => *open == to && sender.ready().await.is_ok(),
            None => false,
        };
        if !usable {
            self.0 = Some((to, dial(to).await.map_err(broken)?));
        }
        let Some((_, sender)) = &mut self.0 else { return Err(broken("no connection")) };
        let mut request = Request::new(body);
        *request.method_mut() = Method::POST;
        *request.uri_mut() = Uri::from_static(api.path());
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::from_static("bench"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        sender.send_request(request).await.map_err(broken)
    }
}

impl Client {
    /// Sends the next request and reads its answer to the end.
    pub(super) async fn ask(
        &mut self,
        load: &Load,
        notes: &Notes,
        start: Instant,
        measured: bool,
    ) -> Result<(), Wrong> {
        let (number, api) = (load.next_number(), load.ask.api);
        let answer = match &load.target {
            Target::Router(to) => self.first.send(*to, api, load.bodies.numbered(number)).await?,
            Target::Direct { prefill, decode } => {
                let of = |pool: &[SocketAddr]| {
                    let turn = usize::try_from(number).unwrap_or(0) % pool.len().max(1);
                    pool.get(turn).copied().ok_or_else(|| broken("no engine"))
                };
                let body = load.prefill_bodies.numbered(number);
                let first = self.first.send(of(prefill)?, api, body).await?;
                let member = handoff(&whole(first).await?)?;
                self.second.send(of(decode)?, api, load.bodies.with_member(number, &member)).await?
            }
        };
        read(answer, load, notes, start, measured).await
    }
}

/// Reads an answer, checks it and notes the times of its events.
async fn read(
    answer: Response<Incoming>,
    load: &Load,
    notes: &Notes,
    start: Instant,
    measured: bool,
) -> Result<(), Wrong> {
    let mut checker = Checker::new(&load.ask);
    let kind = answer.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let head = checker.head(answer.status().as_u16(), kind);
    if let Err(Wrong::Status(status, _)) = head {
        return Err(Wrong::Status(status, beginning(&all(answer).await?)));
    }
    head?;
    let mut body = answer.into_body();
    let mut last: Option<Instant> = None;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
        let events = checker.push(&data)?;
        if events == 0 {
            continue;
        }
        notes.events(events);
        if measured {
            let now = Instant::now();
            let first = last.is_none().then(|| now - start);
            notes.event_times(first, last.map(|last| now - last), events);
            last = Some(now);
        }
    }
    checker.end()
}

async fn whole(answer: Response<Incoming>) -> Result<Bytes, Wrong> {
    let status = answer.status().as_u16();
    let body = all(answer).await?;
    if status == 200 { Ok(body) } else { Err(Wrong::Status(status, beginning(&body))) }
}

async fn all(answer: Response<Incoming>) -> Result<Bytes, Wrong> {
    Ok(answer.into_body().collect().await.map_err(broken)?.to_bytes())
}

/// The member with the handoff of a mock engine's answer, which ends with it.
fn handoff(answer: &[u8]) -> Result<Vec<u8>, Wrong> {
    let wrong = || Wrong::Text(beginning(answer));
    let value = edges::value(answer, "kv_transfer_params").ok_or_else(wrong)?;
    let object = value.strip_suffix(b"}").ok_or_else(wrong)?;
    Ok([b",\"kv_transfer_params\":".as_slice(), object].concat())
}

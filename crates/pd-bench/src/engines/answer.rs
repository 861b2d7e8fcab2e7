//! What a mock engine says to a request, and when it refuses.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::stream::{Answer, Events};
use crate::api::{Api, HANDOFF_MARK, handoff};
use crate::edges::Edges;

/// What an engine is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Prefill,
    Decode,
}

/// One engine.
#[derive(Debug)]
pub(super) struct Engine {
    role: Role,
    port: u16,
    events: [Events; 3],
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const STREAM: HeaderValue = HeaderValue::from_static("text/event-stream; charset=utf-8");

impl Engine {
    pub(super) fn new(role: Role, port: u16) -> Self {
        Self { role, port, events: Api::ALL.map(Events::of) }
    }

    /// Reads a request and answers it.
    pub(super) async fn answer(&self, request: Request<Incoming>) -> Result<Response<Answer>, hyper::Error> {
        let api = Api::of_path(request.uri().path());
        if request.method() == Method::GET {
            let status =
                if request.uri().path() == "/health" { StatusCode::OK } else { StatusCode::NOT_FOUND };
            return Ok(reply(status, JSON, Answer::whole("{}")));
        }
        let Some(api) = api else { return Ok(refusal(StatusCode::NOT_FOUND, "no such path")) };
        let (mut edges, mut body) = (Edges::default(), request.into_body());
        while let Some(frame) = body.frame().await {
            if let Some(data) = frame?.data_ref() {
                edges.push(data);
            }
        }
        let answer = match self.role {
            Role::Prefill => self.prefill(api, &edges),
            Role::Decode => self.decode(api, &edges),
        };
        Ok(answer.unwrap_or_else(|why| refusal(StatusCode::BAD_REQUEST, why)))
    }

    fn prefill(&self, api: Api, body: &Edges) -> Result<Response<Answer>, &'static str> {
        let number = api.number_of(body).ok_or("the prompt carries no number")?;
        if body.number("max_tokens") != Some(1) || body.is_true("stream") {
            return Err("not a prefill leg: max_tokens is not 1, or it asks for a stream");
        }
        if !body.is_true("do_remote_decode") {
            return Err("a prefill leg without do_remote_decode");
        }
        Ok(reply(StatusCode::OK, JSON, Answer::whole(api.answer(1, &handoff(number, self.port)))))
    }

    fn decode(&self, api: Api, body: &Edges) -> Result<Response<Answer>, &'static str> {
        let number = api.number_of(body).ok_or("the prompt carries no number")?;
        if !body.is_true("do_remote_prefill") || body.number_after(HANDOFF_MARK) != Some(number) {
            return Err("a decode leg without the handoff of its own prompt");
        }
        let tokens = body.number("max_tokens").ok_or("no max_tokens")?;
        if !body.is_true("stream") {
            return Ok(reply(StatusCode::OK, JSON, Answer::whole(api.answer(tokens, ""))));
        }
        let interval_ms = body.number_after("\"m-").unwrap_or(0);
        let events = self.events.get(api as usize).ok_or("an API without events")?;
        Ok(reply(StatusCode::OK, STREAM, Answer::events(events, tokens, interval_ms)))
    }
}

fn reply(status: StatusCode, kind: HeaderValue, body: Answer) -> Response<Answer> {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}

fn refusal(status: StatusCode, why: &str) -> Response<Answer> {
    let body =
        format!(r#"{{"error":{{"message":"{why}","type":"BadRequestError","code":{}}}}}"#, status.as_u16());
    reply(status, JSON, Answer::whole(Bytes::from(body)))
}

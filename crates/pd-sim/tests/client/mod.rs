//! A client for tests of one engine: one request on a connection of its own.

#![allow(
    clippy::expect_used,
    clippy::panic,
    dead_code,
    reason = "a test fails by panicking, and none uses all of the client"
)]

use std::time::{Duration, Instant};

use pd_sim::Sim;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// An answer as it came.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    /// Chunks joined.
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("no JSON: {}", self.text))
    }

    /// The documents of a stream, or the one document.
    pub(crate) fn documents(&self) -> Vec<Value> {
        if self.text.starts_with('{') {
            return vec![self.json()];
        }
        let data = self.text.lines().filter_map(|line| line.strip_prefix("data: "));
        data.filter_map(|data| serde_json::from_str(data).ok()).collect()
    }
}

/// Sends a request and gives the connection.
pub(crate) async fn send(sim: &Sim, method: &str, path: &str, body: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(sim.addr()).await.expect("the sim");
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: sim\r\nx-request-id: r\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat()).await.expect("sent");
    stream
}

/// Reads to the end; the error is the connection's.
pub(crate) async fn read(mut stream: TcpStream) -> std::io::Result<Answer> {
    let mut bytes = Vec::new();
    let all = stream.read_to_end(&mut bytes);
    tokio::time::timeout(Duration::from_secs(10), all).await.expect("an end within 10 s")?;
    let text = String::from_utf8(bytes).expect("UTF-8");
    let (head, mut rest) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    let mut body = String::new();
    if head.contains("transfer-encoding: chunked") {
        while let Some((size, after)) = rest.split_once("\r\n") {
            let size = usize::from_str_radix(size, 16).unwrap_or(0);
            let (chunk, after) = after.split_at_checked(size).unwrap_or((after, ""));
            body.push_str(chunk);
            rest = after.strip_prefix("\r\n").unwrap_or_default();
        }
    } else {
        body.push_str(rest);
    }
    Ok(Answer { status, head: head.to_owned(), text: body })
}

/// Sends a request and reads the answer.
pub(crate) async fn call(sim: &Sim, method: &str, path: &str, body: &[u8]) -> Answer {
    read(send(sim, method, path, body).await).await.expect("a whole answer")
}

/// POSTs a document.
pub(crate) async fn post(sim: &Sim, path: &str, body: &Value) -> Answer {
    call(sim, "POST", path, body.to_string().as_bytes()).await
}

/// A request of this API for `tokens` tokens.
pub(crate) fn ask(path: &str, prompt: &str, tokens: usize) -> Value {
    match path {
        "/v1/completions" => serde_json::json!({"prompt": prompt, "max_tokens": tokens}),
        "/v1/responses" => serde_json::json!({"input": prompt, "max_output_tokens": tokens}),
        "/inference/v1/generate" => {
            let ids: Vec<u8> = prompt.bytes().collect();
            serde_json::json!({"token_ids": ids, "sampling_params": {"max_tokens": tokens}})
        }
        _ => {
            serde_json::json!({"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens})
        }
    }
}

/// A document with some members set.
pub(crate) fn with(mut body: Value, members: &Value) -> Value {
    for (name, value) in members.as_object().into_iter().flatten() {
        body.as_object_mut().expect("an object").insert(name.clone(), value.clone());
    }
    body
}

/// Runs the prefill leg of a request and gives its handoff.
pub(crate) async fn prefill(sim: &Sim, path: &str, prompt: &str) -> Value {
    let ask = serde_json::json!({"kv_transfer_params": {"do_remote_decode": true}});
    let answer = post(sim, path, &with(self::ask(path, prompt, 1), &ask)).await;
    answer.json().get("kv_transfer_params").cloned().expect("a handoff")
}

/// Waits up to 5 s for something to become true.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(5);
    while !holds() {
        assert!(Instant::now() < end, "not within 5 s: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

//! Faults, and the edges of the HTTP server: what a broken or dying engine looks like from outside.

#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

mod client;

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use client::{ask, call, post, read, send, until, with};
use pd_sim::{Fault, FaultKind, Junk, Latency, Role, Sim, SimConfig};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const CHAT: &str = "/v1/chat/completions";

async fn plain() -> Sim {
    Sim::start(SimConfig::default()).await.expect("a free port")
}

fn once(kind: FaultKind) -> Fault {
    Fault { kind, times: Some(1) }
}

async fn ends(sim: &Sim, stream: bool) -> std::io::Result<client::Answer> {
    let body = with(ask(CHAT, "x", 6), &json!({ "stream": stream }));
    read(send(sim, "POST", CHAT, body.to_string().as_bytes()).await).await
}

#[tokio::test]
async fn connections_end_as_told() {
    let sim = plain().await;
    sim.set_fault(once(FaultKind::Reset));
    assert_eq!(ends(&sim, false).await.expect_err("a reset").kind(), ErrorKind::ConnectionReset);
    sim.set_fault(once(FaultKind::Close));
    assert_eq!(ends(&sim, false).await.expect("an end").status, 0);
    sim.set_fault(once(FaultKind::ResetAfter(3)));
    assert_eq!(ends(&sim, true).await.expect_err("a reset").kind(), ErrorKind::ConnectionReset);
    sim.set_fault(once(FaultKind::CloseAfter(3)));
    let closed = ends(&sim, true).await.expect("an end");
    assert_eq!((closed.text.matches("data: ").count(), closed.text.ends_with("\n\n")), (3, true));
    sim.set_fault(once(FaultKind::CutInside(3)));
    let cut = ends(&sim, true).await.expect("an end");
    assert_eq!((cut.text.matches("data: ").count(), cut.text.ends_with("\n\n")), (4, false));
    assert!(ends(&sim, true).await.expect("whole").text.ends_with("data: [DONE]\n\n"));
    until("nothing runs", || sim.running() == 0).await;
}

#[tokio::test]
async fn answers_are_what_they_are_told_to_be() {
    let sim = plain().await;
    sim.set_fault(once(FaultKind::Status { status: 429, body: "{}".into(), retry_after: Some(7) }));
    let busy = ends(&sim, false).await.expect("an answer");
    assert_eq!((busy.status, busy.head.contains("retry-after: 7")), (429, true));
    for junk in [Junk::Html, Junk::Empty, Junk::Half] {
        sim.set_fault(once(FaultKind::Junk(junk)));
        let answer = ends(&sim, false).await.expect("an answer");
        assert_eq!(answer.status, 200);
        assert!(serde_json::from_str::<serde_json::Value>(&answer.text).is_err());
    }
    sim.set_fault(once(FaultKind::DelayMs(80)));
    let began = Instant::now();
    ends(&sim, false).await.expect("an answer");
    assert!(began.elapsed() >= Duration::from_millis(80));
}

#[tokio::test]
async fn a_stall_lasts_until_the_client_leaves() {
    let sim = plain().await;
    sim.set_fault(once(FaultKind::Stall));
    let body = ask(CHAT, "x", 2).to_string();
    let mut connection = send(&sim, "POST", CHAT, body.as_bytes()).await;
    let silent = tokio::time::timeout(Duration::from_millis(100), connection.read_u8()).await;
    assert!(silent.is_err() && sim.running() == 1);
    drop(connection);
    until("it was dropped", || sim.running() == 0 && sim.connections() == 0).await;
}

#[tokio::test]
async fn a_refusing_engine_refuses_at_once_and_comes_back() {
    let sim = plain().await;
    let id = sim.engine_id();
    let mut idle = TcpStream::connect(sim.addr()).await.expect("open");
    until("it is in", || sim.connections() == 1).await;
    sim.set_fault(Fault { kind: FaultKind::Refuse, times: None });
    let refused = TcpStream::connect(sim.addr()).await.expect_err("no listener");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(idle.read_u8().await.expect_err("reset").kind(), ErrorKind::ConnectionReset);
    sim.clear_faults();
    assert_eq!(ends(&sim, false).await.expect("an answer").status, 200);
    sim.set_fault(Fault { kind: FaultKind::RefuseMs(60), times: None });
    assert!(TcpStream::connect(sim.addr()).await.is_err());
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(ends(&sim, false).await.expect("an answer").status, 200);
    assert_eq!(sim.engine_id(), id);
}

#[tokio::test]
async fn a_program_can_be_told_over_http() {
    let sim = plain().await;
    let id = sim.engine_id();
    let tell = async |text: &str| call(&sim, "POST", "/sim/fault", text.as_bytes()).await.status;
    assert_eq!(tell(r#"{"kind":"reset"}"#).await, 200);
    assert!(ends(&sim, false).await.is_err());
    assert_eq!(call(&sim, "DELETE", "/sim/fault", b"").await.status, 200);
    assert!(ends(&sim, false).await.is_ok());
    assert_eq!(tell(r#"{"kind":"nonsense"}"#).await, 400);
    assert_eq!(tell(r#"{"kind":{"restart_ms":50}}"#).await, 200);
    until("it lives again", || sim.engine_id() != id).await;
    until("it is ready", || std::net::TcpStream::connect(sim.addr()).is_ok()).await;
    assert_eq!(call(&sim, "GET", "/sim/ledger", b"").await.json()["issued"], 0);
    assert_eq!(sim.requests().len(), 2, "what the sim itself was told is not kept");
}

#[tokio::test]
async fn health_can_be_bad_or_slow() {
    let sim = plain().await;
    assert_eq!(call(&sim, "GET", "/health", b"").await.status, 200);
    sim.set_fault(Fault { kind: FaultKind::Health(503), times: None });
    sim.set_fault(Fault { kind: FaultKind::HealthDelayMs(80), times: None });
    let began = Instant::now();
    assert_eq!(call(&sim, "GET", "/health", b"").await.status, 503);
    assert!(began.elapsed() >= Duration::from_millis(80));
    assert_eq!(ends(&sim, false).await.expect("an answer").status, 200);
}

#[tokio::test]
async fn a_stop_resets_and_a_restart_is_a_new_life() {
    let sim = plain().await;
    let id = sim.engine_id();
    sim.set_fault(once(FaultKind::StallAfter(1)));
    let body = with(ask(CHAT, "x", 6), &json!({"stream": true})).to_string();
    let mut connection = send(&sim, "POST", CHAT, body.as_bytes()).await;
    connection.read_u8().await.expect("a head");
    sim.stop().await;
    assert_eq!((sim.running(), sim.connections()), (0, 0));
    assert!(read(connection).await.is_err());
    assert!(TcpStream::connect(sim.addr()).await.is_err());
    sim.restart().await.expect("the same port");
    assert_ne!(sim.engine_id(), id);
    assert_eq!(ends(&sim, true).await.expect("an answer").status, 200);
}

#[tokio::test]
async fn a_stream_has_its_head_before_its_first_token_and_a_token_each_gap() {
    let gap = Duration::from_millis(20);
    let latency = Latency { prefill_base: Duration::from_millis(150), itl: gap, ..Latency::default() };
    let sim = Sim::start(SimConfig { latency, ..SimConfig::default() }).await.expect("a free port");
    let body = with(ask(CHAT, "x", 6), &json!({"stream": true})).to_string();
    let began = Instant::now();
    let mut connection = send(&sim, "POST", CHAT, body.as_bytes()).await;
    connection.read_u8().await.expect("a head");
    assert!(began.elapsed() < Duration::from_millis(120), "the head waited for the first token");
    read(connection).await.expect("the rest");
    assert!(began.elapsed() >= Duration::from_millis(150) + 5 * gap);
}

#[tokio::test]
async fn idle_connections_are_closed() {
    let keep_alive = Duration::from_millis(80);
    let sim = Sim::start(SimConfig { keep_alive, ..SimConfig::default() }).await.expect("a free port");
    let mut connection = TcpStream::connect(sim.addr()).await.expect("open");
    for _ in 0..2 {
        connection.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("sent");
        let mut head = [0; 512];
        assert!(connection.read(&mut head).await.expect("an answer") > 20);
        tokio::time::sleep(keep_alive / 4).await;
    }
    let began = Instant::now();
    // A close, not a reset; hyper may say first that the request timed out.
    connection.read_to_end(&mut Vec::new()).await.expect("an end");
    assert!(began.elapsed() < 4 * keep_alive);
    until("it is out", || sim.connections() == 0).await;
}

#[tokio::test]
async fn paths_and_methods() {
    let sim = plain().await;
    let not_found = call(&sim, "GET", "/nope", b"").await;
    assert_eq!((not_found.status, not_found.text.as_str()), (404, r#"{"detail":"Not Found"}"#));
    let wrong = call(&sim, "GET", CHAT, b"").await;
    assert_eq!((wrong.status, wrong.text.as_str()), (405, r#"{"detail":"Method Not Allowed"}"#));
    assert!(wrong.head.contains("allow: POST") && wrong.head.contains("server: uvicorn"), "{}", wrong.head);
    assert_eq!(call(&sim, "DELETE", "/health", b"").await.status, 405);
    assert_eq!(call(&sim, "GET", "/version", b"").await.text, r#"{"version":"0.32.0"}"#);
    let models = call(&sim, "GET", "/v1/models", b"").await.json();
    assert_eq!(
        (&models["data"][0]["id"], &models["data"][0]["max_model_len"]),
        (&json!("sim"), &json!(16_384))
    );
    let tokens = post(&sim, "/tokenize", &json!({"prompt": "a b"})).await.json()["tokens"].clone();
    assert_eq!(tokens.as_array().map(Vec::len), Some(2));
}

#[tokio::test]
async fn no_input_takes_the_engine_down() {
    let sim = Sim::start(SimConfig::new(Role::Both)).await.expect("a free port");
    let long = "[".repeat(10_000);
    let bodies = [
        "",
        "null",
        "[]",
        "7",
        "\"x\"",
        "{",
        "{}",
        "{\"prompt\":{}}",
        "{\"prompt\":[[]]}",
        "{\"prompt\":[[],\"\"]}",
        "{\"prompt\":\"x\",\"max_tokens\":1e300}",
        "{\"prompt\":\"x\",\"n\":-1}",
        "{\"messages\":[null,7,{}]}",
        "{\"prompt\":\"x\",\"logprobs\":-5}",
        "{\"prompt\":[99999999999]}",
        "{\"token_ids\":[]}",
        "{\"prompt\":\"x\",\"stop\":[\"\",7]}",
        "{\"prompt\":\"x\",\"echo\":true,\"max_tokens\":0,\"stream\":true}",
        "{\"prompt\":\"x\",\"kv_transfer_params\":7}",
        "{\"prompt\":\"x\",\"kv_transfer_params\":{\"do_remote_prefill\":\"yes\"}}",
        "{\"prompt\":\"x\",\"max_tokens\":1,\"kv_transfer_params\":{\"do_remote_decode\":\"yes\",\"do_remote_prefill\":1}}",
        "{\"token_ids\":[1],\"sampling_params\":7}",
        "{\"input\":[{\"content\":[{}]}]}",
        &long,
    ];
    let paths = [
        "/v1/completions",
        CHAT,
        "/v1/responses",
        "/v1/messages",
        "/inference/v1/generate",
        "/tokenize",
        "/detokenize",
        "/v1/chat/completions/render",
        "/v1/embeddings",
        "/sim/fault",
    ];
    for path in paths {
        for body in bodies {
            let answer = call(&sim, "POST", path, body.as_bytes()).await;
            assert!([200, 400, 500].contains(&answer.status), "{path} {body}: {answer:?}");
        }
        assert_ne!(call(&sim, "POST", path, &[0xff, 0xfe]).await.status, 0);
    }
    until("nothing runs", || sim.running() == 0).await;
    assert_eq!(ends(&sim, true).await.expect("an answer").status, 200);
}

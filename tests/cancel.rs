//! The client leaves: the engine sees its connection closed within a second, and decode is not called after a
//! leave during prefill.

use std::time::{Duration, Instant};

use pd_sim::{Fault, FaultKind, Sim};
use pd_tests::{Bed, ask, bed, request, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn with_bytes_behind_the_request() {
    let bed = bed(1, 1, |_| {}).await;
    for more in ["\r\n", "G", "GET /version HTTP/1.1\r\nhost: r\r\n\r\n"] {
        for prefill in [true, false] {
            let engine = if prefill { &bed.prefill[0] } else { &bed.decode[0] };
            engine.set_fault(Fault { kind: FaultKind::Stall, times: Some(1) });
            let mut connection = TcpStream::connect(bed.address()).await.unwrap();
            let body = ask(CHAT, "words", 8, false).to_string();
            let bytes = String::from_utf8(request("POST", CHAT, &[], body.as_bytes())).unwrap();
            let bytes = bytes.replace("connection: close\r\n", "");
            connection.write_all(format!("{bytes}{more}").as_bytes()).await.unwrap();
            let before = bed.decode[0].requests().len();
            leaves(&bed, engine, connection, false).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert_eq!(
                bed.decode[0].requests().len(),
                before + usize::from(!prefill),
                "{more:?} prefill={prefill}"
            );
        }
    }
}

async fn send(bed: &Bed, stream: bool) -> TcpStream {
    let mut connection = TcpStream::connect(bed.address()).await.unwrap();
    let body = ask(CHAT, "words", 8, stream).to_string();
    connection.write_all(&request("POST", CHAT, &[], body.as_bytes())).await.unwrap();
    connection
}

async fn leaves(bed: &Bed, engine: &Sim, connection: TcpStream, half: bool) {
    until("the engine works", || engine.running() == 1).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let left = Instant::now();
    let mut kept = None;
    if half {
        // A FIN while still reading cannot be told from a close.
        let mut connection = connection;
        connection.shutdown().await.unwrap();
        kept = Some(connection);
    } else {
        drop(connection);
    }
    until("the engine's work has stopped", || engine.running() == 0).await;
    assert!(left.elapsed() < Duration::from_secs(1), "took {:?}", left.elapsed());
    until("the request is counted", || bed.metric("pd_router_requests_in_flight") == 0.0).await;
    assert!(engine.requests().last().unwrap().closed_early);
    drop(kept);
}

#[tokio::test]
async fn during_prefill() {
    let bed = bed(1, 1, |_| {}).await;
    for half in [false, true] {
        bed.prefill[0].set_fault(Fault { kind: FaultKind::Stall, times: Some(1) });
        leaves(&bed, &bed.prefill[0], send(&bed, half).await, half).await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(bed.decode[0].requests().len(), 0, "decode was called for a client that had left");
    assert_eq!(bed.metric("pd_router_requests_total{api=\"chat\",outcome=\"client_closed\"}"), 2.0);
    bed.clean().await;
}

#[tokio::test]
async fn while_decode_has_not_answered() {
    let bed = bed(1, 1, |_| {}).await;
    for half in [false, true] {
        bed.decode[0].set_fault(Fault { kind: FaultKind::Stall, times: Some(1) });
        leaves(&bed, &bed.decode[0], send(&bed, half).await, half).await;
    }
    bed.clean().await;
}

#[tokio::test]
async fn in_a_silent_stretch_of_a_stream() {
    let bed = bed(1, 1, |_| {}).await;
    for half in [false, true] {
        bed.decode[0].set_fault(Fault { kind: FaultKind::StallAfter(2), times: Some(1) });
        let mut connection = send(&bed, true).await;
        let mut first = [0; 64];
        connection.read_exact(&mut first).await.unwrap();
        leaves(&bed, &bed.decode[0], connection, half).await;
    }
    bed.clean().await;
}

#[tokio::test]
async fn a_slow_reader_slows_the_engine_and_costs_no_memory() {
    let bed = bed(1, 1, |_| {}).await;
    let body = serde_json::json!({
        "model": "sim", "prompt": "x", "max_tokens": 16_000, "n": 8, "temperature": 1, "stream": true,
    });
    let mut connection = TcpStream::connect(bed.address()).await.unwrap();
    connection
        .write_all(&request("POST", "/v1/completions", &[], body.to_string().as_bytes()))
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    // 128,000 events of 240 bytes do not fit in the sockets of both hops, so the engine has to wait.
    assert_eq!(bed.decode[0].running(), 1, "the engine wrote everything: somebody buffers");
    let answer = pd_tests::read(connection).await;
    assert!(answer.whole && answer.text().ends_with("data: [DONE]\n\n"));
    assert_eq!(answer.text().matches("data: ").count(), 128_001);
    bed.clean().await;
}

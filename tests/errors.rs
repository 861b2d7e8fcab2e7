//! Errors are true: an engine's own word passes, the router's names the leg and no address, and half an
//! answer never looks like a whole one.

use std::time::{Duration, Instant};

use pd_sim::{Fault, FaultKind, Junk};
use pd_tests::{Answer, Bed, ask, bed, exchange, request};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const CHAT: &str = "/v1/chat/completions";

async fn chat(bed: &Bed, stream: bool) -> Answer {
    bed.post(CHAT, &ask(CHAT, "some words", 6, stream)).await
}

fn once(kind: FaultKind) -> Fault {
    Fault { kind, times: Some(1) }
}

#[tokio::test]
async fn an_engines_refusal_passes_as_it_is() {
    let bed = bed(1, 1, |config| config.dispatch.retry.max_retries = 0).await;
    let body = r#"{"error":{"message":"slow down","code":429}}"#.to_owned();
    for stream in [false, true] {
        let refusal = FaultKind::Status { status: 429, body: body.clone(), retry_after: Some(7) };
        bed.prefill[0].set_fault(once(refusal.clone()));
        let answer = chat(&bed, stream).await;
        assert_eq!(
            (answer.status, answer.text(), answer.header("retry-after")),
            (429, body.as_str(), Some("7"))
        );
        assert_eq!(bed.decode[0].requests().len(), 0, "decode was called");
        bed.decode[0].set_fault(once(refusal));
        let answer = chat(&bed, stream).await;
        assert_eq!((answer.status, answer.text()), (429, body.as_str()));
        bed.decode[0].clear_requests();
    }
}

#[tokio::test]
async fn a_leg_that_fails_is_named_with_its_code() {
    let bed = bed(1, 1, |config| {
        config.dispatch.retry.max_retries = 0;
        config.dispatch.prefill_timeout = Duration::from_millis(200);
        config.dispatch.request_timeout = Duration::from_millis(200);
        config.dispatch.first_byte_timeout = Duration::from_millis(200);
    })
    .await;
    for (prefill, kind, status, code) in [
        (true, FaultKind::Reset, 502, "prefill_reset"),
        (true, FaultKind::Close, 502, "prefill_reset"),
        (true, FaultKind::Stall, 504, "prefill_timeout"),
        (true, FaultKind::Junk(Junk::Html), 502, "prefill_bad_answer"),
        (true, FaultKind::Junk(Junk::Empty), 502, "prefill_bad_answer"),
        (true, FaultKind::Junk(Junk::Half), 502, "prefill_bad_answer"),
        (true, FaultKind::CutInside(0), 502, "prefill_cut"),
        (false, FaultKind::Reset, 502, "decode_reset"),
        (false, FaultKind::Stall, 504, "decode_timeout"),
    ] {
        let engine = if prefill { &bed.prefill[0] } else { &bed.decode[0] };
        engine.set_fault(Fault { kind: kind.clone(), times: None });
        let answer = chat(&bed, true).await;
        assert_eq!((answer.status, answer.code()), (status, code.into()), "{kind:?}");
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert!(!answer.text().contains("127.0.0.1"), "{}", answer.text());
        engine.clear_faults();
        // One that reset a connection is out until the next good probe.
        bed.router.all_up().await;
        assert_eq!(chat(&bed, false).await.status, 200, "after {kind:?}");
    }
    bed.prefill[0].stop().await;
    let answer = chat(&bed, false).await;
    assert_eq!((answer.status, answer.code()), (503, "prefill_unreachable".into()));
    assert!(answer.header("retry-after").is_some());
}

#[tokio::test]
async fn a_stream_that_breaks_between_events_says_so() {
    let bed = bed(1, 1, |_| {}).await;
    for (path, end, done) in [
        ("/v1/completions", "\"code\":\"decode_broke_off\"}}\n\ndata: [DONE]\n\n", true),
        (CHAT, "\"code\":\"decode_broke_off\"}}\n\ndata: [DONE]\n\n", true),
        ("/inference/v1/generate", "\"code\":\"decode_broke_off\"}}\n\ndata: [DONE]\n\n", true),
        ("/v1/responses", "\"param\":null}\n\n", false),
        ("/v1/messages", "(decode_broke_off)\"}}\n\n", false),
    ] {
        for kind in [FaultKind::ResetAfter(3), FaultKind::CloseAfter(3)] {
            bed.decode[0].set_fault(once(kind));
            let answer = bed.post(path, &ask(path, "some words", 6, true)).await;
            assert!(answer.whole && answer.text().ends_with(end), "{path}: {}", answer.text());
            assert_eq!(answer.text().contains("[DONE]"), done, "{path}");
            assert_eq!(answer.text().matches("event: error\ndata: ").count(), usize::from(!done), "{path}");
        }
    }
    assert_eq!(bed.metric("pd_router_requests_total{api=\"chat\",outcome=\"engine_error\"}"), 2.0);
}

#[tokio::test]
async fn an_answer_that_breaks_elsewhere_is_an_aborted_transfer() {
    let bed = bed(1, 1, |_| {}).await;
    bed.decode[0].set_fault(once(FaultKind::CutInside(2)));
    let answer = chat(&bed, true).await;
    assert!(answer.status == 200 && !answer.whole && !answer.text().contains("[DONE]"));
    bed.decode[0].set_fault(once(FaultKind::CutInside(0)));
    let answer = chat(&bed, false).await;
    assert!(answer.status == 200 && !answer.whole && !answer.body.is_empty());
}

#[tokio::test]
async fn a_silent_stream_ends_at_the_idle_limit() {
    let bed = bed(1, 1, |config| config.dispatch.idle_timeout = Duration::from_millis(200)).await;
    bed.decode[0].set_fault(once(FaultKind::StallAfter(2)));
    let started = Instant::now();
    let answer = chat(&bed, true).await;
    assert!(answer.whole && answer.text().contains("decode_idle_timeout"), "{}", answer.text());
    assert!(started.elapsed() < Duration::from_secs(3));
    bed.clean().await;
}

#[tokio::test]
async fn a_body_that_is_none_reaches_no_engine() {
    let bed = bed(1, 1, |config| config.admit.body_bytes_max = 1000).await;
    let big = format!("{{\"prompt\":\"{}\"}}", "x".repeat(2000));
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(300), "]".repeat(300));
    for (headers, body, status, code) in [
        (&[][..], "", 400, "invalid_json"),
        (&[], "  ", 400, "invalid_json"),
        (&[], "[]", 400, "invalid_json"),
        (&[], "{", 400, "invalid_json"),
        (&[], "{\"a\":NaN}", 400, "invalid_json"),
        (&[], "{\"a\":1} x", 400, "invalid_json"),
        (&[], deep.as_str(), 400, "body_too_deep"),
        (&[], "{\"stream\":true,\"str\\u0065am\":false}", 400, "duplicate_key"),
        (&[], big.as_str(), 413, "body_too_large"),
        (&[("content-encoding", "gzip")], "{}", 415, "body_compressed"),
    ] {
        let answer = exchange(bed.address(), &request("POST", CHAT, headers, body.as_bytes())).await;
        assert_eq!((answer.status, answer.code()), (status, code.into()), "{body:.40}");
    }
    let unknown = exchange(bed.address(), &request("POST", "/v1/nope", &[], b"{}")).await;
    assert_eq!((unknown.status, unknown.code()), (404, "unknown_path".into()));
    let method = exchange(bed.address(), &request("GET", CHAT, &[], b"")).await;
    assert_eq!((method.status, method.header("allow")), (405, Some("post")));
    assert_eq!(bed.prefill[0].requests().len() + bed.decode[0].requests().len(), 0);
}

#[tokio::test]
async fn a_large_body_in_chunks_is_refused_when_it_crosses_the_limit() {
    let bed = bed(1, 1, |config| config.admit.body_bytes_max = 1000).await;
    let mut bytes =
        format!("POST {CHAT} HTTP/1.1\r\nhost: r\r\ntransfer-encoding: chunked\r\n\r\n").into_bytes();
    for _ in 0..200 {
        bytes.extend_from_slice(format!("3e8\r\n{}\r\n", "x".repeat(1000)).as_bytes());
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
    let answer = exchange(bed.address(), &bytes).await;
    assert_eq!((answer.status, answer.code()), (413, "body_too_large".into()));
}

#[tokio::test]
async fn what_comes_too_slowly_is_told_so() {
    let bed = bed(1, 1, |config| {
        config.admit.body_timeout = Duration::from_millis(200);
        config.listen.header_timeout = Duration::from_millis(200);
    })
    .await;
    for (sent, code) in [
        (format!("POST {CHAT} HTTP/1.1\r\nhost: r\r\ncontent-length: 50\r\n\r\n{{\"a\""), "body_timeout"),
        (format!("POST {CHAT} HTTP/1.1\r\nhost: r\r\n"), "head_timeout"),
    ] {
        let mut stream = TcpStream::connect(bed.address()).await.unwrap();
        stream.write_all(sent.as_bytes()).await.unwrap();
        let answer = pd_tests::read(stream).await;
        assert_eq!((answer.status, answer.code(), answer.whole), (408, code.into(), true));
    }
    let mut idle = TcpStream::connect(bed.address()).await.unwrap();
    let mut nothing = Vec::new();
    idle.read_to_end(&mut nothing).await.unwrap();
    assert!(nothing.is_empty(), "an idle connection is closed without a word");
}

#[tokio::test]
async fn all_bodies_together_have_one_bound() {
    let budget = pd_router::admit::budget::Budget::new(3000);
    let bed = bed(1, 1, |config| config.admit.budget = std::sync::Arc::clone(&budget)).await;
    let body = json!({"model": "sim", "prompt": "y".repeat(1800), "max_tokens": 1}).to_string();
    let mut held = TcpStream::connect(bed.address()).await.unwrap();
    let whole = request("POST", "/v1/completions", &[], body.as_bytes());
    held.write_all(&whole[..whole.len() - 10]).await.unwrap();
    pd_tests::until("the held body is counted", || budget.used() > 1500).await;
    let refused = exchange(bed.address(), &whole).await;
    assert_eq!((refused.status, refused.code()), (503, "buffers_full".into()));
    assert!(refused.header("retry-after").is_some());
    held.write_all(&whole[whole.len() - 10..]).await.unwrap();
    assert_eq!(pd_tests::read(held).await.status, 200);
    assert_eq!(exchange(bed.address(), &whole).await.status, 200);
    assert_eq!(bed.metric("pd_router_requests_total{api=\"completions\",outcome=\"shed\"}"), 1.0);
}

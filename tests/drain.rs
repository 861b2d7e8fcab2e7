//! The end: a drain that loses nothing and says what it cuts.

use std::time::{Duration, Instant};

use pd_tests::{Bed, ask, bed_of, exchange, request, slow_tokens, until};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn a_drain_turns_readiness_refuses_new_requests_and_lets_streams_end() {
    let bed = bed_of(1, 1, slow_tokens(), |_| {}).await;
    let address = bed.address();
    let stream = bed.begin_stream(20).await;
    until("the stream runs", || bed.decode[0].running() == 1).await;
    let Bed { router, prefill, decode, .. } = bed;
    #[allow(clippy::disallowed_methods, reason = "a test of its own")]
    let stopping = tokio::spawn(router.stop());
    tokio::time::sleep(Duration::from_millis(100)).await;
    let ready = exchange(address, &request("GET", "/readiness", &[], b"")).await;
    assert_eq!(ready.status, 503, "{}", ready.text());
    assert_eq!(exchange(address, &request("GET", "/liveness", &[], b"")).await.status, 200);
    let body = ask(CHAT, "a", 2, false).to_string();
    let refused = exchange(address, &request("POST", CHAT, &[], body.as_bytes())).await;
    assert_eq!((refused.status, refused.code()), (503, "draining".into()));
    assert_eq!(refused.header("connection"), Some("close"));
    let answer = pd_tests::read(stream).await;
    assert!(answer.whole && answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
    assert!(!answer.text().contains("error"));
    tokio::time::timeout(Duration::from_secs(3), stopping).await.expect("the end").unwrap();
    assert!(TcpStream::connect(address).await.is_err());
    drop((prefill, decode));
}

#[tokio::test]
async fn at_the_drain_timeout_streams_are_told_so() {
    let bed = bed_of(1, 1, slow_tokens(), |config| config.drain.timeout = Duration::from_millis(200)).await;
    let mut stream = bed.begin_stream(200).await;
    let mut first = [0; 32];
    stream.read_exact(&mut first).await.unwrap();
    let Bed { router, prefill, decode, .. } = bed;
    let started = Instant::now();
    tokio::join!(router.stop(), async {
        let mut rest = String::new();
        stream.read_to_string(&mut rest).await.unwrap();
        assert!(rest.contains("router_draining") && rest.contains("data: [DONE]\n\n"), "{rest}");
    });
    assert!(started.elapsed() < Duration::from_secs(5));
    drop((prefill, decode));
}

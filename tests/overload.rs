//! Overload: a true cap held to the last byte, an honest queue, room by engine.

use std::time::{Duration, Instant};

use pd_router::admit::queue::Queue;
use pd_tests::{ask, bed_of, exchange, request, slow_tokens, until};

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn the_cap_holds_to_the_last_byte_and_a_full_queue_refuses_at_once() {
    let bed =
        bed_of(1, 1, slow_tokens(), |config| config.queue = Queue::new(2, 2, Duration::from_secs(30))).await;
    let mut sent = Vec::new();
    for _ in 0..4 {
        sent.push(bed.begin_stream(10).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let started = Instant::now();
    let refused = bed.post(CHAT, &ask(CHAT, "a", 2, false)).await;
    assert_eq!((refused.status, refused.code()), (429, "queue_full".into()));
    assert!(refused.header("retry-after").is_some() && started.elapsed() < Duration::from_millis(300));
    assert_eq!(bed.decode[0].running(), 2);
    // One that leaves while it waits gives its place back, and no engine hears of it.
    drop(sent.pop());
    tokio::time::sleep(Duration::from_millis(100)).await;
    let late = bed.begin_stream(2).await;
    for connection in sent.into_iter().chain([late]) {
        let answer = pd_tests::read(connection).await;
        assert!(answer.status == 200 && answer.whole, "{}", answer.text());
    }
    assert_eq!(bed.decode[0].requests().len(), 4);
    bed.clean().await;
}

#[tokio::test]
async fn the_queue_timeout_is_kept() {
    let bed =
        bed_of(1, 1, slow_tokens(), |config| config.queue = Queue::new(1, 5, Duration::from_millis(300)))
            .await;
    let first = bed.begin_stream(20).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let started = Instant::now();
    let refused = bed.post(CHAT, &ask(CHAT, "a", 2, false)).await;
    assert_eq!((refused.status, refused.code()), (503, "queue_timeout".into()));
    assert!((250..900).contains(&started.elapsed().as_millis()), "{:?}", started.elapsed());
    assert!(pd_tests::read(first).await.whole);
}

#[tokio::test]
async fn an_engine_has_no_more_than_it_may() {
    let bed = bed_of(1, 2, slow_tokens(), |config| config.decode_per_engine_max = Some(1)).await;
    let first = bed.begin_stream(20).await;
    let second = bed.begin_stream(20).await;
    until("each decode engine has one", || bed.decode.iter().all(|sim| sim.running() == 1)).await;
    let refused = bed.post(CHAT, &ask(CHAT, "a", 2, false)).await;
    assert_eq!((refused.status, refused.code()), (503, "engines_full".into()));
    assert!(refused.header("retry-after").is_some());
    assert_eq!(bed.sum("pd_router_requests_total", &["outcome=\"shed\""]), 1.0);
    assert!(pd_tests::read(first).await.whole && pd_tests::read(second).await.whole);
    assert_eq!(bed.post(CHAT, &ask(CHAT, "a", 2, false)).await.status, 200);
}

#[tokio::test]
async fn beyond_the_descriptors_requests_are_refused_and_health_and_metrics_still_answer() {
    let bed = bed_of(1, 1, slow_tokens(), |config| config.listen.connections_max = 3).await;
    let mut streams = Vec::new();
    for _ in 0..3 {
        streams.push(bed.begin_stream(20).await);
    }
    until("three streams run", || bed.decode[0].running() == 3).await;
    for _ in 0..40 {
        let refused = bed.post(CHAT, &ask(CHAT, "a", 2, false)).await;
        assert_eq!((refused.status, refused.code()), (503, "connections_full".into()));
        assert_eq!(refused.header("connection"), Some("close"));
        for path in ["/health", "/metrics"] {
            let answer = exchange(bed.address(), &request("GET", path, &[], b"")).await;
            assert_eq!(answer.status, 200, "{path}");
        }
    }
    for stream in streams {
        assert!(pd_tests::read(stream).await.whole);
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let refused = bed.metric("pd_router_requests_total{api=\"unknown\",outcome=\"shed\"}");
    assert_eq!(refused, 40.0, "each was counted");
    bed.all_good(2, "room again").await;
}

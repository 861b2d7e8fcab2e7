//! The circuit breaker counts only what the engine did, takes a failing engine out, and lets one request at a
//! time try it again.

use std::time::Duration;

use pd_sim::{Fault, FaultKind};
use pd_tests::{Bed, ask, bed};

const CHAT: &str = "/v1/chat/completions";

fn status(status: u16) -> FaultKind {
    FaultKind::Status { status, body: r#"{"error":{"message":"boom"}}"#.to_owned(), retry_after: None }
}

async fn two_of_each(open_for: Duration) -> Bed {
    bed(2, 2, |config| {
        config.breaker.failure_threshold = 3;
        config.breaker.success_threshold = 1;
        config.breaker.open_for = open_for;
        config.dispatch.retry.initial_backoff = Duration::from_millis(5);
    })
    .await
}

#[tokio::test]
async fn a_failing_engine_of_either_role_is_taken_out() {
    let bed = two_of_each(Duration::from_secs(60)).await;
    for engine in [&bed.decode[0], &bed.prefill[0]] {
        engine.set_fault(Fault { kind: status(500), times: None });
        engine.clear_requests();
        bed.all_good(24, "one of two answers 500").await;
        let asked = engine.requests().len();
        assert!((1..=6).contains(&asked), "the failing engine got {asked} requests");
        engine.clear_faults();
    }
    bed.closes().await;
}

#[tokio::test]
async fn what_says_nothing_of_the_engine_opens_nothing() {
    let bed = bed(1, 1, |config| {
        config.breaker.failure_threshold = 3;
        config.breaker.open_for = Duration::from_secs(60);
    })
    .await;
    for engine in [&bed.prefill[0], &bed.decode[0]] {
        for code in [400, 404, 422, 429, 501] {
            engine.set_fault(Fault { kind: status(code), times: Some(6) });
            for _ in 0..6 {
                assert_eq!(bed.post(CHAT, &ask(CHAT, "a", 2, false)).await.status, code);
            }
            engine.clear_faults();
            bed.all_good(2, "after refusals").await;
        }
    }
}

#[tokio::test]
async fn it_tries_again_after_its_time_and_closes() {
    let bed = two_of_each(Duration::from_millis(300)).await;
    bed.decode[0].set_fault(Fault { kind: status(500), times: None });
    bed.all_good(20, "one of two answers 500").await;
    bed.decode[0].clear_faults();
    tokio::time::sleep(Duration::from_millis(350)).await;
    bed.decode[0].clear_requests();
    bed.all_good(20, "the engine is well again").await;
    assert!(bed.decode[0].requests().len() >= 5, "{} of 20", bed.decode[0].requests().len());
    bed.closes().await;
}

#[tokio::test]
async fn where_every_breaker_is_open_one_is_tried() {
    let bed = bed(1, 1, |config| {
        config.breaker.failure_threshold = 2;
        config.breaker.open_for = Duration::from_secs(60);
        config.dispatch.retry.max_retries = 0;
    })
    .await;
    bed.prefill[0].set_fault(Fault { kind: status(500), times: Some(4) });
    for _ in 0..4 {
        assert_eq!(bed.post(CHAT, &ask(CHAT, "a", 2, false)).await.status, 500);
    }
    bed.all_good(3, "the only engine, its breaker open").await;
}

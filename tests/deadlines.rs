//! Each deadline ends what it is for, with its own code, and nothing else.

use std::time::{Duration, Instant};

use pd_router::config::Config;
use pd_sim::{Fault, FaultKind, Latency};
use pd_tests::{Answer, Bed, ask, bed, bed_of};

const CHAT: &str = "/v1/chat/completions";
const LIMIT: Duration = Duration::from_millis(300);

async fn stalled(change: impl FnOnce(&mut Config), prefill: bool, kind: FaultKind, stream: bool) -> Answer {
    let bed = bed(1, 1, |config| {
        config.dispatch.retry.max_retries = 0;
        change(config);
    })
    .await;
    let engine = if prefill { &bed.prefill[0] } else { &bed.decode[0] };
    engine.set_fault(Fault { kind, times: None });
    let started = Instant::now();
    let answer = bed.post(CHAT, &ask(CHAT, "a", 6, stream)).await;
    let took = started.elapsed();
    assert!(took >= LIMIT && took < LIMIT * 5, "took {took:?}");
    bed.clean().await;
    answer
}

#[tokio::test]
async fn prefill_that_does_not_answer() {
    let answer =
        stalled(|config| config.dispatch.prefill_timeout = LIMIT, true, FaultKind::Stall, true).await;
    assert_eq!((answer.status, answer.code()), (504, "prefill_timeout".into()));
}

#[tokio::test]
async fn a_stream_without_its_first_byte() {
    let stall = FaultKind::StallAfter(0);
    let answer = stalled(|config| config.dispatch.first_byte_timeout = LIMIT, false, stall, true).await;
    assert!(answer.status == 504 || answer.text().contains("decode_idle_timeout"), "{}", answer.text());
}

#[tokio::test]
async fn a_gap_within_a_stream() {
    let stall = FaultKind::StallAfter(2);
    let answer = stalled(|config| config.dispatch.idle_timeout = LIMIT, false, stall, true).await;
    assert!(answer.whole && answer.text().contains("decode_idle_timeout"), "{}", answer.text());
}

#[tokio::test]
async fn a_whole_answer_is_bound_by_the_total_alone() {
    let change = |config: &mut Config| {
        config.dispatch.request_timeout = LIMIT;
        config.dispatch.idle_timeout = Duration::from_millis(1);
    };
    let answer = stalled(change, false, FaultKind::Stall, false).await;
    assert_eq!((answer.status, answer.code()), (504, "decode_timeout".into()));
}

async fn slow_stream(given: bool) -> Answer {
    let latency = Latency { itl: Duration::from_millis(100), ..Latency::default() };
    let bed: Bed = bed_of(1, 1, latency, |config| {
        config.dispatch.request_timeout = LIMIT;
        config.dispatch.request_timeout_for_streams = given;
    })
    .await;
    bed.post(CHAT, &ask(CHAT, "a", 8, true)).await
}

#[tokio::test]
async fn a_stream_is_bound_by_the_total_only_if_the_flag_was_given() {
    let answer = slow_stream(false).await;
    assert!(answer.whole && !answer.text().contains("error"), "{}", answer.text());
    let answer = slow_stream(true).await;
    assert!(answer.whole && answer.text().contains("request_timeout"), "{}", answer.text());
}

//! What measuring costs a request and an event of a stream. Not a promise but a number, and only an optimised
//! build gives one: `cargo test --release -p pd-router --test cost -- --ignored --nocapture`.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pd_router::ids::{Leg, RequestId, Role};
use pd_router::observe::Observe;
use pd_router::observe::meter::Events;
use pd_router::observe::record::{Outcome, Record};
use pd_router::observe::usage::Usage;
use pd_router::sse::SseScanner;

const ANSWER: &[u8] = br#"{"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":" words words","logprobs":null,"finish_reason":"length"}],"usage":{"prompt_tokens":12,"total_tokens":15,"completion_tokens":3}}"#;

const EVENT: &[u8] = b"data: {\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":1770000000,\"model\":\"sim\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}]}\n\n";

/// The median of five rounds, in nanoseconds a time.
fn median(times: u32, mut what: impl FnMut()) -> f64 {
    let mut rounds: Vec<f64> = (0..5)
        .map(|_| {
            let started = Instant::now();
            (0..times).for_each(|_| what());
            started.elapsed().as_secs_f64() * 1e9 / f64::from(times)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds.into_iter().nth(2).unwrap_or(f64::NAN)
}

#[test]
#[ignore = "a measurement, for optimised builds"]
fn what_measuring_costs() {
    let observe = Arc::new(Observe::new(&["completions", "chat"]).unwrap());
    let engine = |role, url| observe.engines().engine(role, url);
    let (prefill, decode) = (engine(Role::Prefill, "http://p:1"), engine(Role::Decode, "http://d:1"));
    let id = RequestId::generate();
    let request = median(200_000, || {
        let mut record = Record::open(&observe, "chat", &id, None);
        record.received(500);
        let phases = Arc::clone(record.phases());
        let _traceparent = phases.begin(Leg::Prefill, &prefill);
        let sent = Instant::now();
        phases.prefilled(Some(sent), Instant::now(), true, Usage::of(ANSWER).prompt);
        prefill.answer_seconds.observe(0.01);
        let _traceparent = phases.begin(Leg::Decode, &decode);
        let sent = Instant::now();
        phases.answered(Leg::Decode, Some(sent), Instant::now(), true);
        decode.answer_seconds.observe(0.01);
        record.answered(200);
        record.part(ANSWER);
        record.sent(ANSWER.len());
        record.end(Outcome::Ok);
    });
    let mut scanner = SseScanner::default();
    let scan = median(1_000_000, || scanner.feed(black_box(EVENT)));
    let mut record = Record::open(&observe, "chat", &id, None);
    record.stream(&decode);
    let (mut seen, now) = (0, Instant::now());
    let event = median(1_000_000, || {
        seen += 1;
        let events = Events { data: seen, tokens: seen, between: true };
        record.frame(black_box(EVENT), events, now + Duration::from_micros(seen));
    });
    let clock = median(1_000_000, || {
        black_box(Instant::now());
    });
    let started = Instant::now();
    let lines = observe.render().lines().count();
    println!("a request {request:.0} ns, an event {event:.0} ns (and {scan:.0} ns to find its end)");
    println!("a clock read {clock:.0} ns; a scrape of {lines} lines {:.2?}", started.elapsed());
    assert!(request > 0.0 && event > 0.0 && lines > 300);
}

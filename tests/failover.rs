//! A request survives: whatever one engine of a role does before the first byte, the client sees nothing of
//! it while another engine of that role can serve.

use std::time::Duration;

use pd_sim::{Fault, FaultKind, Junk, Missing, expected};
use pd_tests::{ask, bed, bed_of, text_of};
use serde_json::json;

const CHAT: &str = "/v1/chat/completions";

fn status(status: u16) -> FaultKind {
    FaultKind::Status { status, body: r#"{"error":{"message":"boom"}}"#.to_owned(), retry_after: None }
}

#[tokio::test]
async fn one_of_two_prefill_engines_fails_in_every_way() {
    let bed = bed(2, 1, |config| {
        config.breaker.failure_threshold = 0;
        config.dispatch.prefill_timeout = Duration::from_millis(300);
    })
    .await;
    for kind in [
        status(500),
        status(503),
        status(429),
        FaultKind::Reset,
        FaultKind::Close,
        FaultKind::Stall,
        FaultKind::Junk(Junk::Html),
        FaultKind::Junk(Junk::Empty),
        FaultKind::Junk(Junk::Half),
    ] {
        bed.prefill[0].set_fault(Fault { kind: kind.clone(), times: None });
        bed.all_good(4, &format!("{kind:?}")).await;
        bed.prefill[0].clear_faults();
    }
    bed.nothing_pinned().await;
    // A handoff that the router never saw whole stays pinned until its lease ends.
    bed.prefill[0].set_fault(Fault { kind: FaultKind::CutInside(0), times: None });
    bed.all_good(4, "an answer cut short").await;
    bed.closes().await;
}

#[tokio::test]
async fn one_of_two_decode_engines_fails_in_every_way_before_its_first_event() {
    let bed = bed(1, 2, |config| {
        config.breaker.failure_threshold = 0;
        config.dispatch.first_byte_timeout = Duration::from_millis(300);
        config.dispatch.request_timeout = Duration::from_secs(5);
    })
    .await;
    for kind in [
        status(500),
        status(503),
        FaultKind::Reset,
        FaultKind::Close,
        FaultKind::ResetAfter(0),
        FaultKind::CloseAfter(0),
    ] {
        bed.decode[0].set_fault(Fault { kind: kind.clone(), times: None });
        bed.all_good(4, &format!("{kind:?}")).await;
        bed.decode[0].clear_faults();
    }
    bed.closes().await;
}

#[tokio::test]
async fn a_failed_load_as_the_first_event_of_a_stream_is_done_again_under_the_same_headers() {
    let bed = bed(1, 1, |_| {}).await;
    // The handoff of a prefill engine that dies before decode fetches it cannot be loaded.
    let error = r#"data: {"error": {"message": "Internal server error", "type": "InternalServerError", "param": null, "code": 500}}"#;
    let stream = format!("{error}\n\ndata: [DONE]\n\n");
    bed.decode[0].set_fault(Fault { kind: FaultKind::EventStream(stream.clone()), times: Some(1) });
    let body = ask(CHAT, "hello there", 6, true);
    let answer = bed.post(CHAT, &body).await;
    assert_eq!((answer.status, text_of(CHAT, &answer)), (200, expected(CHAT, &body, 6)));
    assert!(!answer.text().contains("error"), "{}", answer.text());
    // If it fails to the end, the error event and its end are relayed.
    bed.decode[0].set_fault(Fault { kind: FaultKind::EventStream(stream.clone()), times: None });
    let answer = bed.post(CHAT, &body).await;
    assert_eq!((answer.status, answer.whole, answer.text()), (200, true, stream.as_str()));
    assert_eq!(bed.sum("pd_router_retries_total", &["leg=\"decode\""]), 6.0);
}

#[tokio::test]
async fn an_engine_that_is_down_costs_nothing_and_comes_back() {
    let bed = bed(2, 2, |config| config.probe.interval = Duration::from_secs(1)).await;
    bed.prefill[0].stop().await;
    bed.decode[1].stop().await;
    bed.all_good(8, "two engines down").await;
    assert_eq!(
        bed.metric(&format!("pd_router_engine_up{{engine=\"{}\",role=\"prefill\"}}", bed.prefill[0].url())),
        0.0
    );
    bed.prefill[0].restart().await.unwrap();
    bed.decode[1].restart().await.unwrap();
    tokio::time::timeout(Duration::from_secs(3), bed.router.all_up()).await.expect("back within 3 s");
    bed.all_good(8, "after the restart").await;
    assert!(!bed.prefill[0].requests().is_empty() && !bed.decode[1].requests().is_empty());
    bed.closes().await;
}

#[tokio::test]
async fn a_single_engine_that_resets_once_is_asked_again() {
    let bed = bed(1, 1, |_| {}).await;
    for engine in [&bed.prefill[0], &bed.decode[0]] {
        engine.set_fault(Fault { kind: FaultKind::Reset, times: Some(1) });
        bed.all_good(2, "a reset of the only engine").await;
    }
    bed.closes().await;
}

#[tokio::test]
async fn prefill_fallback_and_missing_handoff_do_what_their_flags_say() {
    use pd_router::dispatch::MissingHandoff;
    use pd_router::plan::PrefillFallback;
    let bed = bed(1, 1, |config| {
        config.plan.fallback = PrefillFallback::DecodeOnly;
        config.dispatch.missing_handoff = MissingHandoff::Error;
        config.dispatch.retry.max_retries = 0;
    })
    .await;
    bed.prefill[0].set_fault(Fault { kind: FaultKind::Missing(Missing::Null), times: Some(1) });
    let answer = bed.post(CHAT, &ask(CHAT, "a", 4, false)).await;
    assert_eq!((answer.status, answer.code()), (502, json!("prefill_missing_handoff")));
    bed.prefill[0].stop().await;
    bed.post(CHAT, &ask(CHAT, "a", 4, false)).await;
    bed.all_good(3, "decode alone").await;
    assert_eq!(bed.metric("pd_router_whole_requests_total{reason=\"no_prefill\"}"), 3.0);
}

#[tokio::test]
async fn two_hundred_streams_survive_the_death_of_one_engine_of_each_role() {
    let latency = pd_sim::Latency {
        prefill_base: Duration::from_millis(100),
        itl: Duration::from_millis(5),
        ..pd_sim::Latency::default()
    };
    let bed = std::sync::Arc::new(bed_of(2, 2, latency, |_| {}).await);
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..200 {
        let bed = std::sync::Arc::clone(&bed);
        clients.spawn(async move {
            tokio::time::sleep(Duration::from_millis(number * 2)).await;
            let body = ask(CHAT, &format!("stream {number}"), 10, true);
            let answer = bed.post(CHAT, &body).await;
            (answer.status, answer.whole, text_of(CHAT, &answer), expected(CHAT, &body, 10), answer)
        });
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    bed.prefill[0].stop().await;
    bed.decode[0].stop().await;
    let mut begun = 0;
    while let Some(result) = clients.join_next().await {
        let (status, whole, text, right, answer) = result.unwrap();
        assert_eq!(status, 200, "{}", answer.text());
        if text == right && whole {
            continue;
        }
        // Only a stream of which the client had bytes already may end, and it says so.
        assert!(right.starts_with(&text) && !text.is_empty(), "wrong text {text:?}, right {right:?}");
        assert!(answer.text().contains("decode_broke_off") || !whole, "{}", answer.text());
        begun += 1;
    }
    assert!(begun < 100, "{begun} streams had begun on the engine that died");
    for sim in &bed.decode {
        assert_eq!(sim.ledger().violations, Vec::<String>::new());
    }
}

#[tokio::test]
async fn an_engine_that_is_only_slow_to_answer_probes_still_serves_where_it_is_the_last() {
    let bed = bed(1, 2, |config| {
        config.probe.interval = Duration::from_millis(50);
        config.probe.timeout = Duration::from_millis(50);
        config.probe.health.failure_threshold = 2;
    })
    .await;
    bed.decode[0].set_fault(Fault { kind: FaultKind::HealthDelayMs(400), times: None });
    pd_tests::until("the slow one is out", || {
        bed.router.fleet().snapshot().up(pd_router::ids::Role::Decode) == 1
    })
    .await;
    bed.decode[0].clear_requests();
    bed.all_good(6, "one is slow").await;
    assert_eq!(bed.decode[0].requests().len(), 0, "a slow engine got traffic beside a quick one");
    bed.decode[1].set_fault(Fault { kind: FaultKind::HealthDelayMs(400), times: None });
    pd_tests::until("both are out", || bed.router.fleet().snapshot().up(pd_router::ids::Role::Decode) == 0)
        .await;
    bed.all_good(6, "both are slow").await;
    bed.closes().await;
}

#[tokio::test]
async fn engines_that_close_idle_connections_at_any_moment_cost_nothing() {
    use pd_router::app::Router;
    use pd_router::config::Config;
    use pd_router::fleet::url::EngineUrl;
    use pd_sim::{Role, Sim, SimConfig};
    let start = async |role| {
        let config = SimConfig { keep_alive: Duration::from_millis(15), ..SimConfig::new(role) };
        Sim::start(config).await.unwrap()
    };
    let (prefill, decode) = (start(Role::Prefill).await, start(Role::Decode).await);
    let url = |sim: &Sim| vec![EngineUrl::parse(&sim.url()).unwrap()];
    let mut config = Config::new(url(&prefill), url(&decode), None).unwrap();
    config.threads = 1;
    let router = Router::start(config).await.unwrap();
    router.all_up().await;
    let bed = pd_tests::Bed::of(router, vec![prefill], vec![decode]);
    for number in 0..400_u64 {
        bed.all_good(1, "an idle connection was closed").await;
        tokio::time::sleep(Duration::from_micros(13_000 + number * 10)).await;
    }
    bed.closes().await;
    assert_eq!(bed.prefill[0].ledger().violations, Vec::<String>::new());
}

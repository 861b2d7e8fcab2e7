//! The page to watch tells what happened: counts, times, engines, and the last failures with leg, engine and
//! whose fault; it loads nothing from elsewhere and lets no text become markup.

use std::time::{Duration, Instant};

use pd_router::ui::state::{Failure, Level, State};
use pd_sim::{Fault, FaultKind};
use pd_tests::{Answer, Bed, ask, bed, exchange, request};

const CHAT: &str = "/v1/chat/completions";

async fn get(bed: &Bed, path: &str) -> Answer {
    exchange(bed.address(), &request("GET", path, &[], b"")).await
}

async fn state(bed: &Bed) -> State {
    let answer = get(bed, "/ui/state").await;
    assert_eq!((answer.status, answer.header("cache-control")), (200, Some("no-store")));
    serde_json::from_value(answer.json()).expect("the state")
}

/// The state, once it holds; the router looks every two seconds.
async fn state_when(bed: &Bed, what: &str, holds: impl Fn(&State) -> bool) -> State {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let state = state(bed).await;
        if holds(&state) {
            return state;
        }
        assert!(Instant::now() < end, "not within 10 s: {what}; {state:#?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn always(kind: FaultKind) -> Fault {
    Fault { kind, times: None }
}

fn status(status: u16) -> FaultKind {
    FaultKind::Status { status, body: r#"{"error":{"message":"boom"}}"#.to_owned(), retry_after: None }
}

fn parts(failure: &Failure) -> (Option<&str>, Option<&str>, &str, Option<u16>, &str, u64) {
    let Failure { leg, engine, reason, status, blame, count, .. } = failure;
    (leg.as_deref(), engine.as_deref(), reason, *status, blame, *count)
}

#[tokio::test]
async fn calm_traffic_is_counted_and_timed() {
    let bed = bed(2, 2, |_| {}).await;
    bed.all_good(20, "calm").await;
    let state = state_when(&bed, "20 requests", |state| state.requests.ended.ok == 20).await;
    assert_eq!((state.level, state.findings.len(), state.failures.len()), (Level::Ok, 0, 0), "{state:#?}");
    assert_eq!((state.requests.in_flight, state.requests.waiting), (0, 0));
    // Every second one streams six tokens.
    assert_eq!((state.times.first_token.count, state.times.inter_token.count), (10, 50));
    assert_eq!((state.times.prefill.count, state.times.decode.count, state.times.total.count), (20, 20, 20));
    let total = state.times.total;
    assert!(total.p50 > Some(0.0) && total.p50 <= total.p99 && total.p99 < Some(5.0), "{total:?}");
    let roles: Vec<_> = state.pools.iter().map(|pool| (pool.role.as_str(), pool.up)).collect();
    assert_eq!(roles, [("prefill", 2), ("decode", 2)]);
    for (pool, sims) in state.pools.iter().zip([&bed.prefill, &bed.decode]) {
        let urls: Vec<_> = sims.iter().map(|sim| sim.url().trim_end_matches('/').to_owned()).collect();
        let shown: Vec<_> = pool.engines.iter().map(|one| one.url.trim_end_matches('/').to_owned()).collect();
        assert_eq!(shown, urls);
        for engine in &pool.engines {
            let seen = (engine.state.as_str(), engine.breaker.as_str(), engine.legs, engine.errors);
            assert_eq!(seen, ("up", "closed", 10, 0));
            assert_eq!((engine.in_flight, engine.load_requests, engine.ranks), (0, 0, 1));
        }
    }
    assert!(state.history.per_second.iter().sum::<f64>() > 0.0);
    assert_eq!(state.history.per_second.len(), state.history.inter_token_p99.len());
}

#[tokio::test]
async fn a_failed_request_is_told_with_leg_engine_and_blame() {
    let bed = bed(1, 1, |config| config.dispatch.retry.max_retries = 0).await;
    bed.decode[0].set_fault(always(status(500)));
    let body = ask(CHAT, "words", 4, true).to_string();
    let id = [("x-request-id", "night-1")];
    let failed = exchange(bed.address(), &request("POST", CHAT, &id, body.as_bytes())).await;
    assert_eq!(failed.status, 500);
    bed.decode[0].clear_faults();
    bed.decode[0].set_fault(always(FaultKind::ResetAfter(2)));
    bed.post(CHAT, &ask(CHAT, "words", 8, true)).await;
    let wrong = exchange(bed.address(), &request("POST", CHAT, &[], b"no json")).await;
    assert_eq!(wrong.status, 400);
    let state = state_when(&bed, "three failures", |state| state.failures.len() == 3).await;
    let url = state.pools[1].engines[0].url.clone();
    let [client, cut, first] = &state.failures[..] else { panic!("{:#?}", state.failures) };
    assert_eq!(parts(client), (None, None, "invalid_json", Some(400), "client", 1));
    let broken = (Some("decode"), Some(url.as_str()), "decode_broke_off", Some(200), "engine", 1);
    assert_eq!(parts(cut), broken);
    let refused = (Some("decode"), Some(url.as_str()), "decode_status", Some(500), "engine", 1);
    assert_eq!(parts(first), refused);
    assert_eq!((first.request_id.as_str(), first.outcome.as_str()), ("night-1", "engine_error"));
    assert_eq!(first.detail.as_deref(), Some("500 Internal Server Error"));
    let state = state_when(&bed, "blame", |state| state.requests.failed.engine == 2).await;
    assert_eq!(state.requests.failed.client, 1);
    assert_eq!(state.level, Level::Degraded);
    assert_eq!(state.pools[1].engines[0].errors, 2);
}

#[tokio::test]
async fn what_another_try_saved_is_told_too_and_alike_ones_are_one() {
    let bed = bed(2, 1, |_| {}).await;
    bed.prefill[0].set_fault(always(status(500)));
    for _ in 0..6 {
        assert_eq!(bed.post(CHAT, &ask(CHAT, "words", 4, false)).await.status, 200);
    }
    let state = state(&bed).await;
    let [saved] = &state.failures[..] else { panic!("{:#?}", state.failures) };
    let url = &state.pools[0].engines[0].url;
    let expected = (Some("prefill"), Some(url.as_str()), "prefill_status", Some(200), "engine");
    let (leg, engine, reason, status, blame, count) = parts(saved);
    assert_eq!((leg, engine, reason, status, blame), expected);
    assert!(count >= 2 && saved.outcome == "ok", "{saved:?}");
    let state = state_when(&bed, "the minute", |state| state.requests.ended.ok == 6).await;
    assert_eq!(state.requests.failed.engine, 0, "no client saw it");
}

#[tokio::test]
async fn a_dead_pool_is_down_and_says_which() {
    let mut bed = bed(1, 1, |_| {}).await;
    bed.decode.clear();
    let answer = bed.post(CHAT, &ask(CHAT, "words", 4, false)).await;
    assert_eq!(answer.status, 503);
    let state = state_when(&bed, "down", |state| state.level == Level::Down).await;
    assert_eq!(state.findings[0].text, "no decode engine is up");
    let engine = &state.pools[1].engines[0];
    assert_eq!((state.pools[1].up, engine.state.as_str()), (0, "down"));
    let failure = &state.failures[0];
    assert_eq!((failure.status, failure.blame.as_str()), (Some(503), "engine"));
    assert_eq!(failure.leg.as_deref(), Some("decode"));
}

#[tokio::test]
async fn the_page_loads_nothing_and_runs_nothing_but_itself() {
    let bed = bed(1, 1, |_| {}).await;
    let page = get(&bed, "/ui").await;
    let html = page.text();
    assert_eq!((page.status, page.header("x-content-type-options")), (200, Some("nosniff")));
    for word in ["http://", "https://", "src=", "@import", "url(", "innerHTML", "insertAdjacent", "eval("] {
        assert!(!html.contains(word), "the page has {word}");
    }
    assert_eq!(html.matches("<script").count(), 1);
    assert!(!html.contains(" style=") && !html.contains(" onclick="), "the policy forbids it");
    // The head comes in lower case, the hashes with it.
    let policy = page.header("content-security-policy").expect("a policy");
    for part in ["default-src 'none'", "script-src 'sha256-", "style-src 'sha256-", "connect-src 'self'"] {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"), "{policy}");
}

#[tokio::test]
async fn a_request_id_is_data_whatever_it_holds() {
    let bed = bed(1, 1, |_| {}).await;
    let id = [("x-request-id", "<script>alert(1)</script>")];
    exchange(bed.address(), &request("POST", CHAT, &id, b"{")).await;
    let answer = get(&bed, "/ui/state").await;
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(answer.json()["failures"][0]["request_id"], "<script>alert(1)</script>");
}

#[tokio::test]
async fn looking_is_no_request() {
    let bed = bed(1, 1, |_| {}).await;
    for path in ["/ui", "/ui/state"] {
        assert_eq!(get(&bed, path).await.status, 200);
        let wrong = exchange(bed.address(), &request("POST", path, &[], b"")).await;
        assert_eq!((wrong.status, wrong.header("allow")), (405, Some("get, head")));
    }
    assert_eq!(bed.sum("pd_router_requests_total", &["outcome=\"ok\""]), 0.0);
}

//! Engines that serve whole requests (`--worker-urls`): one pool, balanced, with all that requests get
//! elsewhere; engines register and go at run time.

use std::time::Duration;

use pd_router::app::Router;
use pd_router::config::Config;
use pd_router::dispatch::Paused;
use pd_router::plan::name::PolicyName;
use pd_sim::{Fault, FaultKind, Latency, Role, Sim, SimConfig, expected};
use pd_tests::{Answer, Bed, PATHS, args, ask, exchange, exposition, request, slow_tokens, text_of, until};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

async fn sim(latency: Latency) -> Sim {
    let config = SimConfig { latency, ..SimConfig::new(Role::Plain) };
    Sim::start(config).await.expect("a free port")
}

/// A router with one pool of this many engines, as the command line has it.
async fn regular(count: usize, latency: Latency, change: impl FnOnce(&mut Config)) -> Bed {
    let mut sims = Vec::new();
    for _ in 0..count {
        sims.push(sim(latency.clone()).await);
    }
    let urls: Vec<String> = sims.iter().map(Sim::url).collect();
    let words: Vec<&str> =
        ["--worker-urls"].into_iter().chain(urls.iter().map(String::as_str)).chain(["--port=0"]).collect();
    let mut config = args(&words).config().expect("a good command line");
    config.prometheus = None;
    config.threads = 2;
    change(&mut config);
    let router = Router::start(config).await.expect("a router");
    let up = tokio::time::timeout(Duration::from_secs(10), router.all_up()).await;
    up.expect("every engine up within 10 s");
    Bed::of(router, Vec::new(), sims)
}

fn in_turn(config: &mut Config) {
    config.plan.prefill = PolicyName::RoundRobin;
}

async fn send(bed: &Bed, method: &str, target: &str, body: &str) -> Answer {
    exchange(bed.address(), &request(method, target, &[], body.as_bytes())).await
}

async fn get(bed: &Bed, target: &str) -> Value {
    send(bed, "GET", target, "").await.json()
}

async fn register(bed: &Bed, document: Value) -> Answer {
    send(bed, "POST", "/workers", &document.to_string()).await
}

fn asked(sim: &Sim) -> usize {
    sim.requests().iter().filter(|one| PATHS.contains(&one.path.as_str())).count()
}

/// An answer without the numbers that an engine draws for each request.
fn settled(answer: &Answer) -> String {
    let drawn = |word: &str| {
        word.len() >= 8 && word.bytes().all(|byte| byte.is_ascii_hexdigit())
            || word.len() == 10 && word.starts_with('1')
    };
    let text = answer.text();
    let words = text.split_inclusive(|character: char| !character.is_ascii_alphanumeric());
    words.filter(|word| !drawn(word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric()))).collect()
}

#[tokio::test]
async fn every_api_is_balanced_and_comes_as_the_engine_wrote_it() {
    let bed = regular(2, Latency::default(), in_turn).await;
    let direct = sim(Latency::default()).await;
    for path in PATHS {
        for stream in [false, true] {
            let body = ask(path, "the quick brown fox", 9, stream);
            let bytes = request("POST", path, &[("x-request-id", "mine")], body.to_string().as_bytes());
            let through = exchange(bed.address(), &bytes).await;
            assert_eq!((through.status, through.whole), (200, true), "{path}: {}", through.text());
            assert_eq!(settled(&through), settled(&exchange(direct.addr(), &bytes).await), "{path}");
        }
    }
    // Each path was asked for twice, in turn.
    assert_eq!((asked(&bed.decode[0]), asked(&bed.decode[1])), (PATHS.len(), PATHS.len()));
    for sim in &bed.decode {
        for seen in sim.requests() {
            let body: Value = serde_json::from_slice(&seen.body).expect("JSON");
            let sent = ask(&seen.path, "the quick brown fox", 9, body["stream"] == true).to_string();
            assert_eq!(seen.body, sent.as_bytes(), "the client's own bytes and nothing else");
        }
    }
    assert_eq!(bed.sum("pd_router_whole_requests_total", &["reason=\"regular\""]), 10.0);
    assert_eq!(bed.sum("pd_router_handoffs_total", &[]), 0.0);
    let text = bed.router.observe().render();
    assert!(!exposition::read(&text).is_empty());
    assert!(text.contains("role=\"regular\"") && !text.contains("role=\"decode\""), "{text}");
}

#[tokio::test]
async fn a_conversation_stays_where_its_prompt_is_cached() {
    let bed = regular(3, Latency::default(), |_| {}).await;
    for session in 0..6 {
        let start = format!("session {session}: {}", "words of a long conversation ".repeat(100));
        let mut homes = Vec::new();
        for turn in 0..4 {
            let before: Vec<usize> = bed.decode.iter().map(asked).collect();
            let prompt = format!("{start}{}", "and more of it ".repeat(turn));
            assert_eq!(bed.post(CHAT, &ask(CHAT, &prompt, 2, false)).await.status, 200);
            homes.push((0..3).find(|at| asked(&bed.decode[*at]) > before[*at]).expect("one took it"));
        }
        assert!(homes.iter().all(|home| *home == homes[0]), "{homes:?}");
    }
    let each: Vec<usize> = bed.decode.iter().map(asked).collect();
    assert_eq!(each, [8, 8, 8], "new conversations take turns");
}

#[tokio::test]
async fn one_prompt_that_all_share_spreads_under_load() {
    let bed = regular(2, slow_tokens(), |_| {}).await;
    let body = ask(CHAT, &"the same system prompt ".repeat(200), 20, true).to_string();
    let bytes = request("POST", CHAT, &[], body.as_bytes());
    let all = (0..24).map(|_| exchange(bed.address(), &bytes));
    let answers = futures_util::future::join_all(all).await;
    assert!(answers.iter().all(|answer| answer.status == 200 && answer.whole));
    let each: Vec<usize> = bed.decode.iter().map(asked).collect();
    assert!(each.iter().all(|count| *count >= 6), "{each:?}");
}

#[tokio::test]
async fn one_of_two_engines_fails_in_every_way_and_no_client_sees_it() {
    let bed = regular(2, Latency::default(), |config| {
        in_turn(config);
        config.breaker.failure_threshold = 0;
    })
    .await;
    let status = |status: u16| FaultKind::Status { status, body: "{}".to_owned(), retry_after: None };
    for kind in
        [status(500), status(503), status(429), FaultKind::Reset, FaultKind::Close, FaultKind::ResetAfter(0)]
    {
        bed.decode[0].set_fault(Fault { kind: kind.clone(), times: None });
        bed.all_good(4, &format!("{kind:?}")).await;
        bed.decode[0].clear_faults();
        until("it is up again", || bed.router.fleet().snapshot().decode.iter().all(|one| one.up())).await;
    }
    bed.decode[0].stop().await;
    bed.all_good(8, "an engine died").await;
    assert_eq!(get(&bed, "/health").await["status"], "ready");
    bed.decode[1].stop().await;
    let none = bed.post(CHAT, &ask(CHAT, "words", 2, false)).await;
    assert!([502, 503].contains(&none.status), "{}", none.text());
    until("both are out", || bed.router.fleet().snapshot().decode.iter().all(|one| !one.up())).await;
    let none = bed.post(CHAT, &ask(CHAT, "words", 2, false)).await;
    assert_eq!((none.status, none.code()), (503, "no_regular_engine".into()), "{}", none.text());
    assert_eq!(send(&bed, "GET", "/health", "").await.status, 503);
}

#[tokio::test]
async fn a_router_without_engines_says_so_and_serves_once_one_registers() {
    let bed = regular(0, Latency::default(), |_| {}).await;
    for path in ["/health", "/readiness"] {
        let answer = send(&bed, "GET", path, "").await;
        assert_eq!((answer.status, &answer.json()["reason"]), (503, &"no regular engine is up".into()));
    }
    assert_eq!(send(&bed, "GET", "/liveness", "").await.status, 200);
    assert_eq!(bed.post(CHAT, &ask(CHAT, "words", 2, false)).await.status, 503);
    assert_eq!(get(&bed, "/ui/state").await["findings"][0]["text"], "no regular engine is up");
    let engine = sim(Latency::default()).await;
    for role in ["prefill", "decode"] {
        let refused = register(&bed, json!({"url": engine.url(), "worker_type": role})).await;
        assert_eq!((refused.status, refused.code()), (400, "worker_invalid".into()));
        assert!(refused.text().contains("--worker-urls"), "{}", refused.text());
    }
    assert_eq!(register(&bed, json!({"url": engine.url(), "worker_type": "regular"})).await.status, 200);
    assert_eq!(register(&bed, json!({"url": engine.url()})).await.status, 200, "again, without a type");
    tokio::time::timeout(Duration::from_secs(5), bed.router.all_up()).await.expect("up");
    bed.all_good(4, "registered").await;
    let fleet = get(&bed, "/workers").await;
    assert_eq!(fleet["stats"], json!({"prefill_count": 0, "decode_count": 0, "regular_count": 1}));
    let worker = &fleet["workers"][0];
    assert_eq!((&worker["url"], &worker["worker_type"]), (&engine.url().into(), &"regular".into()));
    assert_eq!(get(&bed, "/readiness").await["regular"], json!({"healthy": 1, "total": 1}));
    let pools = get(&bed, "/ui/state").await["pools"].clone();
    assert_eq!((pools.as_array().map(Vec::len), &pools[0]["role"]), (Some(1), &"regular".into()));
    let quoted = engine.url().replace(':', "%3A").replace('/', "%2F");
    assert_eq!(send(&bed, "DELETE", &format!("/workers/{quoted}"), "").await.status, 200);
    until("it is gone", || bed.router.fleet().find(&engine.url()).is_none()).await;
    assert!(!bed.router.observe().render().contains(&engine.url()), "nothing of it is left");
    assert_eq!(bed.post(CHAT, &ask(CHAT, "words", 2, false)).await.status, 503);
}

#[tokio::test]
async fn calls_to_all_engines_reach_them_and_requests_wait_while_they_rest() {
    let bed = regular(2, Latency::default(), |config| config.dispatch.paused = Paused::Reject).await;
    assert_eq!(send(&bed, "POST", "/pause?role=prefill", "").await.status, 400);
    assert_eq!(send(&bed, "POST", "/pause?role=regular", "").await.status, 200);
    let refused = bed.post(CHAT, &ask(CHAT, "words", 2, false)).await;
    assert_eq!((refused.status, refused.code()), (503, "engines_paused".into()));
    let resumed = send(&bed, "POST", "/resume", "").await.json();
    assert_eq!(resumed["engines"].as_array().map(Vec::len), Some(2));
    bed.all_good(4, "resumed").await;
    assert_eq!(get(&bed, "/v1/models").await["object"], "list");
}

#[tokio::test]
async fn an_engine_that_goes_ends_its_streams_first() {
    let bed = regular(2, slow_tokens(), in_turn).await;
    let streams = [bed.begin_stream(10).await, bed.begin_stream(10).await];
    until("both stream", || bed.decode.iter().all(|sim| sim.running() == 1)).await;
    let quoted = bed.decode[0].url().replace(':', "%3A").replace('/', "%2F");
    assert_eq!(send(&bed, "DELETE", &format!("/workers/{quoted}"), "").await.status, 200);
    for stream in streams {
        let answer = pd_tests::read(stream).await;
        assert!(answer.whole && answer.text().contains("[DONE]"), "{}", answer.text());
        let body = ask(CHAT, "words", 10, true);
        assert_eq!(text_of(CHAT, &answer), expected(CHAT, &body, 10));
    }
    until("it is gone", || bed.router.fleet().find(&bed.decode[0].url()).is_none()).await;
}

#[test]
fn a_router_has_one_pool_or_two() {
    let says = |words: &[&str]| args(words).config().expect_err("no good start").to_string();
    for other in
        [&["--prefill", "http://p:1"][..], &["--decode", "http://d:1"], &["--vllm-pd-disaggregation"]]
    {
        let text = says(&[&["--worker-urls", "http://a:1"], other].concat());
        assert!(text.contains("`--worker-urls`") && text.contains(other[0]), "{text}");
    }
    assert!(says(&["--worker-urls", "http://a:1", "http://A:1"]).contains("given twice"));
    assert!(says(&["--worker-urls", "nonsense"]).contains("`--worker-urls`"));
    for words in [
        &["--worker-urls", "http://a:1", "http://b:1"][..],
        &["--worker-urls=http://a:1", "--worker-urls=http://b:1"],
        &["--worker-urls", "http://a:1", "--port=1", "--worker-urls", "http://b:1"],
    ] {
        let config = args(words).config().expect("a good start");
        assert_eq!((config.prefill.len(), config.decode.len()), (0, 2), "{words:?}");
    }
    let named = args(&["--worker-urls", "--policy", "consistent_hash", "--decode-policy", "random"]);
    let config = named.config().expect("a pool without engines yet");
    assert_eq!((config.decode.len(), config.plan.prefill), (0, PolicyName::ConsistentHash));
    assert!(named.without_effect()[0].contains("--decode-policy"), "{:?}", named.without_effect());
}

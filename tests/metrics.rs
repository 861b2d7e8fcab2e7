//! The metrics say what happened: each request once, with the right outcome, status, tokens and legs; every
//! series is there from the start and no client makes one; `docs/reference/metrics.md` lists them all
//! (`UPDATE_DOCS=1` writes it).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::Duration;

use pd_router::admit::queue::Queue;
use pd_router::app::Router;
use pd_router::config::Config;
use pd_router::fleet::url::EngineUrl;
use pd_router::plan::name::PolicyName;
use pd_sim::{Fault, FaultKind, Role, Sim, SimConfig};
use pd_tests::exposition::{self, Family};
use pd_tests::{Bed, PATHS, ask, bed, bed_of, exchange, request, slow_tokens, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const CHAT: &str = "/v1/chat/completions";

fn scrape(bed: &Bed) -> BTreeMap<String, Family> {
    exposition::read(&bed.router.observe().render())
}

/// Each series by name and labels.
fn series(families: &BTreeMap<String, Family>) -> BTreeSet<(String, Vec<(String, String)>)> {
    let samples = families.values().flat_map(|family| &family.samples);
    samples.map(|(name, labels, _)| (name.clone(), labels.clone().into_iter().collect())).collect()
}

fn once(kind: FaultKind) -> Fault {
    Fault { kind, times: Some(1) }
}

fn status(status: u16) -> FaultKind {
    FaultKind::Status { status, body: r#"{"error":{"message":"boom"}}"#.to_owned(), retry_after: None }
}

async fn settled(bed: &Bed) {
    until("nothing is in flight", || bed.metric("pd_router_requests_in_flight") == 0.0).await;
}

/// What the test itself counted.
#[derive(Default)]
struct Tally {
    outcomes: BTreeMap<(&'static str, &'static str), f64>,
    codes: BTreeMap<u16, f64>,
}

impl Tally {
    fn add(&mut self, api: &'static str, outcome: &'static str, code: u16) {
        *self.outcomes.entry((api, outcome)).or_default() += 1.0;
        *self.codes.entry(code).or_default() += 1.0;
    }

    fn compare(&self, bed: &Bed) {
        let families = scrape(bed);
        for (_, labels, value) in &families["pd_router_requests_total"].samples {
            let key = (labels["api"].as_str(), labels["outcome"].as_str());
            let counted = self.outcomes.iter().find(|((api, outcome), _)| (*api, *outcome) == key);
            assert_eq!(*value, counted.map_or(0.0, |(_, count)| *count), "{labels:?}");
        }
        for (_, labels, value) in &families["pd_router_responses_total"].samples {
            let counted = labels["code"].parse().ok().and_then(|code: u16| self.codes.get(&code));
            assert_eq!(*value, counted.copied().unwrap_or(0.0), "{labels:?}");
        }
        let all: f64 = self.codes.values().sum();
        assert_eq!(bed.sum("pd_router_request_seconds_count", &["api"]), all);
        assert_eq!(bed.sum("vllm_router_pd_requests_total", &[]), all);
    }
}

#[tokio::test]
async fn a_scrape_says_what_happened() {
    let bed = bed(1, 1, |config| {
        config.dispatch.retry.max_retries = 1;
        config.dispatch.retry.initial_backoff = Duration::from_millis(2);
        config.queue = Queue::new(4, 0, Duration::from_secs(1));
    })
    .await;
    let before = series(&scrape(&bed));
    let mut tally = Tally::default();
    for (path, api) in PATHS.into_iter().zip(["completions", "chat", "responses", "generate", "messages"]) {
        for stream in [false, true, true] {
            assert_eq!(bed.post(path, &ask(path, "some words", 6, stream)).await.status, 200);
            tally.add(api, "ok", 200);
        }
    }
    settled(&bed).await;
    let answer = bed.post(CHAT, &ask(CHAT, "some words", 6, false)).await;
    tally.add("chat", "ok", 200);
    settled(&bed).await;
    let prompt_tokens = answer.json()["usage"]["prompt_tokens"].as_f64().unwrap();
    assert_eq!(bed.metric("pd_router_prompt_tokens_total{api=\"chat\"}"), 4.0 * prompt_tokens);
    for api in ["completions", "chat", "responses", "generate", "messages"] {
        let requests = if api == "chat" { 4.0 } else { 3.0 };
        let of = |family: &str| bed.metric(&format!("{family}{{api=\"{api}\"}}"));
        assert_eq!(of("pd_router_generated_tokens_total"), 6.0 * requests, "{api}");
        assert_eq!(of("pd_router_time_to_first_token_seconds_count"), 2.0, "{api}");
        assert_eq!(of("pd_router_time_per_output_token_seconds_count"), 2.0, "{api}");
        assert_eq!(of("pd_router_request_body_bytes_count"), requests, "{api}");
        assert!(of("pd_router_response_body_bytes_total") > 300.0, "{api}");
    }
    let served = 16.0;
    for family in ["handoff_gap_seconds", "added_seconds", "queue_wait_seconds"] {
        assert_eq!(bed.metric(&format!("pd_router_{family}_count")), served, "{family}");
    }
    assert_eq!(bed.sum("pd_router_handover_seconds_count", &[]), 10.0);
    assert_eq!(bed.sum("pd_router_inter_token_seconds_count", &[]), 10.0 * 5.0);
    for (role, leg) in [("prefill", "prefill"), ("decode", "decode")] {
        let role = format!("role=\"{role}\"");
        assert_eq!(bed.sum("pd_router_leg_answer_seconds_count", &[&role]), served);
        assert_eq!(bed.sum("pd_router_legs_total", &[&role, &format!("leg=\"{leg}\"")]), served);
        assert_eq!(bed.sum(&format!("vllm_router_pd_{leg}_requests_total"), &[]), served);
    }
    assert_eq!(bed.metric("vllm_router_pd_decode_pending_seconds_count"), served);
    assert_eq!(
        bed.metric(&format!("vllm_router_pd_request_duration_seconds_count{{route=\"{CHAT}\"}}")),
        4.0
    );
    let rounds = 10;
    for _ in 0..rounds {
        troubles(&bed, &mut tally).await;
        settled(&bed).await;
    }
    tally.compare(&bed);
    legs_are_counted(&bed, f64::from(rounds));
    assert_eq!(series(&scrape(&bed)), before, "a series that was not there from the start");
    bed.closes().await;
}

/// Each leg that an engine saw, each that it failed, each that was tried again.
fn legs_are_counted(bed: &Bed, rounds: f64) {
    let seen =
        |sim: &Sim| sim.requests().iter().filter(|request| request.path != "/v1/models").count() as f64;
    for (leg, sim, failed) in [("prefill", &bed.prefill[0], 2.0), ("decode", &bed.decode[0], 3.0)] {
        let (role, own) = (format!("role=\"{leg}\""), format!("leg=\"{leg}\""));
        assert_eq!(bed.sum("pd_router_legs_total", &[&role, &own]), seen(sim), "{leg}");
        assert_eq!(bed.sum("pd_router_leg_errors_total", &[&role]), failed * rounds, "{leg}");
        assert_eq!(bed.sum(&format!("vllm_router_pd_{leg}_errors_total"), &[]), failed * rounds, "{leg}");
    }
    assert_eq!(bed.sum("pd_router_legs_total", &["leg=\"one-hop\""]), rounds);
    let retried = |leg: &str, reason: &str| {
        bed.metric(&format!("pd_router_retries_total{{leg=\"{leg}\",reason=\"{reason}\"}}"))
    };
    assert_eq!((retried("prefill", "status"), retried("decode", "status")), (rounds, rounds));
    assert_eq!(retried("decode", "first_event"), rounds);
    assert_eq!(bed.sum("pd_router_retries_total", &[]), 3.0 * rounds);
}

/// Everything that is not simply served.
async fn troubles(bed: &Bed, tally: &mut Tally) {
    let (prefill, decode) = (&bed.prefill[0], &bed.decode[0]);
    let body = ask(CHAT, "some words", 6, true);
    prefill.set_fault(once(status(400)));
    assert_eq!(bed.post(CHAT, &body).await.status, 400);
    tally.add("chat", "ok", 400);
    for engine in [prefill, decode] {
        engine.set_fault(Fault { kind: status(500), times: Some(2) });
        assert_eq!(bed.post(CHAT, &body).await.status, 500);
        tally.add("chat", "engine_error", 500);
    }
    decode.set_fault(once(FaultKind::EventStream("data: {\"error\":{}}\n\n".to_owned())));
    assert_eq!(bed.post(CHAT, &body).await.status, 200);
    tally.add("chat", "ok", 200);
    decode.set_fault(once(FaultKind::EventStream("data: {\"choices\":[]}\n\n".to_owned())));
    assert_eq!(bed.post(CHAT, &body).await.status, 200);
    tally.add("chat", "incomplete_stream", 200);
    decode.set_fault(once(FaultKind::CutInside(2)));
    assert!(!bed.post(CHAT, &body).await.whole);
    tally.add("chat", "engine_error", 200);
    bed.router.all_up().await;
    assert_eq!(exchange(bed.address(), &request("POST", CHAT, &[], b"{")).await.status, 400);
    tally.add("chat", "router_error", 400);
    for (method, path, code) in [
        ("POST", "/v1/nope", 404),
        ("GET", "/v1/nope/../x?a=1", 404),
        ("BREW", CHAT, 405),
        ("PUT", "/health", 405),
    ] {
        assert_eq!(exchange(bed.address(), &request(method, path, &[], b"")).await.status, code);
        tally.add("unknown", "router_error", code);
    }
    let models = exchange(bed.address(), &request("GET", "/v1/models", &[], b"")).await;
    assert_eq!(models.status, 200);
    tally.add("one_hop", "ok", 200);
    // One leaves in the middle of its stream, where its status is known.
    decode.set_fault(once(FaultKind::StallAfter(2)));
    let mut leaving = bed.begin_stream(6).await;
    let mut some = [0; 12];
    leaving.read_exact(&mut some).await.unwrap();
    assert_eq!(&some, b"HTTP/1.1 200");
    drop(leaving);
    tally.add("chat", "client_closed", 200);
    settled(bed).await;
    // Four are in prefill and leave; a fifth finds no slot.
    prefill.set_fault(Fault { kind: FaultKind::Stall, times: Some(4) });
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(bed.begin_stream(4).await);
    }
    until("prefill has four", || prefill.running() == 4).await;
    assert_eq!(bed.post(CHAT, &body).await.status, 429);
    tally.add("chat", "shed", 429);
    drop(held);
    (0..4).for_each(|_| tally.add("chat", "client_closed", 499));
}

#[tokio::test]
async fn no_client_makes_a_series() {
    let bed = bed(1, 1, |_| {}).await;
    bed.all_good(2, "as usual").await;
    settled(&bed).await;
    let before = series(&scrape(&bed));
    for number in 0..50 {
        let path = format!("/v1/{number}\"\\\u{7f}x");
        exchange(bed.address(), &request("POST", &path, &[], b"{}")).await;
        exchange(bed.address(), &request(&format!("M{number}"), CHAT, &[], b"{}")).await;
        let mut body = ask(CHAT, "words", 2, number % 2 == 0);
        body["model"] = format!("model-{number}\n\"").into();
        bed.post(CHAT, &body).await;
        let id = format!("id-{number}");
        exchange(bed.address(), &request("GET", "/v1/models", &[("x-request-id", &id)], b"")).await;
        bed.decode[0].set_fault(once(status(600 + number)));
        bed.post(CHAT, &ask(CHAT, "words", 2, false)).await;
    }
    settled(&bed).await;
    assert_eq!(series(&scrape(&bed)), before);
}

#[tokio::test]
async fn what_is_read_at_a_scrape_is_true_then() {
    let bed = bed_of(1, 1, slow_tokens(), |config| {
        config.queue = Queue::new(1, 5, Duration::from_secs(30));
        config.breaker.failure_threshold = 1;
        config.breaker.open_for = Duration::from_secs(60);
        config.dispatch.retry.max_retries = 0;
    })
    .await;
    let (prefill, decode) = (bed.prefill[0].url(), bed.decode[0].url());
    let running = bed.begin_stream(20).await;
    until("one decodes", || {
        bed.metric(&format!("pd_router_in_flight{{engine=\"{decode}\",role=\"decode\"}}")) == 1.0
    })
    .await;
    let waiting = bed.begin_stream(2).await;
    until("one waits", || bed.metric("pd_router_queue_depth") == 1.0).await;
    let ranked = |family: &str, worker: &str| {
        bed.metric(&format!("vllm_router_pd_{family}{{rank=\"0\",worker=\"{worker}\"}}"))
    };
    assert_eq!(ranked("active_decode_requests", &decode), 1.0);
    assert!(bed.metric("pd_router_buffered_bytes") > 50.0);
    for connection in [running, waiting] {
        assert!(pd_tests::read(connection).await.whole);
    }
    settled(&bed).await;
    for family in ["active_decode_requests", "pending_decode_requests"] {
        assert_eq!(ranked(family, &decode), 0.0, "{family}");
    }
    assert_eq!(ranked("prefill_occupancy", &prefill), 0.0);
    assert!(bed.metric("pd_router_queue_wait_seconds_sum") > 0.3);
    let breaker = |family: &str, state: &str| {
        bed.metric(&format!(
            "pd_router_breaker_{family}{{engine=\"{prefill}\",role=\"prefill\",state=\"{state}\"}}"
        ))
    };
    assert_eq!((breaker("state", "closed"), breaker("state", "open")), (1.0, 0.0));
    bed.prefill[0].set_fault(once(status(500)));
    bed.post(CHAT, &ask(CHAT, "words", 2, false)).await;
    assert_eq!((breaker("state", "closed"), breaker("state", "open")), (0.0, 1.0));
    assert_eq!((breaker("transitions_total", "open"), breaker("transitions_total", "half_open")), (1.0, 0.0));
    assert!(bed.metric("process_resident_memory_bytes") > 1e6 && bed.metric("process_open_fds") > 5.0);
}

/// An engine that says who speaks at once, then a comment, and its first token after 300 ms.
async fn late_token(listener: TcpListener) {
    while let Ok((mut connection, _)) = listener.accept().await {
        let mut bytes = vec![0; 64 * 1024];
        let read = connection.read(&mut bytes).await.unwrap_or(0);
        if bytes[..read].starts_with(b"GET") {
            let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
            connection.write_all(answer.as_bytes()).await.ok();
            continue;
        }
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
        connection.write_all(head.as_bytes()).await.ok();
        for (wait, event) in [
            (0, ": ping\n\n"),
            (0, "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n"),
            (300, "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"),
            (100, "data: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\n"),
            (0, "data: [DONE]\n\n"),
        ] {
            tokio::time::sleep(Duration::from_millis(wait)).await;
            let chunk = format!("{:x}\r\n{event}\r\n", event.len());
            connection.write_all(chunk.as_bytes()).await.ok();
        }
        connection.write_all(b"0\r\n\r\n").await.ok();
    }
}

#[tokio::test]
async fn the_first_token_is_the_first_event_with_content() {
    let prefill = Sim::start(SimConfig::new(Role::Prefill)).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let decode = format!("http://{}", listener.local_addr().unwrap());
    let url = |text: &str| vec![EngineUrl::parse(text).unwrap()];
    let router = Router::start(Config::new(url(&prefill.url()), url(&decode), None).unwrap()).await.unwrap();
    let mut engine = tokio::task::JoinSet::new();
    engine.spawn(late_token(listener));
    router.all_up().await;
    let body = ask(CHAT, "words", 4, true).to_string();
    let answer = exchange(router.address(), &request("POST", CHAT, &[], body.as_bytes())).await;
    assert!(answer.whole && answer.text().contains("[DONE]"), "{}", answer.text());
    until("it is counted", || router.observe().in_flight() == 0).await;
    let text = router.observe().render();
    let value = |series: &str| -> f64 {
        let line = text.lines().find(|line| line.starts_with(series)).expect(series);
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let first = value("pd_router_time_to_first_token_seconds_sum{api=\"chat\"}");
    let per_token = value("pd_router_time_per_output_token_seconds_sum{api=\"chat\"}");
    let handover = value("pd_router_handover_seconds_sum");
    assert!((0.3..0.39).contains(&first), "{first}");
    assert!((0.09..0.2).contains(&per_token), "{per_token}");
    assert!(handover < 0.2, "{handover}: the first event, content or not");
    assert_eq!(value("pd_router_inter_token_seconds_count"), 1.0);
    assert_eq!(value("pd_router_generated_tokens_total{api=\"chat\"}"), 2.0, "by its events");
}

#[tokio::test]
async fn the_peers_names_can_be_left_out() {
    let bed = bed(1, 1, |config| {
        config.peer_metrics = pd_tests::args(&["--metrics-compat", "none"]).observing.metrics_compat
            != pd_router::cli::observing::Compat::None;
    })
    .await;
    bed.all_good(1, "as usual").await;
    assert!(scrape(&bed).keys().all(|name| name.starts_with("pd_router_") || name.starts_with("process_")));
}

#[tokio::test]
async fn the_metrics_port_and_the_main_one_say_the_same() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let bed = bed(1, 1, |config| config.prometheus = Some(("127.0.0.1".to_owned(), free))).await;
    for port in [free, bed.address().port()] {
        let mut connection = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        connection.write_all(&request("GET", "/metrics", &[], b"")).await.unwrap();
        let answer = pd_tests::read(connection).await;
        assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
        assert_eq!(series(&exposition::read(answer.text())), series(&scrape(&bed)));
    }
}

const START: &str = "<!-- generated by tests/metrics.rs -->\n";
const END: &str = "<!-- end -->\n";

fn unit(name: &str, kind: &str) -> &'static str {
    let name = name.trim_end_matches("_total");
    match name {
        _ if name.ends_with("_seconds") => "seconds",
        _ if name.ends_with("_bytes") => "bytes",
        _ if name.ends_with("_tokens") => "tokens",
        _ if kind == "counter" => "count",
        _ => "number",
    }
}

fn table(families: &BTreeMap<String, Family>, wanted: impl Fn(&str) -> bool) -> String {
    let mut table = "| name | type | labels | unit | meaning |\n| --- | --- | --- | --- | --- |\n".to_owned();
    for (name, family) in families.iter().filter(|(name, _)| wanted(name)) {
        let labels: Vec<_> = family.labels().into_iter().map(|label| format!("`{label}`")).collect();
        let bounds = family.bounds();
        let buckets =
            if bounds.is_empty() { String::new() } else { format!(" Buckets: {}.", bounds.join(", ")) };
        let (kind, unit) = (&family.kind, unit(name, &family.kind));
        writeln!(table, "| `{name}` | {kind} | {} | {unit} | {}{buckets} |", labels.join(", "), family.help)
            .unwrap();
    }
    table
}

#[tokio::test]
async fn the_reference_lists_every_family() {
    let bed = bed(2, 2, |config| config.plan.decode = PolicyName::PowerOfTwo).await;
    let families = scrape(&bed);
    let own = table(&families, |name| name.starts_with("pd_router_"));
    let process = table(&families, |name| name.starts_with("process_"));
    let peer = table(&families, |name| name.starts_with("vllm_router_"));
    let tables =
        format!("## The router\n\n{own}\n## The process\n\n{process}\n## By vllm-router's names\n\n{peer}");
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/metrics.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (head, rest) = page.split_once(START).expect("the start mark");
    let (written, tail) = rest.split_once(END).expect("the end mark");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, format!("{head}{START}{tables}{END}{tail}")).unwrap();
        return;
    }
    assert_eq!(written, tables, "docs/reference/metrics.md is not true any more; UPDATE_DOCS=1 writes it");
}

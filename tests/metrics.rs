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
use pd_tests::{Bed, Scraped, ask, bed, bed_of, exchange, request, slow_tokens, until};
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
    let _scraped = Scraped::of(&router);
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

//! What stands on both sides of the router: request ids from clients' headers, calls from web pages, the key
//! that engines ask for, idle engine connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::serve::ListenerExt;
use pd_router::app::Router;
use pd_router::config::Config;
use pd_router::edge::cors::Allowed;
use pd_router::leg::key::EngineKey;
use pd_tests::{Answer, Bed, PATHS, args, ask, bed, exchange, request};

const CHAT: &str = "/v1/chat/completions";
const PAGE: &str = "https://chat.example.com";

async fn send(bed: &Bed, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    exchange(bed.address(), &request(method, path, headers, body.as_bytes())).await
}

async fn chat(bed: &Bed, headers: &[(&str, &str)]) -> Answer {
    let answer = send(bed, "POST", CHAT, headers, &ask(CHAT, "words", 2, false).to_string()).await;
    assert_eq!(answer.status, 200, "{headers:?}: {}", answer.text());
    answer
}

/// A header of the last request of each engine.
fn seen(bed: &Bed, name: &str) -> Vec<Option<String>> {
    let last = |sim: &pd_sim::Sim| {
        let request = sim.requests().pop()?;
        Some(request.headers.get(name)?.to_str().ok()?.to_owned())
    };
    bed.prefill.iter().chain(&bed.decode).map(last).collect()
}

#[tokio::test]
async fn an_id_comes_from_the_first_header_that_has_a_good_one() {
    let bed = bed(1, 1, |_| {}).await;
    let answer = chat(&bed, &[("x-trace-id", "t"), ("x-request-id", "mine")]).await;
    assert_eq!(answer.header("x-request-id"), Some("mine"));
    assert_eq!(seen(&bed, "x-request-id"), [Some("mine".to_owned()), Some("mine".to_owned())]);
    for (name, value) in [("x-correlation-id", "c"), ("x-trace-id", "t"), ("request-id", "r")] {
        let answer = chat(&bed, &[("x-request-id", "not good"), (name, value)]).await;
        assert_eq!(answer.header("x-request-id"), Some(value));
        let ids = seen(&bed, "x-request-id");
        let of_engines = ids[0].as_deref().expect("an id");
        assert_eq!(ids[0], ids[1], "both legs have one id");
        assert!(of_engines.starts_with(&format!("{value}-")) && of_engines.len() == 10, "{of_engines}");
    }
    assert!(chat(&bed, &[]).await.header("x-request-id").expect("an id").starts_with("req-"));
}

#[tokio::test]
async fn the_headers_that_bring_ids_can_be_named() {
    let named = ["--worker-urls", "--request-id-headers", "x-mine", "X-Yours"];
    let named = args(&named).config().expect("good").request_id_headers;
    let bed = bed(1, 1, |config| config.request_id_headers = named).await;
    for (name, value, kept) in [("x-mine", "a", true), ("x-yours", "b", true), ("x-request-id", "c", false)] {
        let answer = chat(&bed, &[(name, value)]).await;
        assert_eq!(answer.header("x-request-id") == Some(value), kept, "{name}");
    }
    let wrong = args(&["--worker-urls", "--request-id-headers", "no name"]).config();
    assert!(wrong.expect_err("no header").to_string().contains("`--request-id-headers no name`"));
}

fn preflight<'a>(method: &'a str, headers: &'a str) -> [(&'a str, &'a str); 3] {
    [("origin", PAGE), ("access-control-request-method", method), ("access-control-request-headers", headers)]
}

#[tokio::test]
async fn any_page_may_call_the_inference_paths_and_preflights_reach_no_engine() {
    let bed = bed(1, 1, |_| {}).await;
    let names = "authorization,content-type,x-stainless-os";
    for path in PATHS.into_iter().chain(["/v1/models", "/tokenize", "/health"]) {
        let answer = send(&bed, "OPTIONS", path, &preflight("POST", names), "").await;
        assert_eq!(answer.status, 204, "{path}");
        assert_eq!(answer.header("access-control-allow-origin"), Some("*"));
        assert_eq!(answer.header("access-control-allow-headers"), Some(names));
        assert!(answer.header("access-control-allow-methods").expect("methods").contains("post"));
        assert!(
            answer.header("x-request-id").is_some()
                && answer.header("access-control-allow-credentials").is_none()
        );
    }
    assert!(bed.prefill.iter().chain(&bed.decode).all(|sim| sim.requests().is_empty()));
    for stream in [false, true] {
        let body = ask(CHAT, "words", 2, stream).to_string();
        let answer = send(&bed, "POST", CHAT, &[("origin", PAGE)], &body).await;
        assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, Some("*")));
        let once = answer.head.matches("access-control-allow-origin").count();
        assert_eq!((once, answer.header("access-control-expose-headers")), (1, Some("*")));
    }
    let refused = send(&bed, "POST", CHAT, &[("origin", PAGE)], "{").await;
    assert_eq!((refused.status, refused.header("access-control-allow-origin")), (400, Some("*")));
    let others = chat(&bed, &[]).await;
    assert!(!others.head.contains("access-control"), "{}", others.head);
    assert_eq!(send(&bed, "OPTIONS", CHAT, &[], "").await.status, 405, "no preflight");
}

#[tokio::test]
async fn only_listed_pages_may_call_where_some_are_listed() {
    let words =
        ["--worker-urls", "--cors-allowed-origins", "https://other.example", "https://CHAT.example.com/"];
    let allowed = args(&words).config().expect("good").cors;
    let listed = bed(1, 1, |config| config.cors = allowed).await;
    let answer = chat(&listed, &[("origin", PAGE)]).await;
    assert_eq!(answer.header("access-control-allow-origin"), Some(PAGE));
    assert_eq!(answer.header("vary"), Some("origin"));
    let other = [("origin", "https://evil.example"), ("access-control-request-method", "POST")];
    let refused = send(&listed, "OPTIONS", CHAT, &other, "").await;
    assert_eq!((refused.status, refused.header("access-control-allow-origin")), (204, None));
    assert_eq!(
        chat(&listed, &[("origin", "https://evil.example")]).await.header("access-control-allow-origin"),
        None
    );
    let none = args(&["--worker-urls", "--cors-allowed-origins", "none"]).config().expect("good").cors;
    assert_eq!(none, Allowed::Only(Vec::new()));
    for words in [
        &["--worker-urls"][..],
        &["--worker-urls", "--cors-allowed-origins"],
        &["--worker-urls", "--cors-allowed-origins=*"],
    ] {
        assert_eq!(args(words).config().expect("good").cors, Allowed::Any, "{words:?}");
    }
    let wrong = args(&["--worker-urls", "--cors-allowed-origins", "chat.example.com"]).config();
    assert!(wrong.expect_err("no origin").to_string().contains("SCHEME://HOST"));
}

#[tokio::test]
async fn no_page_may_change_or_see_the_fleet() {
    let bed = bed(1, 1, |_| {}).await;
    for (method, path) in [
        ("POST", "/pause"),
        ("POST", "/workers"),
        ("POST", "/add_worker?url=http://h:1&worker_type=decode"),
        ("POST", "/remove_worker?url=http://h:1"),
        ("DELETE", "/workers/http%3A%2F%2Fh%3A1"),
        ("GET", "/is_paused"),
    ] {
        let asked = send(&bed, "OPTIONS", path, &preflight(method, "content-type"), "").await;
        assert!([403, 405].contains(&asked.status) && !asked.head.contains("access-control"), "{path}");
        // Its own page's name too: any site can have its name point to this machine.
        for origin in [PAGE, "null", &format!("http://{}", bed.address())] {
            let refused = send(&bed, method, path, &[("origin", origin)], "{}").await;
            assert_eq!(
                (refused.status, refused.code()),
                (403, "not_local".into()),
                "{method} {path} {origin}"
            );
        }
    }
    assert!(bed.decode[0].requests().is_empty(), "no engine was told");
    for path in
        ["/workers", "/get_loads", "/metrics", "/ui", "/ui/state", "/get_server_info", "/list_workers"]
    {
        let shown = send(&bed, "GET", path, &[("origin", PAGE)], "").await;
        assert_eq!((shown.status, shown.header("access-control-allow-origin")), (200, None), "{path}");
    }
    assert_eq!(send(&bed, "POST", "/pause", &[], "").await.status, 200, "no page");
}

#[tokio::test]
async fn the_clients_key_goes_to_the_engines_or_the_routers_in_its_place() {
    let key = |text| EngineKey::always(text).expect("a key");
    let client = ("authorization", "Bearer client");
    for (own, given, gets) in [
        (None, Some(client), Some("Bearer client")),
        (None, None, None),
        (Some(key("k1")), Some(client), Some("Bearer k1")),
        (Some(key("k1")), None, Some("Bearer k1")),
        (Some(key("k1").where_there_is_none()), Some(client), Some("Bearer client")),
        (Some(key("k1").where_there_is_none()), None, Some("Bearer k1")),
    ] {
        let bed = bed(1, 1, |config| config.engine_key = own.clone()).await;
        let gets = gets.map(ToOwned::to_owned);
        chat(&bed, given.as_slice()).await;
        assert_eq!(seen(&bed, "authorization"), [gets.clone(), gets.clone()], "{own:?} {given:?}");
        // Calls for all engines, and those for any one.
        assert_eq!(send(&bed, "POST", "/reset_prefix_cache", given.as_slice(), "").await.status, 200);
        assert_eq!(seen(&bed, "authorization"), [gets.clone(), gets.clone()], "{own:?} {given:?}");
        bed.decode[0].clear_requests();
        bed.prefill[0].clear_requests();
        let tokenize = send(&bed, "POST", "/tokenize", given.as_slice(), r#"{"prompt":"x"}"#).await;
        assert_eq!(tokenize.status, 200, "{}", tokenize.text());
        assert!(seen(&bed, "authorization").contains(&gets), "{own:?} {given:?}");
    }
}

/// An engine that answers nothing without its key, as far as there is one; how many requests it refused and how
/// many connections it took.
async fn engine(key: Option<&'static str>) -> (String, Arc<[AtomicUsize; 2]>) {
    let counts: Arc<[AtomicUsize; 2]> = Arc::default();
    let (refused, taken) = (Arc::clone(&counts), Arc::clone(&counts));
    let handler = move |request: Request| async move {
        let given = request.headers().get("authorization").map(|given| given.as_bytes());
        if key.is_some() && given != key.map(str::as_bytes) {
            refused[0].fetch_add(1, Ordering::Relaxed);
            return StatusCode::UNAUTHORIZED.into_response();
        }
        r#"{"object":"list","data":[]}"#.into_response()
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let listener = listener.tap_io(move |_| {
        taken[1].fetch_add(1, Ordering::Relaxed);
    });
    let serve = axum::serve(listener, axum::Router::new().fallback(handler));
    pd_router::task::background(async move { serve.await.expect("it serves") });
    (url, counts)
}

/// A router with one engine, as the command line has it.
async fn router(words: &[&str]) -> Bed {
    let config: Config = args(&[&["--port=0", "--threads=1"], words].concat()).config().expect("good");
    let router = Router::start(Config { prometheus: None, ..config }).await.expect("a router");
    tokio::time::timeout(Duration::from_secs(5), router.all_up()).await.expect("up");
    Bed::of(router, Vec::new(), Vec::new())
}

#[tokio::test]
async fn engines_that_ask_for_a_key_everywhere_are_probed_and_called_with_it() {
    let (url, counts) = engine(Some("Bearer k1")).await;
    let bed = router(&["--worker-urls", &url, "--api-key=k1"]).await;
    for (method, path) in
        [("GET", "/v1/models"), ("POST", "/v1/completions"), ("POST", "/pause"), ("POST", "/resume")]
    {
        let answer = send(&bed, method, path, &[("authorization", "Bearer EMPTY")], "{}").await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    }
    assert_eq!(counts[0].load(Ordering::Relaxed), 0, "every call had the key");
}

#[tokio::test]
async fn an_idle_engine_connection_is_used_again_for_its_time() {
    for (secs, pause, again) in [("60", 0, true), ("0", 0, false), ("1", 0, true), ("1", 1_300, false)] {
        let (url, counts) = engine(None).await;
        let words = ["--worker-urls", &url, "--pool-idle-timeout-secs", secs];
        let bed = router(&[&words[..], &["--health-check-interval-secs=60"]].concat()).await;
        // The probes that found it up have ended.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let before = counts[1].load(Ordering::Relaxed);
        for wait in [pause, 0] {
            let answer = send(&bed, "POST", "/v1/completions", &[], r#"{"prompt":"x"}"#).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            tokio::time::sleep(Duration::from_millis(wait)).await;
        }
        let taken = counts[1].load(Ordering::Relaxed) - before;
        assert_eq!(taken, if again { 1 } else { 2 }, "{secs} s, {pause} ms apart");
    }
    assert_eq!(args(&["--worker-urls"]).config().expect("good").leg.idle_max, Duration::from_secs(4));
}

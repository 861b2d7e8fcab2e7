//! Engines come and go while the router serves: what callers see, that no request is lost, that nothing of an
//! engine stays.

use std::time::Duration;

use pd_router::admin::guard::AdminKey;
use pd_router::plan::name::PolicyName;
use pd_sim::{Fault, FaultKind, Role, Sim, SimConfig};
use pd_tests::{Answer, Bed, ask, bed, bed_of, exchange, request, slow_tokens, until};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

async fn send(bed: &Bed, method: &str, target: &str, body: &str) -> Answer {
    exchange(bed.address(), &request(method, target, &[], body.as_bytes())).await
}

async fn get(bed: &Bed, target: &str) -> Value {
    let answer = send(bed, "GET", target, "").await;
    assert_eq!(answer.status, 200, "{target}: {}", answer.text());
    answer.json()
}

async fn add(bed: &Bed, url: &str, role: &str) -> Answer {
    send(bed, "POST", "/workers", &json!({"url": url, "worker_type": role}).to_string()).await
}

/// A URL as one segment of a path.
fn segment(url: &str) -> String {
    url.replace(':', "%3A").replace('/', "%2F")
}

async fn sim(role: Role) -> Sim {
    Sim::start(SimConfig::new(role)).await.expect("a free port")
}

fn known(bed: &Bed, url: &str) -> bool {
    bed.router.fleet().find(url).is_some()
}

#[tokio::test]
async fn the_fleet_is_shown_under_vllm_routers_keys() {
    let bed = bed(2, 1, |_| {}).await;
    let fleet = get(&bed, "/workers").await;
    assert_eq!(fleet["total"], 3);
    assert_eq!(fleet["stats"], json!({"prefill_count": 2, "decode_count": 1, "regular_count": 0}));
    let sims = || bed.prefill.iter().chain(&bed.decode);
    for (worker, sim) in fleet["workers"].as_array().expect("workers").iter().zip(sims()) {
        let role = if bed.decode[0].url() == sim.url() { "decode" } else { "prefill" };
        assert_eq!((&worker["url"], &worker["worker_type"]), (&sim.url().into(), &role.into()));
        assert_eq!(
            (&worker["is_healthy"], &worker["load"], &worker["model_id"]),
            (&true.into(), &0.into(), &"unknown".into())
        );
        for url in [segment(&sim.url()), sim.url(), format!("{}%2F", segment(&sim.url()))] {
            assert_eq!(&get(&bed, &format!("/workers/{url}")).await["url"], &worker["url"], "{url}");
        }
    }
    let urls: Vec<String> = sims().map(Sim::url).collect();
    assert_eq!(get(&bed, "/list_workers").await, json!({ "urls": urls }));
    let loads = get(&bed, "/get_loads").await;
    assert_eq!(
        (&loads["loads"][format!("decode_{}", bed.decode[0].url())], &loads["errors"]),
        (&0.into(), &json!([]))
    );
    assert_eq!(get(&bed, "/get_server_info").await["server"], "pd-router");
    for method in ["GET", "DELETE"] {
        let unknown = send(&bed, method, "/workers/http%3A%2F%2F127.0.0.1%3A1", "").await;
        assert_eq!((unknown.status, unknown.code()), (404, "worker_not_found".into()), "{method}");
    }
}

#[tokio::test]
async fn loads_are_the_true_ones() {
    let bed = bed_of(1, 1, slow_tokens(), |_| {}).await;
    let streams = [bed.begin_stream(10).await, bed.begin_stream(10).await];
    until("both stream", || bed.decode[0].running() == 2).await;
    assert_eq!(loads(&bed).await, (0, 2));
    for stream in streams {
        assert!(pd_tests::read(stream).await.whole);
    }
    assert_eq!(loads(&bed).await, (0, 0));
}

/// The loads of the only prefill and the only decode engine.
async fn loads(bed: &Bed) -> (i64, i64) {
    let workers = get(bed, "/workers").await;
    let of = |index: usize| workers["workers"][index]["load"].as_i64().expect("a load");
    (of(0), of(1))
}

#[tokio::test]
async fn a_request_is_one_load_on_decode_from_its_prefill_to_its_end() {
    let bed = bed_of(1, 1, slow_tokens(), |_| {}).await;
    let (prefill, decode) = (&bed.prefill[0], &bed.decode[0]);
    let stall = || Fault { kind: FaultKind::Stall, times: Some(1) };
    let gauges = || {
        let of = |family: &str| {
            let labels = format!("{{rank=\"0\",worker=\"{}\"}}", decode.url());
            bed.metric(&format!("vllm_router_pd_{family}_decode_requests{labels}"))
        };
        (of("pending"), of("active"))
    };
    prefill.set_fault(stall());
    let held = bed.begin_stream(2).await;
    until("prefill has it", || prefill.running() == 1).await;
    assert_eq!((loads(&bed).await, gauges()), ((1, 1), (1.0, 0.0)), "promised");
    drop(held);
    until("it is gone", || bed.router.observe().in_flight() == 0).await;
    // For as long as the engine has not answered, which is all the time of an answer that is no stream.
    decode.set_fault(stall());
    let held = bed.begin_stream(2).await;
    until("decode has it", || decode.running() == 1).await;
    assert_eq!((loads(&bed).await, gauges()), ((0, 1), (0.0, 1.0)), "asked");
    drop(held);
    until("it is gone", || bed.router.observe().in_flight() == 0).await;
    assert_eq!((loads(&bed).await, gauges()), ((0, 0), (0.0, 0.0)), "left");
}

#[tokio::test]
async fn what_is_no_engine_is_not_taken_in() {
    let bed = bed(1, 1, |_| {}).await;
    let decode = bed.decode[0].url();
    for (body, status, code) in [
        ("{", 400, "worker_invalid"),
        (r#"{"worker_type":"decode"}"#, 400, "worker_invalid"),
        (r#"{"url":"http://h:1"}"#, 400, "worker_invalid"),
        (r#"{"url":"http://h:1","worker_type":"regular"}"#, 400, "worker_invalid"),
        (r#"{"url":"h:1","worker_type":"decode"}"#, 400, "worker_invalid"),
        (&json!({"url": decode, "worker_type": "prefill"}).to_string(), 409, "worker_refused"),
    ] {
        let answer = send(&bed, "POST", "/workers", body).await;
        assert_eq!((answer.status, answer.code()), (status, code.into()), "{body}: {}", answer.text());
    }
    assert_eq!(send(&bed, "POST", "/add_worker", "").await.status, 400);
    assert_eq!(send(&bed, "POST", "/remove_worker", "").await.status, 400);
    let again = send(
        &bed,
        "POST",
        "/workers",
        &json!({"url": decode, "worker_type": "decode", "bootstrap_port": 1, "cost": 2}).to_string(),
    )
    .await;
    assert_eq!((again.status, &again.json()["ignored"]), (200, &json!(["bootstrap_port", "cost"])));
    assert_eq!(get(&bed, "/workers").await["total"], 2, "one engine is one engine");
}

#[tokio::test]
async fn changes_need_the_admin_key_and_looking_does_not() {
    let key = AdminKey::parse("k1").expect("a key");
    let bed = bed(1, 1, |config| config.admin_key = Some(key)).await;
    let path = format!("/workers/{}", segment(&bed.decode[0].url()));
    for (method, path) in [
        ("POST", "/workers"),
        ("POST", "/add_worker?url=http://h:1&worker_type=decode"),
        ("POST", "/remove_worker?url=http://h:1"),
        ("DELETE", path.as_str()),
        ("POST", &format!("{path}/drain")),
    ] {
        let refused = send(&bed, method, path, "{}").await;
        assert_eq!((refused.status, refused.code()), (401, "admin_key".into()), "{method} {path}");
    }
    for path in ["/workers", "/list_workers", "/get_loads", "/get_server_info", &path] {
        get(&bed, path).await;
    }
    let gone =
        exchange(bed.address(), &request("DELETE", &path, &[("authorization", "Bearer k1")], b"")).await;
    assert_eq!(gone.status, 200);
}

#[tokio::test]
async fn an_engine_that_goes_ends_its_streams_and_leaves_nothing() {
    let bed = bed_of(1, 2, slow_tokens(), |config| {
        config.plan.decode = PolicyName::StickyLeastLoaded;
        config.plan.prefill = PolicyName::CacheAware;
    })
    .await;
    bed.all_good(4, "before").await;
    let stream = bed.begin_stream(12).await;
    until("it streams", || bed.decode.iter().any(|sim| sim.running() == 1)).await;
    let going = bed.decode.iter().find(|sim| sim.running() == 1).expect("one");
    let (url, before) = (going.url(), going.requests().len());
    let answer = send(&bed, "DELETE", &format!("/workers/{}", segment(&url)), "").await;
    assert_eq!((answer.status, &answer.json()["status"]), (200, &"draining".into()));
    for _ in 0..4 {
        assert_eq!(bed.post(CHAT, &ask(CHAT, "other words", 2, false)).await.status, 200);
    }
    assert_eq!(going.requests().len(), before, "no new request");
    assert!(known(&bed, &url), "its stream still runs");
    let whole = pd_tests::read(stream).await;
    assert!(whole.status == 200 && whole.whole && whole.text().contains("[DONE]"), "{}", whole.text());
    until("it is gone", || !known(&bed, &url)).await;
    assert_eq!(get(&bed, "/workers").await["total"], 2);
    until("no series of it is left", || !bed.router.observe().render().contains(&url)).await;
    assert_eq!(send(&bed, "DELETE", &format!("/workers/{}", segment(&url)), "").await.status, 404);
    bed.all_good(2, "after").await;
    bed.clean().await;
}

#[tokio::test]
async fn an_engine_that_drains_stays_and_can_come_back() {
    let bed = bed(1, 2, |_| {}).await;
    let url = bed.decode[0].url();
    let path = format!("/workers/{}", segment(&url));
    let drained = send(&bed, "POST", &format!("{path}/drain"), "").await;
    assert_eq!((drained.status, &drained.json()["draining"]), (200, &true.into()));
    bed.all_good(4, "one drains").await;
    assert!(bed.decode[0].requests().is_empty() && known(&bed, &url));
    // Also one that was on its way out.
    assert_eq!(send(&bed, "DELETE", &path, "").await.status, 200);
    assert_eq!(add(&bed, &url, "decode").await.status, 200);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(known(&bed, &url));
    bed.all_good(4, "it is back").await;
    assert!(!bed.decode[0].requests().is_empty());
    assert_eq!(send(&bed, "POST", &format!("{path}/other"), "").await.status, 404);
}

#[tokio::test]
async fn engines_come_and_go_under_load_and_no_request_is_lost() {
    let bed = bed(2, 2, |config| config.probe.interval = Duration::from_millis(100)).await;
    let load = async {
        let mut served = 0;
        for round in 0..40 {
            let body = |number| ask(CHAT, &format!("round {round} number {number}"), 4, number % 2 == 0);
            let bodies: Vec<Value> = (0..8).map(body).collect();
            let answers =
                futures_util::future::join_all(bodies.iter().map(|body| bed.post(CHAT, body))).await;
            for (body, answer) in bodies.iter().zip(answers) {
                assert_eq!((answer.status, answer.whole), (200, true), "{}", answer.text());
                assert_eq!(pd_tests::text_of(CHAT, &answer), pd_sim::expected(CHAT, body, 4));
                served += 1;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        served
    };
    let changes = async {
        let mut guests = Vec::new();
        for round in 0..6 {
            let (role, name) =
                if round % 2 == 0 { (Role::Decode, "decode") } else { (Role::Prefill, "prefill") };
            let guest = sim(role).await;
            let url = guest.url();
            let path = if round < 3 {
                assert_eq!(add(&bed, &url, name).await.status, 200);
                format!("/remove_worker?url={}", segment(&url))
            } else {
                let added =
                    send(&bed, "POST", &format!("/add_worker?url={url}&worker_type={name}"), "").await;
                assert_eq!(added.status, 200, "{}", added.text());
                format!("/remove_worker?url={url}")
            };
            until("it gets requests", || guest.requests().len() > 2).await;
            assert_eq!(send(&bed, "POST", &path, "").await.status, 200);
            until("it is gone", || !known(&bed, &url)).await;
            // What it handed over may still be fetched, so it lives on.
            guests.push(guest);
        }
        guests
    };
    let (served, guests) = tokio::join!(load, changes);
    assert_eq!(served, 320);
    let text = bed.router.observe().render();
    for guest in &guests {
        assert_eq!(guest.ledger().violations, Vec::<String>::new());
        assert!(!text.contains(&guest.url()), "a series of {} is left", guest.url());
    }
    bed.clean().await;
}

#[tokio::test]
async fn strict_health_turns_with_the_first_engine_and_the_other_does_not() {
    for strict in [false, true] {
        let mut bed = bed(1, 2, |config| {
            config.strict_health = strict;
            config.probe.interval = Duration::from_millis(30);
        })
        .await;
        let well = send(&bed, "GET", "/health", "").await;
        assert_eq!((well.status, strict && well.text() == "All servers healthy"), (200, strict));
        let gone = bed.decode.remove(0);
        let url = gone.url();
        drop(gone);
        until("it is down", || bed.router.fleet().find(&url).is_some_and(|engine| !engine.up())).await;
        let answer = send(&bed, "GET", "/health", "").await;
        assert!(answer.text().contains(&url), "{}", answer.text());
        assert_eq!(answer.status, if strict { 503 } else { 200 });
        if strict {
            assert_eq!(answer.text(), format!("Unhealthy servers: [\"Decode: {url}\"]"));
        }
        assert_eq!(send(&bed, "GET", "/readiness", "").await.status, 200);
    }
}

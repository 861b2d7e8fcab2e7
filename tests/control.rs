//! Calls that go to every engine, who may make them, and requests while engines rest.

use std::time::Duration;

use pd_router::admin::guard::AdminKey;
use pd_router::admit::queue::Queue;
use pd_router::dispatch::Paused;
use pd_sim::Sim;
use pd_tests::{Answer, Bed, ask, bed, exchange, request, until};

const CHAT: &str = "/v1/chat/completions";

async fn send(bed: &Bed, method: &str, target: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    exchange(bed.address(), &request(method, target, headers, body.as_bytes())).await
}

async fn post(bed: &Bed, target: &str) -> Answer {
    send(bed, "POST", target, &[], "").await
}

fn all(bed: &Bed) -> impl Iterator<Item = &Sim> {
    bed.prefill.iter().chain(&bed.decode)
}

#[tokio::test]
async fn every_engine_gets_the_call_as_it_came() {
    let bed = bed(2, 2, |_| {}).await;
    let body = r#"{"abort_all": true,  "x": 0.10}"#;
    let json = ("content-type", "application/json");
    for (target, body, at) in [
        ("/pause?mode=abort&clear_cache=true", "", "/pause?mode=abort&clear_cache=true"),
        ("/resume", "", "/resume"),
        ("/abort_requests", body, "/abort_requests"),
        ("/flush_cache?a=%20b", "", "/reset_prefix_cache?a=%20b"),
        ("/collective_rpc", body, "/collective_rpc"),
        ("/update_weights", body, "/update_weights"),
        ("/v1/load_lora_adapter", body, "/v1/load_lora_adapter"),
    ] {
        all(&bed).for_each(Sim::clear_requests);
        let answer = send(&bed, "POST", target, &[json], body).await;
        assert_eq!(answer.status, 200, "{target}: {}", answer.text());
        let document = answer.json();
        let engines = document["engines"].as_array().expect("engines");
        assert_eq!((document["status"].as_str(), engines.len()), (Some("ok"), 4), "{target}");
        assert!(engines.iter().all(|one| one["status"] == 200 && one["body"]["status"] == "ok"), "{target}");
        for sim in all(&bed) {
            let seen = sim.requests();
            let [one] = seen.as_slice() else { panic!("{target}: {} calls", seen.len()) };
            let query = one.query.as_ref().map_or(String::new(), |query| format!("?{query}"));
            assert_eq!((format!("{}{query}", one.path), &one.body[..]), (at.to_owned(), body.as_bytes()));
            assert_eq!(
                one.headers.get("content-type").map(|kind| kind.as_bytes()),
                Some(&b"application/json"[..])
            );
        }
    }
    bed.all_good(4, "after all that").await;
    bed.clean().await;
}

#[tokio::test]
async fn a_role_can_be_named_and_only_it_is_told() {
    let bed = bed(2, 1, |_| {}).await;
    let answer = post(&bed, "/reset_prefix_cache?role=decode&x=1").await;
    assert_eq!((answer.status, answer.json()["engines"].as_array().map(Vec::len)), (200, Some(1)));
    assert!(bed.prefill.iter().all(|sim| sim.requests().is_empty()));
    assert_eq!(bed.decode[0].requests()[0].query.as_deref(), Some("x=1"));
    let wrong = post(&bed, "/pause?role=both").await;
    assert_eq!((wrong.status, wrong.code()), (400, "query_parameter_invalid".into()));
    assert_eq!(send(&bed, "GET", "/pause", &[], "").await.status, 405);
}

#[tokio::test]
async fn requests_wait_while_engines_rest_and_then_are_served() {
    let bed = bed(1, 2, |_| {}).await;
    for (rest, asks, wake) in [
        ("/pause?mode=keep", "/is_paused", "/resume"),
        ("/sleep?level=1", "/is_sleeping", "/wake_up"),
        ("/pause?role=decode", "/is_paused?role=decode", "/resume?role=decode"),
    ] {
        let key = asks.split('?').next().expect("a path").trim_start_matches('/');
        assert_eq!(send(&bed, "GET", asks, &[], "").await.json()[key], false, "{asks}");
        assert_eq!(post(&bed, rest).await.status, 200);
        assert_eq!(send(&bed, "GET", asks, &[], "").await.json()[key], true, "{asks}");
        let waiting = bed.begin_stream(4).await;
        until("it waits in the queue", || bed.metric("pd_router_queue_depth") > 0.0).await;
        assert_eq!(bed.decode.iter().map(Sim::running).sum::<usize>(), 0);
        // What only reads is answered, and health does not turn.
        for path in ["/v1/models", "/health"] {
            assert_eq!(send(&bed, "GET", path, &[], "").await.status, 200, "{path} while {rest}");
        }
        assert_eq!(post(&bed, wake).await.status, 200);
        let answer = pd_tests::read(waiting).await;
        assert!(answer.status == 200 && answer.whole, "{}", answer.text());
    }
    bed.clean().await;
}

#[tokio::test]
async fn waking_part_by_part_takes_all_parts() {
    let bed = bed(1, 1, |config| config.queue = Queue::new(8, 8, Duration::from_millis(200))).await;
    assert_eq!(post(&bed, "/sleep?level=2").await.status, 200);
    assert_eq!(post(&bed, "/wake_up?tags=weights").await.status, 200);
    let refused = bed.post(CHAT, &ask(CHAT, "a", 2, false)).await;
    assert_eq!((refused.status, refused.code()), (503, "engines_paused".into()));
    assert!(refused.header("retry-after").is_some());
    assert_eq!(post(&bed, "/wake_up?tags=kv_cache").await.status, 200);
    bed.all_good(2, "awake").await;
    bed.clean().await;
}

#[tokio::test]
async fn with_reject_requests_are_refused_at_once() {
    let bed = bed(1, 1, |config| config.dispatch.paused = Paused::Reject).await;
    assert_eq!(post(&bed, "/pause").await.status, 200);
    let refused = bed.post(CHAT, &ask(CHAT, "a", 2, false)).await;
    assert_eq!((refused.status, refused.code()), (503, "engines_paused".into()));
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(post(&bed, "/resume").await.status, 200);
    bed.all_good(2, "resumed").await;
}

#[tokio::test]
async fn one_resting_engine_of_two_gets_nothing() {
    let bed = bed(2, 2, |config| config.probe.interval = Duration::from_millis(50)).await;
    // Not through the router: it finds out by asking.
    let path = bed.decode[0].url();
    assert_eq!(direct(&format!("{path}/pause")).await, 200);
    let paused = || bed.router.fleet().snapshot().decode[0].resting().rests();
    until("the router knows", paused).await;
    bed.decode[0].clear_requests();
    bed.all_good(6, "one rests").await;
    assert!(bed.decode[0].requests().is_empty());
    assert_eq!(direct(&format!("{path}/resume")).await, 200);
    until("the router knows", || !paused()).await;
    bed.clean().await;
}

#[tokio::test]
async fn a_call_that_fails_anywhere_is_not_200_and_changes_nothing_there() {
    let mut bed = bed(1, 2, |_| {}).await;
    drop(bed.decode.remove(0));
    let answer = post(&bed, "/pause").await;
    let document = answer.json();
    assert_eq!((answer.status, &document["status"], &document["failed"]), (502, &"failed".into(), &1.into()));
    let gone = &document["engines"][1];
    assert!(gone["status"].is_null() && gone["error"] == "it cannot be reached", "{gone}");
    assert_eq!((&gone["state"], &document["engines"][2]["state"]), (&"awake".into(), &"paused".into()));
    // What every engine refuses alike keeps its status: this one is unknown to them.
    let unknown = post(&bed, "/update_weight_version?role=prefill").await;
    assert_eq!((unknown.status, &unknown.json()["engines"][0]["status"]), (404, &404.into()));
}

#[tokio::test]
async fn the_admin_key_is_needed_where_one_is_set_and_goes_no_further() {
    let key = AdminKey::parse("k1").expect("a key");
    let bed = bed(1, 1, |config| config.admin_key = Some(key)).await;
    for headers in [&[][..], &[("authorization", "Bearer k2")], &[("x-admin-key", "")]] {
        let refused = send(&bed, "POST", "/pause", headers, "").await;
        assert_eq!((refused.status, refused.code()), (401, "admin_key".into()), "{headers:?}");
        assert!(!refused.text().contains("k1"));
    }
    assert!(all(&bed).all(|sim| sim.requests().is_empty()));
    let headers = [("authorization", "Bearer k1")];
    assert_eq!(send(&bed, "POST", "/reset_prefix_cache", &headers, "").await.status, 200);
    assert!(all(&bed).all(|sim| sim.requests()[0].headers.get("authorization").is_none()));
    let headers = [("x-admin-key", "k1"), ("authorization", "Bearer engine")];
    assert_eq!(send(&bed, "POST", "/reset_prefix_cache", &headers, "").await.status, 200);
    assert!(all(&bed).all(|sim| sim.requests()[1].headers["authorization"] == "Bearer engine"));
    bed.all_good(2, "inference needs no admin key").await;
}

#[tokio::test]
async fn without_a_key_what_somebody_passed_on_is_refused() {
    let bed = bed(1, 1, |_| {}).await;
    let refused = send(&bed, "POST", "/pause", &[("x-forwarded-for", "10.0.0.9")], "").await;
    assert_eq!((refused.status, refused.code()), (403, "not_local".into()));
    assert!(refused.text().contains("--admin-api-key"));
    bed.all_good(2, "nothing is paused").await;
}

async fn direct(url: &str) -> u16 {
    let (address, path) = url.trim_start_matches("http://").split_once('/').expect("a path");
    let bytes = request("POST", &format!("/{path}"), &[], b"");
    exchange(address.parse().expect("an address"), &bytes).await.status
}

//! What becomes of handoffs: used well, used wrongly, never used.

#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

mod client;

use std::time::Duration;

use client::{ask, call, post, prefill, read, send, until, with};
use pd_sim::{Latency, Role, Sim, SimConfig, expected};
use serde_json::{Value, json};

const PATHS: [&str; 5] =
    ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/inference/v1/generate"];
const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

async fn start(config: SimConfig) -> Sim {
    Sim::start(config).await.expect("a free port")
}

async fn pair() -> (Sim, Sim) {
    (start(SimConfig::new(Role::Prefill)).await, start(SimConfig::new(Role::Decode)).await)
}

fn handed(params: &Value) -> Value {
    json!({ "kv_transfer_params": params })
}

/// Leaves out what differs from answer to answer.
fn plain(mut value: Value) -> Value {
    match &mut value {
        Value::Object(members) => {
            for name in ["id", "item_id", "created", "created_at", "request_id", "system_fingerprint"] {
                members.remove(name);
            }
            members.values_mut().for_each(|member| *member = plain(member.take()));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = plain(item.take())),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    value
}

#[tokio::test]
async fn a_pair_answers_as_one_engine_does() {
    let (p, d) = pair().await;
    let alone = start(SimConfig::new(Role::Plain)).await;
    for path in PATHS {
        for more in [json!({}), json!({"stream": true}), json!({"stop": "a", "return_token_ids": true})] {
            let body = with(ask(path, "some words of a prompt", 9), &more);
            let params = prefill(&p, path, "some words of a prompt").await;
            let got = post(&d, path, &with(body.clone(), &handed(&params))).await;
            let want = post(&alone, path, &body).await;
            assert_eq!((got.status, want.status), (200, 200), "{path} {more}");
            let plain =
                |answer: &client::Answer| answer.documents().into_iter().map(plain).collect::<Vec<_>>();
            assert_eq!(plain(&got), plain(&want), "{path} {more}");
        }
    }
    let (issued, taken) = (p.ledger(), d.ledger());
    assert_eq!((issued.issued, issued.fetched, issued.pinned_blocks), (15, 15, 0));
    assert_eq!(taken.violations.len() + issued.violations.len(), 0, "{taken:?} {issued:?}");
}

#[tokio::test]
async fn the_helper_knows_the_text() {
    let alone = start(SimConfig::new(Role::Plain)).await;
    let body = ask(CHAT, "what", 6);
    let answer = post(&alone, CHAT, &body).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], expected(CHAT, &body, 99).as_str());
    assert_ne!(expected(CHAT, &body, 99), expected(CHAT, &ask(CHAT, "what?", 6), 99));
}

#[tokio::test]
async fn wrong_uses_are_seen() {
    let (p, d) = pair().await;
    let fresh = async || prefill(&p, COMPLETIONS, "a b c").await;
    let used = fresh().await;
    post(&d, COMPLETIONS, &with(ask(COMPLETIONS, "a b c", 3), &handed(&used))).await;
    let foreign = with(fresh().await, &json!({"remote_engine_id": "no-such-engine"}));
    let invented = with(fresh().await, &json!({"remote_request_id": "no-such-request"}));
    let altered = with(fresh().await, &json!({"tp_size": 2}));
    let blind = with(fresh().await, &json!({"remote_block_ids": null}));
    let nowhere = with(fresh().await, &json!({"remote_port": null}));
    let more =
        |members: Value, params: &Value| with(with(ask(COMPLETIONS, "a b c", 3), &members), &handed(params));
    for (body, status, words) in [
        (more(json!({}), &used), 500, "Served"),
        (more(json!({}), &foreign), 500, "OtherEngine"),
        (more(json!({}), &invented), 500, "Unknown"),
        (more(json!({"prompt": "a b d"}), &fresh().await), 500, "another prompt"),
        (more(json!({}), &altered), 200, "changed on its way"),
        (more(json!({}), &blind), 500, "without block ids"),
        (more(json!({}), &nowhere), 500, "without an address"),
        (more(json!({"prompt": ["a b c", "d"]}), &fresh().await), 500, "several prompts"),
        (more(json!({"echo": true}), &fresh().await), 200, "echo"),
        (more(json!({"prompt_logprobs": 1}), &fresh().await), 200, "prompt_logprobs"),
        (more(json!({"n": 2, "temperature": 1}), &fresh().await), 200, "several choices"),
        (more(json!({"ec_transfer_params": {}}), &fresh().await), 200, "ec_transfer_params"),
        (more(json!({"vllm_xargs": {"kv_transfer_params": "x"}}), &fresh().await), 200, "side door"),
        (
            with(ask(COMPLETIONS, "a", 1), &json!({"kv_transfer_params": {"do_remote_decode": true}})),
            200,
            "prefill leg",
        ),
    ] {
        let before = d.ledger().violations.len();
        assert_eq!(post(&d, COMPLETIONS, &body).await.status, status, "{words}");
        let violations = d.ledger().violations;
        assert_eq!(violations.len(), before + 1, "{words}: {violations:#?}");
        assert!(violations.last().expect("one").contains(words), "{words}: {violations:#?}");
    }
}

#[tokio::test]
async fn wrong_prefill_legs_are_seen_and_leak() {
    let p = start(SimConfig::new(Role::Prefill)).await;
    let asked = json!({"kv_transfer_params": {"do_remote_decode": true}});
    for (members, words, leaked) in [
        (json!({"stream": true}), "streams", 1),
        (json!({"max_tokens": 4}), "more than one token", 1),
        (json!({"n": 2, "temperature": 1}), "several choices", 2),
        (json!({"prompt": ["a", "b", "c"]}), "several prompts", 3),
    ] {
        let before = p.ledger();
        let answer = post(&p, COMPLETIONS, &with(with(ask(COMPLETIONS, "a", 1), &asked), &members)).await;
        let after = p.ledger();
        assert_eq!(answer.status, 200);
        assert_eq!(after.pinned - before.pinned, leaked, "{words}");
        assert!(after.violations.last().expect("one").contains(words), "{after:?}");
        assert_eq!(answer.text.contains("remote_request_id"), words != "streams");
    }
}

#[tokio::test]
async fn after_the_lease_the_text_is_silently_wrong() {
    let lease = Duration::from_millis(40);
    let p = start(SimConfig { lease, ..SimConfig::new(Role::Prefill) }).await;
    let d = start(SimConfig::new(Role::Decode)).await;
    let params = prefill(&p, CHAT, "late").await;
    assert_eq!(p.ledger().pinned_blocks, 1);
    tokio::time::sleep(2 * lease).await;
    assert_eq!((p.ledger().expired, p.ledger().pinned_blocks), (1, 0));
    let body = ask(CHAT, "late", 8);
    let answer = post(&d, CHAT, &with(body.clone(), &handed(&params))).await;
    assert_eq!(answer.status, 200);
    assert_ne!(answer.json()["choices"][0]["message"]["content"], expected(CHAT, &body, 8).as_str());
    assert!(d.ledger().violations[0].contains("after its lease"));
    let metrics = call(&p, "GET", "/metrics", b"").await.text;
    assert!(
        metrics.contains("nixl_num_kv_expired_reqs_total{engine=\"0\",model_name=\"sim\"} 1.0"),
        "{metrics}"
    );
}

#[tokio::test]
async fn a_refused_decode_leg_gives_the_blocks_back() {
    let (p, d) = pair().await;
    for (members, status) in [(json!({"model": "nosuch"}), 404), (json!({"temperature": -1}), 400)] {
        let params = prefill(&p, CHAT, "x").await;
        let body = with(with(ask(CHAT, "x", 2), &members), &handed(&params));
        assert_eq!(post(&d, CHAT, &body).await.status, status);
        assert_eq!((p.ledger().pinned, p.ledger().pinned_blocks), (0, 0));
    }
    // Refused by the schema, before the engine knew of it: the lease has to do it.
    let params = prefill(&p, CHAT, "x").await;
    let body = with(json!({"messages": "x"}), &handed(&params));
    assert_eq!(post(&d, CHAT, &body).await.status, 400);
    assert_eq!((p.ledger().released, p.ledger().pinned), (2, 1));
    assert!(d.ledger().violations.is_empty());
}

#[tokio::test]
async fn an_engine_that_is_gone_or_restarted_is_nobodys_fault() {
    let (p, d) = pair().await;
    let recomputing = start(SimConfig { recompute: true, ..SimConfig::new(Role::Decode) }).await;
    let body = ask(CHAT, "x", 4);
    for gone in [false, true] {
        let params = prefill(&p, CHAT, "x").await;
        let id = p.engine_id();
        if gone {
            p.stop().await;
        } else {
            p.restart().await.expect("the same port");
            assert_ne!(p.engine_id(), id);
        }
        let answer = post(&d, CHAT, &with(body.clone(), &handed(&params))).await;
        let internal = r#"{"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":500}}"#;
        assert_eq!((answer.status, answer.text.as_str()), (500, internal));
        let streamed =
            post(&d, CHAT, &with(with(body.clone(), &handed(&params)), &json!({"stream": true}))).await;
        let event = "data: {\"error\": {\"message\": \"Internal server error\", \"type\": \"InternalServerError\", \
                     \"param\": null, \"code\": 500}}\n\ndata: [DONE]\n\n";
        assert_eq!((streamed.status, streamed.text.as_str()), (200, event));
        let again = post(&recomputing, CHAT, &with(body.clone(), &handed(&params))).await.json();
        assert_eq!(again["choices"][0]["message"]["content"], expected(CHAT, &body, 4).as_str());
    }
    let ledger = d.ledger();
    assert_eq!((ledger.violations.len(), ledger.failures.len()), (0, 4), "{ledger:?}");
}

#[tokio::test]
async fn a_client_that_leaves_frees_what_it_held() {
    let slow = Latency { prefill_base: Duration::from_secs(9), ..Latency::default() };
    let p = start(SimConfig { latency: slow, ..SimConfig::new(Role::Prefill) }).await;
    let body = with(ask(CHAT, "x", 1), &json!({"kv_transfer_params": {"do_remote_decode": true}}));
    let connection = send(&p, "POST", CHAT, body.to_string().as_bytes()).await;
    until("it computes", || p.running() == 1 && p.ledger().pinned_blocks == 1).await;
    drop(connection);
    until("it stopped", || p.running() == 0 && p.ledger().pinned_blocks == 0 && p.connections() == 0).await;
    assert!(p.requests()[0].closed_early && p.requests()[0].finished.is_some());
    assert_eq!(p.ledger().issued, 0);
}

#[tokio::test]
async fn a_client_that_leaves_before_the_fetch_releases() {
    let slow = Latency { transfer_per_token: Duration::from_secs(9), ..Latency::default() };
    let p = start(SimConfig::new(Role::Prefill)).await;
    let d = start(SimConfig { latency: slow, ..SimConfig::new(Role::Decode) }).await;
    for stream in [false, true] {
        let params = prefill(&p, CHAT, "x").await;
        let body = with(with(ask(CHAT, "x", 2), &handed(&params)), &json!({ "stream": stream }));
        let connection = send(&d, "POST", CHAT, body.to_string().as_bytes()).await;
        until("it fetches", || d.running() == 1).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(connection);
        until("prefill was told", || p.ledger().pinned == 0).await;
    }
    assert_eq!((p.ledger().released, p.ledger().fetched), (2, 0));
}

#[tokio::test]
async fn a_full_pool_makes_prompts_wait() {
    let p = start(SimConfig { blocks: 1, ..SimConfig::new(Role::Prefill) }).await;
    let d = start(SimConfig::new(Role::Decode)).await;
    let first = prefill(&p, CHAT, "x").await;
    let body = with(ask(CHAT, "y", 1), &json!({"kv_transfer_params": {"do_remote_decode": true}}));
    let second = send(&p, "POST", CHAT, body.to_string().as_bytes()).await;
    until("it waits", || p.waiting() == 1).await;
    let metrics = call(&p, "GET", "/metrics", b"").await.text;
    assert!(metrics.contains("vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"sim\"} 1.0"), "{metrics}");
    assert!(metrics.contains("vllm:num_requests_waiting{engine=\"0\",model_name=\"sim\"} 1.0"), "{metrics}");
    post(&d, CHAT, &with(ask(CHAT, "x", 1), &handed(&first))).await;
    let second = read(second).await.expect("an answer").json()["kv_transfer_params"].clone();
    assert_eq!((p.waiting(), second["remote_block_ids"].clone()), (0, json!([[1]])));
}

#[tokio::test]
async fn a_mortal_engine_dies_of_a_deadly_handoff() {
    let d = start(SimConfig { mortal: true, ..SimConfig::new(Role::Decode) }).await;
    let body = with(ask(CHAT, "x", 1), &json!({"kv_transfer_params": {"do_remote_prefill": true}}));
    let answer = post(&d, CHAT, &body).await;
    assert_eq!(answer.status, 500);
    assert!(answer.text.contains("EngineCore encountered an issue"));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(tokio::net::TcpStream::connect(d.addr()).await.is_err());
}

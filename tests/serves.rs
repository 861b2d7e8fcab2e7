//! Each API through both legs gives what one plain engine gives, streamed or not, and the ledger closes.

use pd_router::fleet::url::EngineUrl;
use pd_sim::{Role, Sim, SimConfig, expected};
use pd_tests::{Answer, PATHS, ask, bed, exchange, request, text_of};
use serde_json::{Value, json};

/// An answer without what differs from run to run.
fn settled(answer: &Answer) -> Vec<String> {
    let changing = ["id", "created", "created_at", "item_id", "kv_transfer_params", "request_id"];
    let mut lines = Vec::new();
    for line in answer.text().lines() {
        let (prefix, text) = line.split_at(if line.starts_with("data: ") { 6 } else { 0 });
        let Ok(mut document) = serde_json::from_str::<Value>(text) else {
            lines.push(line.to_owned());
            continue;
        };
        forget(&mut document, &changing);
        lines.push(format!("{prefix}{document}"));
    }
    lines
}

fn forget(document: &mut Value, names: &[&str]) {
    match document {
        Value::Object(map) => {
            map.retain(|name, _| !names.contains(&name.as_str()));
            map.values_mut().for_each(|value| forget(value, names));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| forget(item, names)),
        _ => {}
    }
}

#[tokio::test]
async fn both_legs_give_what_one_engine_gives() {
    let bed = bed(1, 1, |_| {}).await;
    let plain = Sim::start(SimConfig::new(Role::Plain)).await.unwrap();
    let mut handoffs = 0;
    for path in PATHS {
        for stream in [false, true] {
            let body = ask(path, "the quick brown fox", 9, stream);
            let through = bed.post(path, &body).await;
            let bytes = request("POST", path, &[], body.to_string().as_bytes());
            let direct = exchange(plain.addr(), &bytes).await;
            assert_eq!((through.status, through.whole), (200, true), "{path}: {}", through.text());
            assert_eq!(settled(&through), settled(&direct), "{path}");
            if path != "/inference/v1/generate" {
                assert_eq!(text_of(path, &through), expected(path, &body, 9), "{path}");
            }
            handoffs += 1;
        }
    }
    let ledger = bed.prefill[0].ledger();
    assert_eq!((ledger.issued, ledger.fetched, ledger.pinned), (handoffs, handoffs, 0));
    bed.clean().await;
}

#[tokio::test]
async fn what_one_handoff_cannot_serve_goes_whole_and_is_counted() {
    let bed = bed(1, 1, |_| {}).await;
    let base = |more: Value| {
        let mut body = json!({"model": "sim", "prompt": "a b c", "max_tokens": 4, "temperature": 1});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for (more, reason) in [
        (json!({"prompt": ["a", "b"]}), "several_prompts"),
        (json!({"prompt": [[1, 2], [3]]}), "several_prompts"),
        (json!({"n": 2}), "several_choices"),
        (json!({"echo": true}), "echo"),
        (json!({"prompt_logprobs": 1}), "prompt_logprobs"),
        (json!({"max_tokens": 0}), "refused"),
    ] {
        let series = format!("pd_router_whole_requests_total{{reason=\"{reason}\"}}");
        let before = bed.metric(&series);
        let answer = bed.post("/v1/completions", &base(more.clone())).await;
        let refused = reason == "refused";
        assert_eq!(answer.status, if refused { 400 } else { 200 }, "{more} {}", answer.text());
        assert_eq!(bed.metric(&series), before + 1.0, "{more}");
    }
    assert_eq!(bed.prefill[0].requests().len(), 0);
    bed.clean().await;
}

#[tokio::test]
async fn a_clients_own_handoff_reaches_no_engine() {
    let bed = bed(1, 1, |_| {}).await;
    let evil = json!({"do_remote_prefill": true, "remote_block_ids": [[1]], "remote_host": "10.0.0.9", "remote_port": 1});
    for (path, mut body) in PATHS.map(|path| (path, ask(path, "a b", 3, false))) {
        body["kv_transfer_params"] = evil.clone();
        if path == "/inference/v1/generate" {
            body["sampling_params"]["extra_args"] =
                json!({"kv_transfer_params": evil, "ec_transfer_params": 1});
        } else {
            body["vllm_xargs"] = json!({"kv_transfer_params": "x", "ec_transfer_params": "y"});
        }
        assert_eq!(bed.post(path, &body).await.status, 200, "{path}");
    }
    for recorded in bed.prefill[0].requests().iter().chain(&bed.decode[0].requests()) {
        assert!(!String::from_utf8_lossy(&recorded.body).contains("10.0.0.9"), "{}", recorded.path);
    }
    assert_eq!(bed.metric("pd_router_stripped_client_params_total"), 15.0);
    bed.clean().await;
}

#[tokio::test]
async fn a_path_of_the_users_own_is_served_like_the_shape_it_names() {
    let config =
        pd_tests::args(&["--pd-path", "/skyrl/v1/generate=generate"]).with_engines(vec![], vec![]).unwrap();
    let bed = bed(1, 1, |mine| mine.routes = config.routes).await;
    let answer = bed.post("/skyrl/v1/generate", &ask("/inference/v1/generate", "x", 2, false)).await;
    // The simulator has no such path; what counts is that both legs were shaped.
    assert_eq!(answer.status, 404);
    let sent: Value = serde_json::from_slice(&bed.prefill[0].requests()[0].body).unwrap();
    assert_eq!(sent["sampling_params"], json!({"max_tokens": 1}));
}

#[tokio::test]
async fn a_missing_handoff_sends_decode_the_clients_body_alone() {
    use pd_sim::{Fault, FaultKind, Missing};
    let bed = bed(1, 1, |_| {}).await;
    let engine = format!("engine=\"{}\"", bed.prefill[0].url());
    for (how, reason) in [
        (Missing::Absent, "absent"),
        (Missing::Null, "absent"),
        (Missing::Empty, "not_remote"),
        (Missing::NullBlocks, "no_blocks"),
        (Missing::NoPort, "no_address"),
    ] {
        bed.prefill[0].set_fault(Fault { kind: FaultKind::Missing(how), times: Some(1) });
        bed.decode[0].clear_requests();
        let body = ask("/v1/chat/completions", "hello there", 5, false);
        let answer = bed.post("/v1/chat/completions", &body).await;
        let text = text_of("/v1/chat/completions", &answer);
        assert_eq!(text, expected("/v1/chat/completions", &body, 5), "{how:?}");
        assert_eq!(bed.decode[0].requests()[0].body, body.to_string(), "{how:?}");
        assert!(
            bed.sum("pd_router_missing_handoffs_total", &[&engine, &format!("reason=\"{reason}\"")]) >= 1.0
        );
    }
    bed.prefill[0].set_fault(Fault { kind: FaultKind::TransferMode("push".into()), times: Some(1) });
    let answer = bed.post("/v1/chat/completions", &ask("/v1/chat/completions", "a", 5, false)).await;
    assert_eq!((answer.status, answer.code()), (502, "prefill_transfer_mode".into()));
    assert!(answer.text().contains("push"));
}

#[tokio::test]
async fn the_cached_tokens_are_prefills_where_that_is_wanted_and_nothing_else_changes() {
    let start = async |role, cached_tokens| {
        Sim::start(SimConfig { cached_tokens, ..SimConfig::new(role) }).await.unwrap()
    };
    let url = |sim: &Sim| vec![EngineUrl::parse(&sim.url()).unwrap()];
    for (known, wanted, expected) in [(Some(2), true, 2), (Some(2), false, 7), (None, true, 7)] {
        let (prefill, decode) = (start(Role::Prefill, known).await, start(Role::Decode, Some(7)).await);
        let bed = bed(0, 0, |config| {
            (config.prefill, config.decode) = (url(&prefill), url(&decode));
            config.dispatch.usage_from_prefill = wanted;
        })
        .await;
        for path in PATHS {
            for stream in [false, true] {
                let mut body = ask(path, "some words of a prompt", 3, stream);
                if stream && path != "/v1/messages" && path != "/v1/responses" {
                    body["stream_options"] = json!({"include_usage": true});
                }
                let got = bed.post(path, &body).await;
                assert_eq!((got.status, got.whole), (200, true), "{path} {}", got.text());
                let direct = request("POST", path, &[], body.to_string().as_bytes());
                let direct = exchange(decode.addr(), &direct).await;
                let count = |number| format!("\"cached_tokens\":{number}");
                // A simulated prefill engine that says null elsewhere says 0 to the Responses API.
                let expected = if known.is_none() && path == "/v1/responses" { 0 } else { expected };
                // The simulator's generate and messages have no such count.
                let shows = direct.text().contains(&count(7));
                assert_eq!(got.text().contains(&count(expected)), shows, "{path} {stream} {}", got.text());
                if wanted && known.is_some() {
                    assert!(!got.text().contains(&count(7)), "{path} {stream} {}", got.text());
                }
                assert_eq!(text_of(path, &got), text_of(path, &direct), "{path} {stream}");
            }
        }
    }
}

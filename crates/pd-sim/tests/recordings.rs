//! Replays recorded requests of real vLLM engines (0.32.0, two CPU engines over NIXL, model `tiny`) against
//! simulated ones and compares shapes: status, content type, member names in order, JSON types, event types.

#![allow(clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use pd_sim::{Role, Sim, SimConfig};
use serde_json::Value;
use tokio::net::TcpStream;

/// Cases whose answers the simulator does not imitate, and why.
const UNCLAIMED: [(&str, &str); 10] = [
    ("completions_batch_stream", "nothing was recorded"),
    ("completions_response_format_json", "there is no grammar: a real answer may stop early"),
    ("chat_response_format_json", "there is no grammar: a real answer may stop early"),
    ("completions_stop_string", "stop strings are not looked for"),
    ("completions_stop_stream", "stop strings are not looked for"),
    ("completions_stop_token_ids", "stop tokens are not looked for"),
    ("completions_min_tokens_stop_ids", "stop tokens are not looked for"),
    ("chat_stop", "stop strings are not looked for"),
    ("err_chat_too_long", "another tokenizer counts another length"),
    ("completions_echo_max_tokens_0", "an answer without a token is not imitated"),
];

/// Cases whose decode leg the oracle refuses though a real engine answers: one handoff for several choices or
/// for the prompt's own log-probabilities is what a router must not send.
const REFUSED_ON_DECODE: [&str; 7] = [
    "chat_n_2",
    "chat_n_2_stream",
    "completions_n_2",
    "completions_n_2_stream",
    "completions_echo",
    "completions_echo_logprobs",
    "completions_echo_stream",
];

/// Members whose insides are not compared, and why.
const OPAQUE: [(&str, &str); 4] = [
    ("logprobs", "chances of a real model; how many alternatives there are depends on it"),
    ("prompt_logprobs", "likewise"),
    ("remote_block_ids", "how many blocks depends on the tokenizer"),
    ("token_ids", "how many tokens share a chunk is not stable"),
];

struct Engines {
    prefill: Sim,
    decode: Sim,
    plain: Sim,
}

async fn engines() -> Engines {
    let start = async |role| {
        let config = SimConfig {
            model: "tiny".to_owned(),
            max_model_len: 512,
            default_max_tokens: 400,
            ..SimConfig::new(role)
        };
        Sim::start(config).await.expect("a free port")
    };
    Engines {
        prefill: start(Role::Prefill).await,
        decode: start(Role::Decode).await,
        plain: start(Role::Plain).await,
    }
}

async fn post(sim: &Sim, path: &str, body: &Value) -> (u16, String, String) {
    let io = TokioIo::new(TcpStream::connect(sim.addr()).await.expect("the sim"));
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.expect("a handshake");
    let request = Request::post(path)
        .header("host", "sim")
        .header("x-request-id", "replayed")
        .body(Full::new(Bytes::from(body.to_string())))
        .expect("a request");
    let exchange = async {
        let answer = sender.send_request(request).await.expect("an answer");
        let kind = answer.headers()["content-type"].to_str().expect("text").to_owned();
        let status = answer.status().as_u16();
        let text = answer.into_body().collect().await.expect("a whole answer").to_bytes();
        drop(sender);
        (status, kind, String::from_utf8(text.to_vec()).expect("UTF-8"))
    };
    tokio::join!(exchange, async { connection.await.ok() }).0
}

/// The shape of a document: names in order, and types. Numbers are one type.
fn shape(name: &str, value: &Value) -> String {
    let opaque = OPAQUE.iter().any(|(member, _)| *member == name);
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "bool".to_owned(),
        Value::Number(_) => "number".to_owned(),
        Value::String(_) => "string".to_owned(),
        Value::Array(_) | Value::Object(_) if opaque => "opaque".to_owned(),
        Value::Array(items) => format!("[{}]", items.first().map(|item| shape("", item)).unwrap_or_default()),
        Value::Object(members) => {
            let members: Vec<_> =
                members.iter().map(|(name, value)| format!("{name}:{}", shape(name, value))).collect();
            format!("{{{}}}", members.join(","))
        }
    }
}

/// The distinct shapes of an answer, in the order in which they first come.
fn shapes(kind: &str, text: &str) -> Vec<String> {
    let parse = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| panic!("no JSON: {text}"));
    if !kind.starts_with("text/event-stream") {
        return vec![shape("", &parse(text))];
    }
    let mut all = Vec::new();
    for event in text.split("\n\n").filter(|event| !event.is_empty()) {
        let mut lines = event.lines();
        let name = lines.clone().next().filter(|line| line.starts_with("event: ")).unwrap_or_default();
        let data = lines.find_map(|line| line.strip_prefix("data: ")).expect("a data line");
        let one = if data == "[DONE]" { data.to_owned() } else { shape("", &parse(data)) };
        let one = format!("{name} {one}");
        if !all.contains(&one) {
            all.push(one);
        }
    }
    all
}

/// The recorded request, with a live handoff in the place of the recorded one.
async fn with_live_handoff(engines: &Engines, path: &str, case: &Value, request: &Value) -> Value {
    let mut request = request.clone();
    if request.pointer("/kv_transfer_params/do_remote_prefill") != Some(&Value::Bool(true)) {
        return request;
    }
    let prefill = legs(case).find(|leg| leg["leg"] == "prefill").expect("a prefill leg")["request"].clone();
    let (_, _, text) = post(&engines.prefill, path, &prefill).await;
    let answer: Value = serde_json::from_str(&text).expect("JSON");
    request["kv_transfer_params"] = answer["kv_transfer_params"].clone();
    request
}

fn legs(case: &Value) -> impl Iterator<Item = &Value> {
    case["legs"].as_array().into_iter().flatten()
}

#[tokio::test]
async fn answers_have_the_recorded_shapes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings");
    let engines = engines().await;
    let (mut compared, mut wrong) = (0, Vec::new());
    let mut files: Vec<_> =
        fs::read_dir(folder).expect("recordings").map(|e| e.expect("a file").path()).collect();
    files.sort();
    for file in files {
        let name = file.file_stem().expect("a name").to_string_lossy().into_owned();
        if UNCLAIMED.iter().any(|(case, _)| *case == name) {
            continue;
        }
        let case: Value = serde_json::from_slice(&fs::read(&file).expect("bytes")).expect("JSON");
        let path = case["path"].as_str().expect("a path");
        // With several prompts the pair of legs was run once a prompt; only the plain answer has its request.
        let several = legs(&case).filter(|leg| leg["leg"] == "prefill").count() > 1;
        for leg in legs(&case).filter(|leg| !several || leg["leg"] == "plain") {
            let kind = leg["leg"].as_str().expect("a leg");
            if kind == "decode"
                && (REFUSED_ON_DECODE.contains(&name.as_str()) || name.contains("prompt_logprobs"))
            {
                continue;
            }
            let sim = match kind {
                "prefill" => &engines.prefill,
                "decode" => &engines.decode,
                _ => &engines.plain,
            };
            let request = with_live_handoff(&engines, path, &case, &leg["request"]).await;
            let (status, content_type, text) = post(sim, path, &request).await;
            let recorded_type = leg["headers"]["content-type"].as_str().expect("a type");
            let recorded = shapes(recorded_type, leg["body"].as_str().expect("a body"));
            let simulated = shapes(&content_type, &text);
            compared += 1;
            if (u64::from(status), content_type.as_str())
                != (leg["status"].as_u64().expect("a status"), recorded_type)
                || simulated != recorded
            {
                wrong.push(format!(
                    "{name} {kind} {status}\n  recorded  {recorded:#?}\n  simulated {simulated:#?}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {compared} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(compared > 150, "only {compared} legs were compared");
}

//! Replays recorded requests of real vLLM engines (0.32.0, two CPU engines over NIXL, model `tiny`) against
//! simulated ones and compares shapes: status, content type, member names in order, JSON types, event types.

#![allow(clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod ordered;

use std::fs;
use std::path::Path;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use ordered::Json;
use pd_sim::{Role, Sim, SimConfig};
use serde_json::Value;
use tokio::net::TcpStream;

/// Cases whose answers the simulator does not imitate, and why.
const UNCLAIMED: [(&str, &str); 3] = [
    ("completions_batch_stream", "nothing was recorded"),
    ("completions_response_format_json", "there is no grammar: a real answer may stop early"),
    ("chat_response_format_json", "there is no grammar: a real answer may stop early"),
];

/// Members whose insides are not compared, and why.
const OPAQUE: [(&str, &str); 2] = [
    ("stop_reason", "which stop is hit, if any, depends on the vocabulary: null, string or number"),
    ("bytes", "a real token may be a part of a character, and then has none"),
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

/// The shape of a document: names in order, and types; of an array, each shape among its items once.
fn shape(name: &str, value: &Json) -> String {
    if OPAQUE.iter().any(|(member, _)| *member == name) {
        return "opaque".to_owned();
    }
    // Tokens are the names of these members.
    let tokens = ["top_logprobs", "prompt_logprobs"].contains(&name);
    match value {
        Json::Null => "null".to_owned(),
        Json::Bool => "bool".to_owned(),
        Json::Int => "int".to_owned(),
        Json::Float => "float".to_owned(),
        Json::String(_) => "string".to_owned(),
        Json::Array(items) => {
            let mut shapes: Vec<_> = items.iter().map(|item| shape(name, item)).collect();
            shapes.sort();
            shapes.dedup();
            format!("[{}]", shapes.join(","))
        }
        Json::Object(members) if tokens && !members.iter().any(|(name, _)| name == "token") => {
            let mut shapes: Vec<_> = members.iter().map(|(_, value)| shape("", value)).collect();
            shapes.dedup();
            format!("{{TOKEN:{}}}", shapes.join(","))
        }
        Json::Object(members) => {
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
    assert!(compared > 200, "only {compared} legs were compared");
}

//! Every counter is exact: 208 mixed requests (good ones of each API, refused ones, errors of each leg, retries,
//! clients that leave, no room) are sent one after the other, the test counts on its own what each must add to
//! which series, and at the end every series of every family is compared: those that are not named must be 0.

use std::collections::BTreeMap;
use std::time::Duration;

use pd_router::admit::queue::Queue;
use pd_sim::{Fault, FaultKind, Missing, Sim};
use pd_tests::{Answer, Bed, PATHS, ask, bed, exchange, exposition, parse, request, until};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const CHAT: &str = "/v1/chat/completions";
const APIS: [&str; 5] = ["completions", "chat", "responses", "generate", "messages"];
const PROMPT: &str = "some words";
/// Tokens of each answer.
const TOKENS: usize = 6;
const ROUNDS: usize = 8;

/// What the test itself counted, by series as in the text format.
struct Counts {
    prefill: String,
    decode: String,
    series: BTreeMap<String, f64>,
    requests: usize,
    /// Tokens of the prompt in each API, as the first whole answer says.
    prompt: BTreeMap<&'static str, f64>,
}

impl Counts {
    fn add(&mut self, series: &str, by: f64) {
        *self.series.entry(series.to_owned()).or_default() += by;
    }

    fn one(&mut self, series: &str) {
        self.add(series, 1.0);
    }

    /// A request to this API ended.
    fn ended(&mut self, path: &str, outcome: &str, code: u16) {
        let api = api_of(path);
        let route = if ["one_hop", "unknown"].contains(&api) { api } else { path };
        self.requests += 1;
        self.one(&format!("pd_router_requests_total{{api=\"{api}\",outcome=\"{outcome}\"}}"));
        self.one(&format!("pd_router_responses_total{{code=\"{code}\"}}"));
        self.one(&format!("pd_router_request_seconds_count{{api=\"{api}\"}}"));
        self.one(&format!("vllm_router_pd_requests_total{{route=\"{route}\"}}"));
    }

    /// Its body came whole.
    fn body(&mut self, path: &str, bytes: usize) {
        let api = api_of(path);
        self.one(&format!("pd_router_request_body_bytes_count{{api=\"{api}\"}}"));
        self.add(&format!("pd_router_request_body_bytes_sum{{api=\"{api}\"}}"), bytes as f64);
    }

    /// Its body came whole, and it got a slot.
    fn taken(&mut self, path: &str, bytes: usize) {
        self.body(path, bytes);
        self.one("pd_router_queue_wait_seconds_count");
    }

    /// Bytes of an engine's answer reached the client.
    fn bytes(&mut self, path: &str, bytes: usize) {
        self.add(&format!("pd_router_response_body_bytes_total{{api=\"{}\"}}", api_of(path)), bytes as f64);
    }

    fn prompt_tokens(&mut self, path: &str) {
        let api = api_of(path);
        self.add(&format!("pd_router_prompt_tokens_total{{api=\"{api}\"}}"), self.prompt[api]);
    }

    fn generated(&mut self, path: &str, tokens: usize) {
        let series = format!("pd_router_generated_tokens_total{{api=\"{}\"}}", api_of(path));
        self.add(&series, tokens as f64);
    }

    /// A leg was sent; whether it came to an end other than by its client's.
    fn leg(&mut self, leg: &str, ended: bool) {
        let url = if leg == "prefill" { self.prefill.clone() } else { self.decode.clone() };
        self.one(&format!("pd_router_legs_total{{engine=\"{url}\",leg=\"{leg}\",role=\"{leg}\"}}"));
        self.one(&format!("vllm_router_pd_{leg}_requests_total{{worker=\"{url}\"}}"));
        self.one(&format!("vllm_router_processed_requests_total{{worker=\"{url}\"}}"));
        self.one(&format!("vllm_router_policy_decisions_total{{policy=\"round_robin\",worker=\"{url}\"}}"));
        if ended {
            self.one(&format!("pd_router_leg_answer_seconds_count{{engine=\"{url}\",role=\"{leg}\"}}"));
        }
        if ended && leg == "prefill" {
            self.one("vllm_router_pd_decode_pending_seconds_count");
        }
    }

    fn leg_failed(&mut self, leg: &str) {
        let url = if leg == "prefill" { self.prefill.clone() } else { self.decode.clone() };
        self.one(&format!("pd_router_leg_errors_total{{engine=\"{url}\",role=\"{leg}\"}}"));
        self.one(&format!("vllm_router_pd_{leg}_errors_total{{worker=\"{url}\"}}"));
    }

    fn retried(&mut self, leg: &str, reason: &str) {
        self.one(&format!("pd_router_retries_total{{leg=\"{leg}\",reason=\"{reason}\"}}"));
    }

    /// Both legs were sent, with a handoff, and both answered.
    fn handed_over(&mut self) {
        self.leg("prefill", true);
        self.leg("decode", true);
        for state in ["issued", "fetched"] {
            self.one(&format!("pd_router_handoffs_total{{state=\"{state}\"}}"));
        }
    }

    /// Decode answered, and before it prefill, if `gap`.
    fn answered(&mut self, path: &str, gap: bool) {
        let route = if api_of(path) == "one_hop" { "one_hop" } else { path };
        self.one(&format!("vllm_router_pd_request_duration_seconds_count{{route=\"{route}\"}}"));
        if gap {
            self.one("pd_router_handoff_gap_seconds_count");
        }
    }

    /// A stream brought so many tokens.
    fn streamed(&mut self, path: &str, tokens: usize) {
        let (api, decode) = (api_of(path), self.decode.clone());
        self.one(&format!("pd_router_handover_seconds_count{{engine=\"{decode}\"}}"));
        self.one(&format!("pd_router_time_to_first_token_seconds_count{{api=\"{api}\"}}"));
        let gaps = format!("pd_router_inter_token_seconds_count{{engine=\"{decode}\"}}");
        self.add(&gaps, tokens as f64 - 1.0);
        if tokens > 1 {
            self.one(&format!("pd_router_time_per_output_token_seconds_count{{api=\"{api}\"}}"));
        }
        self.generated(path, tokens);
    }

    /// A good answer came whole.
    fn served(&mut self, path: &str, answer: &Answer) {
        assert_eq!((answer.status, answer.whole), (200, true), "{path}: {}", answer.text());
        self.ended(path, "ok", 200);
        self.bytes(path, answer.body.len());
        self.one("pd_router_added_seconds_count");
    }

    /// Compares every series.
    fn compare(&self, bed: &Bed) {
        let families = exposition::read(&bed.router.observe().render());
        let mut left = self.series.clone();
        let mut wrong = Vec::new();
        for (name, family) in families.iter().filter(|(name, _)| !name.starts_with("process_")) {
            for (sample, labels, value) in &family.samples {
                let labels: Vec<String> =
                    labels.iter().map(|(label, value)| format!("{label}=\"{value}\"")).collect();
                let series = if labels.is_empty() {
                    sample.clone()
                } else {
                    format!("{sample}{{{}}}", labels.join(","))
                };
                let expected = left.remove(&series);
                // Buckets are checked against the count by the reader; sums of times are no counts.
                let time = sample.ends_with("_sum") && expected.is_none();
                if !time && !sample.ends_with("_bucket") {
                    let expected = expected.unwrap_or_else(|| still(name, &series));
                    if *value != expected {
                        wrong.push(format!("{series} is {value}, not {expected}"));
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(left.is_empty(), "no such series: {left:?}");
    }
}

/// What a series is at the end of which nothing was counted: gauges of a router at rest, and 0.
fn still(name: &str, series: &str) -> f64 {
    let one = ["pd_router_build_info", "pd_router_engine_up", "vllm_router_worker_health"].contains(&name)
        || (name == "pd_router_breaker_state" && series.contains("state=\"closed\""));
    f64::from(u8::from(one))
}

fn api_of(path: &str) -> &'static str {
    let known = PATHS.iter().position(|known| *known == path);
    known.map_or(if path == "/v1/models" { "one_hop" } else { "unknown" }, |place| APIS[place])
}

fn fault(sim: &Sim, kind: FaultKind, times: usize) {
    sim.set_fault(Fault { kind, times: Some(times) });
}

fn status(status: u16) -> FaultKind {
    FaultKind::Status { status, body: r#"{"error":{"message":"boom"}}"#.to_owned(), retry_after: None }
}

/// Sends a body that gets a slot.
async fn send(bed: &Bed, counts: &mut Counts, path: &str, body: &Value) -> Answer {
    let body = body.to_string();
    counts.taken(path, body.len());
    exchange(bed.address(), &request("POST", path, &[], body.as_bytes())).await
}

#[tokio::test]
async fn two_hundred_mixed_requests_are_counted_exactly() {
    let bed = bed(1, 1, |config| {
        config.dispatch.retry.max_retries = 1;
        config.dispatch.retry.initial_backoff = Duration::from_millis(2);
        config.queue = Queue::new(4, 0, Duration::from_secs(1));
        config.breaker.failure_threshold = 1000;
    })
    .await;
    let (prefill, decode) = (bed.prefill[0].url(), bed.decode[0].url());
    let series = BTreeMap::new();
    let mut counts = Counts { prefill, decode, series, requests: 0, prompt: BTreeMap::new() };
    counts.compare(&bed);
    for round in 0..ROUNDS {
        good(&bed, &mut counts, round).await;
        refused(&bed, &mut counts).await;
        failed(&bed, &mut counts).await;
        broken(&bed, &mut counts).await;
        left(&bed, &mut counts).await;
        until("nothing is in flight", || bed.router.observe().in_flight() == 0).await;
        bed.router.all_up().await;
    }
    assert!(counts.requests >= 200, "only {} requests", counts.requests);
    bed.closes().await;
    for (sim, role) in [(&bed.prefill[0], "prefill"), (&bed.decode[0], "decode")] {
        let (url, got) = (sim.url(), sim.requests().len());
        let series = format!("pd_router_legs_total{{engine=\"{url}\",leg=\"{role}\",role=\"{role}\"}}");
        assert_eq!(counts.series[&series], got as f64, "the engine counted otherwise");
    }
    counts.compare(&bed);
}

/// Seven that are served: whole, streams, one hop, without a handoff because of the request or of the engine.
async fn good(bed: &Bed, counts: &mut Counts, round: usize) {
    for (place, stream) in [(round, false), (round, true), (round + 1, true)] {
        let (path, api) = (PATHS[place % 5], APIS[place % 5]);
        if !counts.prompt.contains_key(api) {
            whole(bed, counts, path).await;
        }
        if stream {
            let answer = send(bed, counts, path, &ask(path, PROMPT, TOKENS, true)).await;
            counts.handed_over();
            counts.answered(path, true);
            counts.prompt_tokens(path);
            counts.streamed(path, TOKENS);
            counts.served(path, &answer);
        } else {
            whole(bed, counts, path).await;
        }
    }
    let models = exchange(bed.address(), &request("GET", "/v1/models", &[], b"")).await;
    // Engines take turns at what any of them serves.
    let (url, role) =
        if round.is_multiple_of(2) { (&counts.decode, "decode") } else { (&counts.prefill, "prefill") };
    let series = format!("pd_router_legs_total{{engine=\"{url}\",leg=\"one-hop\",role=\"{role}\"}}");
    counts.one(&series);
    counts.body("/v1/models", 0);
    counts.answered("/v1/models", false);
    counts.served("/v1/models", &models);
    // What one handoff cannot serve.
    let path = "/v1/completions";
    let mut body = ask(path, PROMPT, TOKENS, false);
    body["n"] = 2.into();
    let answer = send(bed, counts, path, &body).await;
    counts.one("pd_router_whole_requests_total{reason=\"several_choices\"}");
    counts.leg("decode", true);
    counts.answered(path, false);
    counts.prompt_tokens(path);
    counts.generated(path, 2 * TOKENS);
    counts.served(path, &answer);
    // A client that would steer engines, by its body and by a header.
    let mut body = ask(CHAT, PROMPT, TOKENS, false);
    body["kv_transfer_params"] = json!({"do_remote_prefill": true});
    let body = body.to_string();
    let steered = request("POST", CHAT, &[("x-data-parallel-rank", "3")], body.as_bytes());
    let answer = exchange(bed.address(), &steered).await;
    counts.taken(CHAT, body.len());
    counts.add("pd_router_stripped_client_params_total", 2.0);
    counts.handed_over();
    whole_answer(counts, CHAT, &answer);
    // A prefill engine that gives no handoff.
    fault(&bed.prefill[0], FaultKind::Missing(Missing::Absent), 1);
    let answer = send(bed, counts, CHAT, &ask(CHAT, PROMPT, TOKENS, false)).await;
    let engine = counts.prefill.clone();
    counts.one(&format!("pd_router_missing_handoffs_total{{engine=\"{engine}\",reason=\"absent\"}}"));
    counts.leg("prefill", true);
    counts.leg("decode", true);
    whole_answer(counts, CHAT, &answer);
}

async fn whole(bed: &Bed, counts: &mut Counts, path: &'static str) {
    let answer = send(bed, counts, path, &ask(path, PROMPT, TOKENS, false)).await;
    counts.handed_over();
    whole_answer(counts, path, &answer);
}

/// A good answer that is no stream, after a prefill leg.
fn whole_answer(counts: &mut Counts, path: &str, answer: &Answer) {
    let usage = answer.json()["usage"].clone();
    let tokens = ["prompt_tokens", "input_tokens"].iter().find_map(|name| usage[name].as_f64());
    counts.prompt.insert(api_of(path), tokens.expect("usage"));
    counts.answered(path, true);
    counts.prompt_tokens(path);
    counts.generated(path, TOKENS);
    counts.served(path, answer);
}

/// Seven that are refused as they are: by the router, and by either engine.
async fn refused(bed: &Bed, counts: &mut Counts) {
    let bad = exchange(bed.address(), &request("POST", CHAT, &[], b"{")).await;
    assert_eq!(bad.status, 400);
    counts.body(CHAT, 1);
    counts.ended(CHAT, "client_error", 400);
    for (method, path, code) in [
        ("POST", "/v1/nope", 404),
        ("GET", "/v1/nope/../x?a=1", 404),
        ("BREW", CHAT, 405),
        ("PUT", "/health", 405),
    ] {
        assert_eq!(exchange(bed.address(), &request(method, path, &[], b"")).await.status, code);
        counts.ended("unknown", "client_error", code);
    }
    for leg in ["prefill", "decode"] {
        fault(if leg == "prefill" { &bed.prefill[0] } else { &bed.decode[0] }, status(400), 1);
        let answer = send(bed, counts, CHAT, &ask(CHAT, PROMPT, TOKENS, true)).await;
        assert_eq!(answer.status, 400);
        if leg == "prefill" {
            counts.leg("prefill", true);
        } else {
            counts.handed_over();
            counts.answered(CHAT, true);
            counts.prompt_tokens(CHAT);
        }
        counts.bytes(CHAT, answer.body.len());
        counts.one("pd_router_added_seconds_count");
        counts.ended(CHAT, "client_error", 400);
    }
}

/// Three with an engine's status: 500 twice, of each leg, and one that has no room.
async fn failed(bed: &Bed, counts: &mut Counts) {
    for leg in ["prefill", "decode"] {
        fault(if leg == "prefill" { &bed.prefill[0] } else { &bed.decode[0] }, status(500), 2);
        let answer = send(bed, counts, CHAT, &ask(CHAT, PROMPT, TOKENS, true)).await;
        assert_eq!(answer.status, 500);
        for _ in 0..2 {
            if leg == "prefill" {
                counts.leg("prefill", true)
            } else {
                counts.handed_over()
            }
            counts.leg_failed(leg);
        }
        counts.retried(leg, "status");
        if leg == "decode" {
            counts.answered(CHAT, true);
            counts.prompt_tokens(CHAT);
        }
        counts.bytes(CHAT, answer.body.len());
        counts.ended(CHAT, "engine_error", 500);
    }
    fault(&bed.prefill[0], status(429), 1);
    let answer = send(bed, counts, CHAT, &ask(CHAT, PROMPT, TOKENS, true)).await;
    assert_eq!(answer.status, 429);
    counts.leg("prefill", true);
    counts.bytes(CHAT, answer.body.len());
    counts.ended(CHAT, "shed", 429);
}

/// Three streams that do not come as they should: an error first, no end mark, an engine that is gone.
async fn broken(bed: &Bed, counts: &mut Counts) {
    let decode = &bed.decode[0];
    fault(decode, FaultKind::EventStream("data: {\"error\":{}}\n\n".to_owned()), 1);
    let answer = send(bed, counts, CHAT, &ask(CHAT, PROMPT, TOKENS, true)).await;
    counts.handed_over();
    counts.leg_failed("decode");
    counts.retried("decode", "first_event");
    counts.handed_over();
    counts.answered(CHAT, true);
    counts.prompt_tokens(CHAT);
    counts.streamed(CHAT, TOKENS);
    counts.served(CHAT, &answer);

    let event = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";
    fault(decode, FaultKind::EventStream(event.to_owned()), 1);
    let answer = send(bed, counts, CHAT, &ask(CHAT, PROMPT, TOKENS, true)).await;
    assert_eq!((answer.status, answer.text()), (200, event));
    counts.handed_over();
    counts.answered(CHAT, true);
    counts.prompt_tokens(CHAT);
    counts.streamed(CHAT, 1);
    counts.bytes(CHAT, answer.body.len());
    counts.one("pd_router_added_seconds_count");
    counts.ended(CHAT, "incomplete_stream", 200);

    // The event that says who speaks, and two tokens.
    fault(decode, FaultKind::CloseAfter(3), 1);
    let answer = send(bed, counts, CHAT, &ask(CHAT, PROMPT, TOKENS, true)).await;
    assert!(answer.status == 200 && answer.text().contains("decode_broke_off"), "{}", answer.text());
    counts.handed_over();
    counts.leg_failed("decode");
    let engine = counts.decode.clone();
    counts.one(&format!("pd_router_engine_ejections_total{{engine=\"{engine}\",role=\"decode\"}}"));
    counts.answered(CHAT, true);
    counts.prompt_tokens(CHAT);
    counts.streamed(CHAT, 2);
    counts.bytes(CHAT, answer.body.len());
    counts.ended(CHAT, "engine_error", 200);
    bed.router.all_up().await;
}

/// Six: one leaves in the middle of its stream, four in prefill, and beside those a fifth finds no slot.
async fn left(bed: &Bed, counts: &mut Counts) {
    let body = ask(CHAT, PROMPT, TOKENS, true).to_string();
    let begin = async || {
        let mut connection = TcpStream::connect(bed.address()).await.unwrap();
        connection.write_all(&request("POST", CHAT, &[], body.as_bytes())).await.unwrap();
        connection
    };
    fault(&bed.decode[0], FaultKind::StallAfter(3), 1);
    let mut leaving = begin().await;
    let mut bytes = Vec::new();
    let mut answer = parse(&bytes, false);
    while answer.body.windows(2).filter(|two| two == b"\n\n").count() < 3 {
        assert!(leaving.read_buf(&mut bytes).await.unwrap() > 0, "it ends");
        answer = parse(&bytes, false);
    }
    drop(leaving);
    until("it is gone", || bed.router.observe().in_flight() == 0).await;
    counts.taken(CHAT, body.len());
    counts.handed_over();
    counts.answered(CHAT, true);
    counts.prompt_tokens(CHAT);
    counts.streamed(CHAT, 2);
    counts.bytes(CHAT, answer.body.len());
    counts.ended(CHAT, "client_closed", 200);

    let prefill = &bed.prefill[0];
    fault(prefill, FaultKind::Stall, 4);
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(begin().await);
        counts.taken(CHAT, body.len());
        counts.leg("prefill", false);
    }
    until("prefill has four", || prefill.running() == 4).await;
    assert_eq!(pd_tests::read(begin().await).await.status, 429);
    counts.body(CHAT, body.len());
    counts.ended(CHAT, "shed", 429);
    drop(held);
    (0..4).for_each(|_| counts.ended(CHAT, "client_closed", 499));
}

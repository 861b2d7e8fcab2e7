//! Traces: spans come to a collector over gRPC and over HTTP, both legs are told of them, and a request's
//! spans say where its time went; without a collector nothing changes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use pd_router::observe::otlp;
use pd_sim::{Fault, FaultKind, Recorded};
use pd_tests::{Answer, Bed, ask, bed, exchange, request};
use prost::Message;
use tokio::net::TcpListener;

const CHAT: &str = "/v1/chat/completions";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const ABOVE: &str = "b7ad6b7169203331";

/// What came to a collector.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<ExportTraceServiceRequest>>>);

impl Collector {
    fn spans(&self) -> Vec<Span> {
        let got = self.0.lock().unwrap();
        let scopes = got.iter().flat_map(|one| &one.resource_spans).flat_map(|one| &one.scope_spans);
        scopes.flat_map(|one| one.spans.clone()).collect()
    }

    fn service(&self) -> String {
        let got = self.0.lock().unwrap();
        let resource = got[0].resource_spans[0].resource.clone().unwrap();
        let name = resource.attributes.iter().find(|one| one.key == "service.name").unwrap();
        string(name.value.clone().and_then(|value| value.value))
    }
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        self.0.lock().unwrap().push(request.into_inner());
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

async fn over_http(State(collector): State<Collector>, body: Bytes) -> Vec<u8> {
    collector.0.lock().unwrap().push(ExportTraceServiceRequest::decode(body).unwrap());
    ExportTraceServiceResponse::default().encode_to_vec()
}

/// A collector that takes both.
async fn collector() -> (Collector, SocketAddr) {
    let collector = Collector::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let http =
        axum::Router::new().route("/v1/traces", axum::routing::post(over_http)).with_state(collector.clone());
    let both = tonic::service::Routes::from(http).add_service(TraceServiceServer::new(collector.clone()));
    let serve = axum::serve(listener, both.into_axum_router());
    pd_router::task::background(async move { serve.await.unwrap() });
    (collector, address)
}

fn string(value: Option<Any>) -> String {
    match value {
        Some(Any::StringValue(text)) => text,
        Some(Any::IntValue(number)) => number.to_string(),
        Some(Any::DoubleValue(number)) => number.to_string(),
        other => panic!("{other:?}"),
    }
}

fn attributes(span: &Span) -> BTreeMap<String, String> {
    let pairs = span.attributes.iter();
    pairs.map(|one| (one.key.clone(), string(one.value.clone().and_then(|value| value.value)))).collect()
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn traced(prefill: usize, endpoint: String, ratio: f64) -> Bed {
    let endpoint = endpoint.parse().unwrap();
    bed(prefill, 1, |config| config.traces = Some(otlp::Settings { endpoint, ratio })).await
}

async fn send(bed: &Bed, headers: &[(&str, &str)], stream: bool) -> Answer {
    let body = ask(CHAT, "words", 5, stream).to_string();
    exchange(bed.address(), &request("POST", CHAT, headers, body.as_bytes())).await
}

/// The header of this name that an engine got.
fn told(recorded: &[Recorded], name: &str) -> Vec<String> {
    let headers = recorded.iter().filter(|one| one.path == CHAT).flat_map(|one| one.headers.get_all(name));
    headers.map(|value| value.to_str().unwrap().to_owned()).collect()
}

/// Ends the router, which sends what is left, and gives the spans by name.
async fn ended(bed: Bed, collector: &Collector) -> BTreeMap<String, Vec<Span>> {
    bed.router.stop().await;
    let mut spans: BTreeMap<String, Vec<Span>> = BTreeMap::new();
    for span in collector.spans() {
        spans.entry(span.name.clone()).or_default().push(span);
    }
    spans
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_part_of_a_request_is_a_span_and_both_engines_are_told() {
    for path in ["", "/v1/traces"] {
        let (collector, address) = collector().await;
        let bed = traced(1, format!("http://{address}{path}"), 1.0).await;
        let parent = format!("00-{TRACE}-{ABOVE}-01");
        let headers = [("traceparent", parent.as_str()), ("tracestate", "vendor=1")];
        let answer = send(&bed, &headers, true).await;
        assert_eq!(answer.status, 200);
        let engines = [(&bed.prefill, "prefill"), (&bed.decode, "decode")]
            .map(|(sims, name)| (name, sims[0].requests(), sims[0].url()));
        let spans = ended(bed, &collector).await;
        let names: Vec<&str> = spans.keys().map(String::as_str).collect();
        assert_eq!(names, ["chat sim", "decode", "handoff", "plan", "prefill", "queue", "relay"], "{path}");
        assert!(spans.values().all(|same| same.len() == 1));
        let root = &spans["chat sim"][0];
        assert_eq!((hex(&root.trace_id), hex(&root.parent_span_id)), (TRACE.to_owned(), ABOVE.to_owned()));
        assert_eq!(root.kind(), SpanKind::Server);
        let said = attributes(root);
        for (name, value) in [
            ("gen_ai.operation.name", "chat"),
            ("gen_ai.provider.name", "vllm"),
            ("gen_ai.request.model", "sim"),
            ("http.request.method", "POST"),
            ("http.response.status_code", "200"),
            ("pd_router.outcome", "ok"),
            ("url.path", CHAT),
        ] {
            assert_eq!(said[name], value);
        }
        assert_eq!(said["pd_router.request_id"], answer.header("x-request-id").unwrap());
        assert!(said["gen_ai.latency.time_to_first_token"].parse::<f64>().unwrap() > 0.0);
        for (name, same) in spans.iter().filter(|(name, _)| *name != "chat sim") {
            assert_eq!(same[0].parent_span_id, root.span_id, "{name}");
            assert!(same[0].start_time_unix_nano >= root.start_time_unix_nano, "{name}");
            assert!(same[0].end_time_unix_nano <= root.end_time_unix_nano, "{name}");
        }
        for (name, recorded, url) in engines {
            let span = &spans[name][0];
            assert_eq!(span.kind(), SpanKind::Client);
            assert_eq!(attributes(span)["pd_router.engine"], url);
            let expected = format!("00-{TRACE}-{}-01", hex(&span.span_id));
            assert_eq!(told(&recorded, "traceparent"), [expected], "{name}");
            assert_eq!(told(&recorded, "tracestate"), ["vendor=1"], "{name}");
        }
        assert_eq!(collector.service(), "pd-router");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leg_that_failed_and_its_retry_are_two_spans() {
    let (collector, address) = collector().await;
    let bed = traced(2, address.to_string(), 1.0).await;
    let kind = FaultKind::Status { status: 503, body: "{}".to_owned(), retry_after: None };
    bed.prefill[0].set_fault(Fault { kind, times: Some(1) });
    let status = send(&bed, &[], false).await.status;
    let spans = ended(bed, &collector).await;
    let failed: Vec<bool> =
        spans["prefill"].iter().map(|span| span.status.as_ref().is_some_and(|it| it.code == 2)).collect();
    assert_eq!((status, failed), (200, vec![true, false]));
    assert_eq!(spans["plan"].len(), 2);
    let root = &spans["chat sim"][0];
    assert!(root.parent_span_id.is_empty() && root.trace_id == spans["decode"][0].trace_id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clients_choice_counts_and_else_the_ratio() {
    let (collector, address) = collector().await;
    let bed = traced(1, address.to_string(), 0.0).await;
    let not = format!("00-{TRACE}-{ABOVE}-00");
    let parent = format!("00-{TRACE}-{ABOVE}-01");
    for headers in [&[("traceparent", not.as_str())][..], &[], &[("traceparent", parent.as_str())]] {
        assert_eq!(send(&bed, headers, false).await.status, 200);
    }
    let flags: Vec<String> = told(&bed.decode[0].requests(), "traceparent");
    assert_eq!(flags.iter().map(|one| &one[53..]).collect::<Vec<_>>(), ["00", "00", "01"]);
    let spans = ended(bed, &collector).await;
    assert_eq!(spans["chat sim"].len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_ends_its_spans() {
    let (collector, address) = collector().await;
    let endpoint = address.to_string().parse().unwrap();
    let traces = otlp::Settings { endpoint, ratio: 1.0 };
    let bed = pd_tests::bed_of(1, 1, pd_tests::slow_tokens(), |config| config.traces = Some(traces)).await;
    let stream = bed.begin_stream(1000).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    drop(stream);
    bed.clean().await;
    let spans = ended(bed, &collector).await;
    assert_eq!(attributes(&spans["chat sim"][0])["pd_router.outcome"], "client_closed");
    assert_eq!(spans["decode"].len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_collector_costs_no_request_and_without_traces_nothing_is_told() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let dead = traced(1, gone.to_string(), 1.0).await;
    dead.all_good(20, "with a dead collector").await;
    dead.router.stop().await;
    let plain = bed(1, 1, |_| {}).await;
    let parent = format!("00-{TRACE}-{ABOVE}-01");
    send(&plain, &[("traceparent", &parent)], false).await;
    send(&plain, &[], false).await;
    for sims in [&plain.prefill, &plain.decode] {
        assert_eq!(told(&sims[0].requests(), "traceparent"), [parent.as_str()]);
    }
}

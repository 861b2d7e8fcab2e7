//! What one event of a stream costs: looked at, measured, relayed; and what a request's record costs.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use http::{HeaderMap, Method, Response};
use http_body_util::BodyExt;
use pd_benches::engine_at;
use pd_router::fleet::engine::Engine;
use pd_router::ids::{Leg, RequestId, Role};
use pd_router::leg::decode::{Call, decode};
use pd_router::leg::dial::tls_config;
use pd_router::leg::head::Head;
use pd_router::leg::pool::{IDLE_MAX, LegClient, Resend, Sent, Settings};
use pd_router::observe::Observe;
use pd_router::observe::meter::Events;
use pd_router::observe::record::{Outcome, Record};
use pd_router::relay::body::Relay;
use pd_router::relay::{self, relay};
use pd_router::request::api::Api;
use pd_router::request::edit::Chain;
use pd_router::sse::SseScanner;
use tokio_util::sync::CancellationToken;

const EVENT: &str = "data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"text\":\" a\",\"logprobs\":null,\"finish_reason\":null}]}\n\n";
const EVENTS: usize = 1000;

fn scan(criterion: &mut Criterion) {
    let mut scanner = SseScanner::default();
    criterion.bench_function("scan an event", |bencher| bencher.iter(|| scanner.feed(EVENT.as_bytes())));
}

fn record(criterion: &mut Criterion) {
    let observe = Arc::new(Observe::new(&["completions"]).expect("fresh families"));
    let engine = engine_at(&observe, Role::Decode, "http://10.0.0.1:8000");
    let id = RequestId::generate();
    let open = || Record::open(&observe, "completions", &id, None);
    criterion.bench_function("record a request", |bencher| {
        bencher.iter(|| {
            let mut record = open();
            record.received(200);
            let _no_trace = record.phases().begin(Leg::Decode, engine.metrics());
            record.answered(200);
            record.end(Outcome::Ok);
        });
    });
    let mut streaming = open();
    streaming.stream(engine.metrics());
    let mut data = 0;
    criterion.bench_function("record an event", |bencher| {
        bencher.iter(|| {
            data += 1;
            streaming.frame(EVENT.as_bytes(), Events { data, tokens: data, between: true }, Instant::now());
        });
    });
}

/// An engine that answers any request with a stream, as fast as it goes.
fn streaming_engine() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let address = listener.local_addr().expect("an address");
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunk = format!("{:x}\r\n{EVENT}\r\n", EVENT.len());
    let answer = format!("{head}{}0\r\n\r\n", chunk.repeat(EVENTS));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let answer = answer.clone();
            std::thread::spawn(
                move || while asked(&mut stream) && stream.write_all(answer.as_bytes()).is_ok() {},
            );
        }
    });
    address
}

/// Waits for a request, which comes in one piece.
fn asked(stream: &mut TcpStream) -> bool {
    stream.read(&mut [0; 4096]).is_ok_and(|read| read > 0)
}

async fn stream(
    client: &Arc<LegClient>,
    engine: &Arc<Engine>,
    head: &Head,
    observe: &Arc<Observe>,
) -> Response<Relay> {
    let record = Record::open(observe, "completions", &RequestId::generate(), None);
    let call = Call {
        leg: Leg::Decode,
        head,
        body: &Chain::new(),
        resend: Resend::Once,
        limit: Duration::from_secs(10),
        sent: &Sent::default(),
        phases: record.phases(),
    };
    let answer = decode(client, engine.begin(true).expect("room"), call).await.expect("an answer");
    let settings = relay::Settings {
        stream_error: Api::by_name("completions").map(|api| api.stream_error),
        first_byte_timeout: Duration::from_secs(10),
        idle_timeout: Duration::from_secs(10),
        deadline: None,
        cut: CancellationToken::new(),
    };
    relay(answer, record, &Method::POST, settings, None)
}

fn relay_frames(criterion: &mut Criterion) {
    let observe = Arc::new(Observe::new(&["completions"]).expect("fresh families"));
    let engine = engine_at(&observe, Role::Decode, &format!("http://{}", streaming_engine()));
    let tls = tls_config(None).expect("the system's certificates");
    let client =
        LegClient::new(Settings { connect_timeout: Duration::from_secs(5), idle_max: IDLE_MAX, tls });
    let uri = "/v1/completions".parse().expect("a path");
    let head = Head::new(Method::POST, &uri, HeaderMap::new(), &RequestId::generate());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut group = criterion.benchmark_group("relay, engine's connection included");
    group.throughput(Throughput::Elements(EVENTS as u64));
    group.bench_function("1,000 events", |bencher| {
        bencher.iter(|| {
            runtime.block_on(async {
                let mut body = stream(&client, &engine, &head, &observe).await.into_body();
                let mut bytes = 0;
                while let Some(frame) = body.frame().await {
                    bytes += frame.expect("no end before the end").into_data().map_or(0, |data| data.len());
                }
                assert_eq!(bytes, EVENTS * EVENT.len());
            });
        });
    });
    group.finish();
}

criterion_group!(benches, scan, record, relay_frames);
criterion_main!(benches);

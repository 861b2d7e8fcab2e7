//! A body's one scan, and the bodies of both legs made of it.

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use pd_benches::{completion, generate, handoff, route};
use pd_router::handoff::{decode_body, prefill_body};
use pd_router::request::view::View;

fn bodies(criterion: &mut Criterion) {
    let handoff = handoff();
    let works = [
        ("1 KiB of text", "completions", completion(1024)),
        ("100 KiB of token ids", "generate", generate(16 * 1024, 0)),
        ("4 MiB of text", "completions", completion(4 * 1024 * 1024)),
    ];
    for (name, api, body) in works {
        let route = route(api);
        let body = Bytes::from(body);
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_function("scan", |bencher| bencher.iter(|| View::read(&route, body.clone())));
        let view = View::read(&route, body.clone()).expect("a body");
        group.bench_function("prefill body", |bencher| bencher.iter(|| prefill_body(route.api, &view)));
        group.bench_function("decode body", |bencher| {
            bencher.iter(|| decode_body(route.api, &view, Some(&handoff)));
        });
        group.finish();
    }
}

criterion_group!(benches, bodies);
criterion_main!(benches);

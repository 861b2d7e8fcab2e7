//! Choosing by prefix: hashing a prompt, ranking 16 engines, remembering the choice. Before criterion's mean
//! it prints p50 and p99 over single selections, which is what a request pays.

use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use pd_benches::{ask_of, pool, text, token_ids};
use pd_router::fleet::candidate::Candidate;
use pd_router::plan::cache_aware::{CacheAware, Settings};
use pd_router::plan::policy::Policy;
use pd_router::request::view::View;

const ENGINES: usize = 16;
const TOKENS: usize = 32 * 1024;
/// How many prompts and selections: few where `--test` only asks whether it runs.
fn sizes() -> (usize, usize) {
    if std::env::args().any(|word| word == "--test") { (2, 10) } else { (64, 20_000) }
}

fn select(policy: &CacheAware, api: &str, view: &View, pool: &[&Candidate]) -> usize {
    let now = Instant::now();
    let ask = ask_of(api, view);
    let order = policy.rank(&ask, pool, now);
    policy.took(&ask, pool[order[0]], now);
    order[0]
}

fn quantiles(name: &str, mut one: impl FnMut(usize)) {
    let mut took: Vec<Duration> = (0..sizes().1)
        .map(|number| {
            let started = Instant::now();
            one(number);
            started.elapsed()
        })
        .collect();
    took.sort_unstable();
    let at = |share: usize| took[took.len() * share / 1000].as_nanos() as f64 / 1000.0;
    println!("{name}: p50 {:.1} µs, p99 {:.1} µs, p99.9 {:.1} µs", at(500), at(990), at(999));
}

fn selection(criterion: &mut Criterion) {
    let candidates = pool(ENGINES);
    let pool: Vec<&Candidate> = candidates.iter().collect();
    let prompts = sizes().0;
    for (api, make) in [("generate", token_ids as fn(usize, usize) -> View), ("completions", text)] {
        let views: Vec<View> = (0..prompts).map(|seed| make(TOKENS, seed)).collect();
        let policy = CacheAware::new(Settings::default());
        let name = format!("{api}, 32k tokens, {} KiB", views[0].bytes().len() / 1024);
        quantiles(&name, |number| {
            select(&policy, api, &views[number % prompts], &pool);
        });
        let mut number = 0;
        criterion.bench_function(&name, |bencher| {
            bencher.iter(|| {
                number += 1;
                select(&policy, api, &views[number % prompts], &pool)
            });
        });
    }
}

criterion_group!(benches, selection);
criterion_main!(benches);

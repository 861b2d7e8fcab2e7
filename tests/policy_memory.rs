//! cache_aware keeps its bound, measured as the resident memory of the process. The long form, one million
//! prompts of 8k tokens: `cargo test --release -p pd-tests --test policy_memory -- --ignored --nocapture`.

use std::time::Instant;

use pd_router::fleet::candidate::Candidate;
use pd_router::fleet::engine::{Engine, Settings as EngineSettings};
use pd_router::fleet::url::EngineUrl;
use pd_router::ids::Role;
use pd_router::observe::Observe;
use pd_router::plan::ask::Ask;
use pd_router::plan::cache_aware::{CacheAware, Settings};
use pd_router::plan::policy::Policy;
use pd_router::plan::prefix::Prefix;

const MIB: usize = 1024 * 1024;

fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    line.trim().trim_end_matches(" kB").trim().parse::<usize>().expect("a number") * 1024
}

/// Sends distinct prompts of 8k tokens, 32 KiB of text each; returns by how much the process grew.
fn grown(prompts: u64, settings: Settings) -> usize {
    let observe = Observe::new(&[]).expect("fresh families");
    let engine = |number| {
        let url = EngineUrl::parse(&format!("http://10.0.0.{number}:1")).expect("a URL");
        let metrics = observe.engines().engine(Role::Prefill, url.as_str());
        Engine::new(Role::Prefill, url, metrics, EngineSettings::default())
    };
    let engines: Vec<_> = (0..16).map(engine).collect();
    let candidates: Vec<Candidate> = engines.iter().flat_map(Engine::candidates).collect();
    let pool: Vec<&Candidate> = candidates.iter().collect();
    let text = vec![b'x'; 32 * 1024];
    let before = resident();
    let policy = CacheAware::new(settings);
    let mut most = before;
    for number in 0..prompts {
        // Every hash of a chain follows from its seed, so that all blocks of all prompts differ.
        let prefix = Prefix::of(&[&number.to_le_bytes()], &[&text]);
        let ask = Ask { session: None, one_off: false, prefix, tokens: 8192 };
        let now = Instant::now();
        let order = policy.rank(&ask, &pool, now);
        policy.took(&ask, pool[order[0]], now);
        if number % 1024 == 0 {
            most = most.max(resident());
        }
    }
    most.max(resident()) - before
}

#[test]
fn a_burst_of_distinct_prompts_stays_within_the_bound() {
    let settings = Settings { bytes_max: 4 * MIB, ..Settings::default() };
    let grown = grown(5_000, settings);
    assert!(grown < (4 + 8) * MIB, "grew by {} KiB", grown / 1024);
    assert!(grown > MIB, "nothing was remembered");
}

#[test]
#[ignore = "a minute in release"]
fn a_million_prompts_of_8k_tokens_stay_within_the_bound() {
    let settings = Settings::default();
    let grown = grown(1_000_000, settings);
    println!("grew by {} KiB; the bound is {} KiB", grown / 1024, settings.bytes_max / 1024);
    assert!(grown < settings.bytes_max + 100 * MIB, "grew by {} KiB", grown / 1024);
}

//! What the simulation has to show of the policies, with fewer requests than the guide's table.

use std::time::Duration;

use pd_policy_sim::report;
use pd_policy_sim::run::run;
use pd_policy_sim::stats::Stats;
use pd_policy_sim::suite::{self, pair};
use pd_policy_sim::workload::{HOT_SESSION, LONG, LONG_HOT, NO_SHARE, SHARED, Workload};
use pd_router::ids::Role;
use pd_router::plan::name::PolicyName;

const REQUESTS: usize = 2000;
const SEED: u64 = 1;

/// How policies of one pool do.
#[allow(clippy::expect_used, reason = "that is how a test fails")]
fn stats(pool: Role, workload: Workload, policies: &[PolicyName]) -> Vec<Stats> {
    let trace = suite::trace(workload, REQUESTS, SEED).expect("a trace");
    policies.iter().map(|policy| run(&trace, pair(pool, *policy), SEED).expect("a run")).collect()
}

fn times(time: Duration, of: Duration) -> f64 {
    time.as_secs_f64() / of.as_secs_f64()
}

#[test]
fn a_run_is_the_same_each_time() {
    let table = |seed| {
        let trace = suite::trace(SHARED, 500, seed).unwrap();
        suite::policies()
            .into_iter()
            .map(|policy| run(&trace, pair(Role::Prefill, policy), seed).unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(table(1), table(1));
    assert_ne!(table(1), table(2));
}

#[test]
fn policies_that_see_load_are_no_worse_than_random() {
    use PolicyName::{LeastLoaded, PowerOfTwo, Random};
    for (pool, workload) in
        [(Role::Prefill, SHARED), (Role::Prefill, NO_SHARE), (Role::Decode, SHARED), (Role::Decode, LONG)]
    {
        let all = stats(pool, workload, &[Random, PowerOfTwo, LeastLoaded]);
        for seeing in &all[1..] {
            assert!(seeing.ttft_p99 <= all[0].ttft_p99, "{pool} {}: {all:?}", workload.name);
            assert!(seeing.tpot_p99 <= all[0].tpot_p99.mul_f64(1.01), "{pool} {}: {all:?}", workload.name);
        }
    }
}

#[test]
fn consistent_hash_stays_near_the_balanced_p99_behind_a_saturated_engine() {
    use PolicyName::{ConsistentHash, RoundRobin};
    for (pool, balanced, hot) in [(Role::Prefill, NO_SHARE, HOT_SESSION), (Role::Decode, LONG, LONG_HOT)] {
        let hot = stats(pool, hot, &[ConsistentHash])[0];
        // A session of 40 % of the requests would be 1.6 times a fair share of four; it has its engine full.
        let spread = if pool == Role::Prefill { hot.prefill_spread } else { hot.decode_spread };
        assert!(spread > 1.2, "no engine is saturated: {hot:?}");
        let balanced = stats(pool, balanced, &[ConsistentHash, RoundRobin]);
        for balanced in balanced {
            assert!(times(hot.ttft_p99, balanced.ttft_p99) < 1.5, "{pool}: {hot:?} {balanced:?}");
        }
    }
}

#[test]
fn consistent_hash_keeps_prefixes_where_they_are() {
    let all = stats(Role::Prefill, SHARED, &[PolicyName::RoundRobin, PolicyName::ConsistentHash]);
    assert!(all[1].hit_rate > all[0].hit_rate + 0.15, "{all:?}");
    assert!(all[1].ttft_p50 < all[0].ttft_p50, "{all:?}");
}

#[test]
fn cache_aware_wins_where_prefixes_are_shared_and_loses_nothing_where_not() {
    let Some(cache_aware) = PolicyName::by_name("cache_aware") else { return };
    let both = [PolicyName::RoundRobin, cache_aware];
    let shared = stats(Role::Prefill, SHARED, &both);
    assert!(times(shared[0].ttft_p50, shared[1].ttft_p50) >= 2.0, "{shared:?}");
    let apart = stats(Role::Prefill, NO_SHARE, &both);
    assert!(times(apart[1].ttft_p50, apart[0].ttft_p50) < 1.05, "{apart:?}");
    assert!(times(apart[1].ttft_p99, apart[0].ttft_p99) < 1.05, "{apart:?}");
}

#[test]
fn the_guide_has_every_policy_and_a_place_for_the_table() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/policies.md");
    let page = std::fs::read_to_string(page).unwrap();
    for (name, _) in PolicyName::NAMES {
        assert!(page.contains(&format!("`{name}`")), "{name} is not in the guide");
    }
    let table = page.split_once(report::BEGIN).unwrap().1.split_once(report::END).unwrap().0;
    for workload in suite::PREFILL.iter().chain(suite::DECODE) {
        assert!(table.contains(&format!("| {} |", workload.name)), "{} is not in the table", workload.name);
    }
}

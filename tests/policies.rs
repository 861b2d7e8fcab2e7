//! Who gets which request: what every policy promises, on fleets without sockets and through the router.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pd_router::fleet::breaker::{self, Verdict};
use pd_router::fleet::candidate::Candidate;
use pd_router::fleet::engine::{Engine, Settings as EngineSettings};
use pd_router::fleet::url::EngineUrl;
use pd_router::fleet::{Fleet, Snapshot, health};
use pd_router::ids::Role;
use pd_router::observe::Observe;
use pd_router::plan::ask::{Ask, session_key};
use pd_router::plan::load::load;
use pd_router::plan::name::PolicyName;
use pd_router::plan::policy::Policy;
use pd_router::plan::{Planner, Settings};
use pd_tests::{ask, bed, request};
use proptest::prelude::*;

const CHAT: &str = "/v1/chat/completions";
const HEALTH: health::Settings = health::Settings { failure_threshold: 1, success_threshold: 1 };
const BREAKER: breaker::Settings = breaker::Settings {
    failure_threshold: 1,
    success_threshold: 1,
    open_for: Duration::from_secs(600),
    window: Duration::from_secs(600),
};

/// Engines of one role that are up, and the registry that they count in.
fn engines(role: Role, numbers: impl IntoIterator<Item = usize>) -> Vec<Arc<Engine>> {
    let observe = Observe::new(&[]).unwrap();
    let make = |number: usize| {
        let url = EngineUrl::parse(&format!("http://10.0.0.{number}:8000")).unwrap();
        let metrics = observe.engines().engine(role, url.as_str());
        let settings = EngineSettings { breaker: BREAKER, ..EngineSettings::default() };
        let engine = Engine::new(role, url, metrics, settings);
        engine.probed(true, false, HEALTH);
        engine
    };
    numbers.into_iter().map(make).collect()
}

fn candidates(engines: &[Arc<Engine>]) -> Vec<Candidate> {
    engines.iter().flat_map(Engine::candidates).collect()
}

fn of_session(name: &str) -> Ask {
    Ask { session: Some(session_key(name.as_bytes())), ..Ask::default() }
}

fn make(name: PolicyName) -> Box<dyn Policy> {
    name.make(&Settings::default())
}

/// Where a policy sends each of 10,000 sessions.
fn homes(policy: &dyn Policy, pool: &[Candidate]) -> Vec<u64> {
    let pool: Vec<&Candidate> = pool.iter().collect();
    let home = |number: usize| {
        let order = policy.rank(&of_session(&format!("session-{number}")), &pool, Instant::now());
        pool[order[0]].key()
    };
    (0..10_000).map(home).collect()
}

proptest! {
    #[test]
    fn no_policy_names_an_engine_that_cannot_serve(
        states in prop::collection::vec(0..3_u8, 1..12),
        which in 0..PolicyName::NAMES.len(),
        session in prop::option::of(any::<u64>()),
    ) {
        let (name, policy) = PolicyName::NAMES[which];
        let decode = engines(Role::Decode, 1..=states.len());
        for (engine, state) in decode.iter().zip(&states) {
            match state {
                0 => {}
                1 => engine.eject("test"),
                _ => engine.begin(false).unwrap().say(Verdict::Failure),
            }
        }
        let settings = Settings { prefill: policy, decode: policy, ..Settings::default() };
        let planner = Planner::new(&settings);
        let fleet = Fleet::new(Snapshot::new(engines(Role::Prefill, [100]), decode));
        let plan = planner.plan(&Ask { session, ..Ask::default() }, None, &fleet, &[]);
        let Ok(plan) = plan else {
            prop_assert!(states.iter().all(|state| *state == 1), "{name}: {states:?}");
            return Ok(());
        };
        prop_assert!(!plan.decode.is_empty());
        let closed = states.contains(&0);
        for one in &plan.decode {
            prop_assert!(one.engine().up(), "{name} named one that is down");
            let open = one.engine().breaker().state(Instant::now()) == breaker::State::Open;
            prop_assert!(!(open && closed), "{name} named one with an open breaker");
        }
        let mut ids: Vec<_> = plan.decode.iter().map(|one| one.engine().id()).collect();
        ids.sort_unstable();
        ids.dedup();
        prop_assert_eq!(ids.len(), plan.decode.len(), "{} named one twice", name);
    }

    #[test]
    fn power_of_two_takes_the_less_loaded_of_its_two(loads in prop::collection::vec(0..50_u64, 2..10)) {
        let pool = candidates(&engines(Role::Decode, 1..=loads.len()));
        let held: Vec<_> =
            pool.iter().zip(&loads).flat_map(|(one, load)| (0..*load).map(|_| one.load(1))).collect();
        let refs: Vec<&Candidate> = pool.iter().collect();
        for _ in 0..20 {
            let order = make(PolicyName::PowerOfTwo).rank(&Ask::default(), &refs, Instant::now());
            prop_assert!(load(refs[order[0]]) <= load(refs[order[1]]));
        }
        drop(held);
    }
}

#[test]
fn a_changed_fleet_moves_few_sessions() {
    let policy = make(PolicyName::ConsistentHash);
    let sixteen = homes(policy.as_ref(), &candidates(&engines(Role::Decode, 1..=16)));
    for (what, other) in [("one less", 1..=15), ("one more", 1..=17)] {
        let other = homes(policy.as_ref(), &candidates(&engines(Role::Decode, other)));
        let moved = sixteen.iter().zip(&other).filter(|(a, b)| a != b).count();
        assert!((1..1250).contains(&moved), "{what}: {moved} of 10,000 moved");
    }
}

#[test]
fn two_routers_agree_on_every_session_whatever_the_order_of_their_flags() {
    let ours = homes(make(PolicyName::ConsistentHash).as_ref(), &candidates(&engines(Role::Decode, 1..=16)));
    let theirs = homes(
        make(PolicyName::by_name("rendezvous_hash").unwrap()).as_ref(),
        &candidates(&engines(Role::Decode, (1..=16).rev())),
    );
    assert_eq!(ours, theirs);
}

#[test]
fn sessions_spread_evenly() {
    let mut counts: HashMap<u64, i32> = HashMap::new();
    let policy = make(PolicyName::ConsistentHash);
    for home in homes(policy.as_ref(), &candidates(&engines(Role::Decode, 1..=16))) {
        *counts.entry(home).or_default() += 1;
    }
    assert_eq!(counts.len(), 16);
    assert!(counts.values().all(|count| (532..=718).contains(count)), "within 15 % of 625: {counts:?}");
}

#[test]
fn a_saturated_engine_passes_its_sessions_on_to_their_next_choice() {
    let pool = candidates(&engines(Role::Decode, 1..=4));
    let refs: Vec<&Candidate> = pool.iter().collect();
    let policy = make(PolicyName::ConsistentHash);
    let ask = of_session("hot");
    let before = policy.rank(&ask, &refs, Instant::now());
    let held: Vec<_> = (0..20).map(|_| refs[before[0]].load(1)).collect();
    let busy = policy.rank(&ask, &refs, Instant::now());
    assert_eq!((busy[0], busy[3]), (before[1], before[0]));
    drop(held);
    assert_eq!(policy.rank(&ask, &refs, Instant::now()), before);
}

#[test]
fn least_loaded_takes_turns_among_equals() {
    let pool = candidates(&engines(Role::Prefill, 1..=3));
    let refs: Vec<&Candidate> = pool.iter().collect();
    let policy = make(PolicyName::LeastLoaded);
    let first = |_| policy.rank(&Ask::default(), &refs, Instant::now())[0];
    let firsts: Vec<usize> = (0..6).map(first).collect();
    assert_eq!(firsts, [0, 1, 2, 0, 1, 2]);
    // Prefill is weighed by the length of prompts, not by their number.
    let (_long, _short) = (refs[0].load(10_000), [refs[1].load(10), refs[1].load(10)]);
    let _middle = refs[2].load(500);
    let order = policy.rank(&Ask::default(), &refs, Instant::now());
    assert_eq!(order.as_slice(), [1, 2, 0]);
}

#[test]
fn sticky_sessions_stay_spread_and_end() {
    let policy = make(PolicyName::StickyLeastLoaded);
    let pool = candidates(&engines(Role::Decode, 1..=3));
    let refs: Vec<&Candidate> = pool.iter().collect();
    let now = Instant::now();
    let send = |name: &str, at| {
        let ask = of_session(name);
        let first = policy.rank(&ask, &refs, at)[0];
        policy.took(&ask, refs[first], at);
        first
    };
    let homes: Vec<usize> = (0..9).map(|number| send(&format!("s{number}"), now)).collect();
    assert!((0..3).all(|engine| homes.iter().filter(|home| **home == engine).count() == 3), "{homes:?}");
    // Load does not move a session, a missing engine does.
    let held: Vec<_> = (0..50).map(|_| refs[homes[0]].load(1)).collect();
    assert_eq!(send("s0", now), homes[0]);
    drop(held);
    let others: Vec<&Candidate> =
        refs.iter().copied().filter(|one| one.key() != refs[homes[0]].key()).collect();
    assert_eq!(policy.rank(&of_session("s0"), &others, now).len(), 2);
    // Finished sessions make room on their engine for new ones.
    for number in (0..9).filter(|number| homes[*number] == 1) {
        policy.finish(session_key(format!("s{number}").as_bytes()));
    }
    assert_eq!([send("n0", now), send("n1", now), send("n2", now)], [1, 1, 1]);
    // One that was away has the fewest sessions, and gets no more of the new ones than it can serve.
    for number in 0..60 {
        let ask = of_session(&format!("away{number}"));
        policy.took(&ask, refs[1 + number % 2], now);
    }
    let mut busy: Vec<_> = Vec::new();
    let mut back = 0;
    for number in 0..60 {
        let engine = send(&format!("back{number}"), now);
        back += usize::from(engine == 0);
        busy.push(refs[engine].load(1));
    }
    assert!(back < 40, "{back} of 60 went to the one that came back");
    drop(busy);
    // A request's own id is no session: it goes by load, and nothing is remembered.
    let one_off = Ask { one_off: true, ..of_session("id") };
    let _held = refs[1].load(1);
    policy.took(&one_off, refs[1], now);
    assert_ne!(policy.rank(&one_off, &refs, now)[0], 1);
    // Idle for too long, all are forgotten: a new spread from nothing.
    let later = now + Duration::from_secs(7201);
    policy.tidy(later);
    let mut fresh = [send("s0", later), send("s1", later), send("s2", later)];
    fresh.sort_unstable();
    assert_eq!(fresh, [0, 1, 2]);
}

async fn in_session(bed: &pd_tests::Bed, session: &str) {
    let body = ask(CHAT, &format!("a turn of {session}"), 2, false).to_string();
    let bytes = request("POST", CHAT, &[("x-session-id", session)], body.as_bytes());
    assert_eq!(pd_tests::exchange(bed.address(), &bytes).await.status, 200);
}

#[tokio::test]
async fn a_session_keeps_its_engines_and_can_be_finished() {
    let bed = bed(2, 2, |config| {
        config.plan.prefill = PolicyName::StickyLeastLoaded;
        config.plan.decode = PolicyName::StickyLeastLoaded;
    })
    .await;
    for _ in 0..5 {
        in_session(&bed, "a").await;
        in_session(&bed, "b").await;
    }
    for sim in bed.prefill.iter().chain(&bed.decode) {
        assert_eq!(sim.requests().len(), 5, "each session has its engine");
    }
    let address = bed.address();
    let finish = async |query: &str| {
        let bytes = request("POST", &format!("/finish_session{query}"), &[], b"");
        pd_tests::exchange(address, &bytes).await
    };
    let answer = finish("?session_id=a").await;
    assert_eq!((answer.status, answer.text()), (200, r#"{"status":"ok","session_id":"a"}"#));
    let answer = finish("").await;
    assert_eq!((answer.status, answer.code()), (400, "query_parameter_missing".into()));
}

#[tokio::test]
async fn ranks_are_candidates_of_their_own() {
    let bed = bed(1, 1, |config| config.probe.ranks = 3).await;
    bed.all_good(9, "three ranks").await;
    let prefill = &bed.prefill[0];
    let mut counts = HashMap::new();
    for seen in prefill.requests() {
        *counts
            .entry(seen.headers.get("x-data-parallel-rank").map(|rank| rank.to_str().unwrap().to_owned()))
            .or_insert(0) += 1;
    }
    let expected: HashMap<_, _> = ["0", "1", "2"].map(|rank| (Some(rank.to_owned()), 3)).into();
    assert_eq!(counts, expected);
}

#[tokio::test]
async fn short_prompts_skip_prefill_where_asked_to() {
    let bed = bed(1, 1, |config| config.plan.min_prefill_tokens = 50).await;
    let path = "/v1/completions";
    let short = serde_json::json!({"model": "sim", "prompt": [1, 2, 3], "max_tokens": 2});
    let long = serde_json::json!({"model": "sim", "prompt": (0..50).collect::<Vec<u32>>(), "max_tokens": 2});
    assert_eq!(bed.post(path, &short).await.status, 200);
    assert_eq!(bed.prefill[0].requests().len(), 0);
    assert_eq!(bed.metric("pd_router_whole_requests_total{reason=\"short_prompt\"}"), 1.0);
    assert_eq!(bed.post(path, &long).await.status, 200);
    assert_eq!(bed.prefill[0].requests().len(), 1);
    bed.closes().await;
}

#[tokio::test]
async fn the_requests_of_a_new_session_keep_together_from_the_first() {
    let latency = pd_sim::Latency { prefill_base: Duration::from_millis(300), ..Default::default() };
    let bed = pd_tests::bed_of(2, 4, latency, |config| {
        config.plan.prefill = PolicyName::StickyLeastLoaded;
        config.plan.decode = PolicyName::StickyLeastLoaded;
    })
    .await;
    let four = async {
        tokio::join!(
            in_session(&bed, "new"),
            in_session(&bed, "new"),
            in_session(&bed, "new"),
            in_session(&bed, "new")
        )
    };
    four.await;
    let busy = |sims: &[pd_sim::Sim]| sims.iter().filter(|sim| !sim.requests().is_empty()).count();
    assert_eq!((busy(&bed.prefill), busy(&bed.decode)), (1, 1));
}

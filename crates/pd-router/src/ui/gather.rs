//! The state as it is now, from the fleet and from what is measured.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::state::{
    ByBlame, Ended, Engine, Failure, Finding, Level, Points, Pool, Requests, State, Time, Times,
};
use crate::admin::Admin;
use crate::fleet::Snapshot;
use crate::fleet::breaker;
use crate::fleet::engine::Engine as Known;
use crate::ids::Role;
use crate::observe::failures::Alike;
use crate::observe::history::{History, LOOK_INTERVAL, Minute, Point};
use crate::observe::spread::Spread;

/// Points of which the rates of now are the mean: ten seconds.
const NOW_POINTS: usize = 5;

/// Findings that are told one by one.
const FINDINGS_MAX: usize = 16;

/// The state now.
pub(super) fn state(admin: &Admin) -> State {
    let (fleet, observe) = (admin.fleet.snapshot(), &admin.observe);
    observe.refresh();
    let (minute, points, pools) = observe.with_history(|history| {
        let pools = admin.fleet.pools().roles().iter().map(|role| pool(*role, &fleet, history));
        (history.minute(), history.points(), pools.collect::<Vec<_>>())
    });
    let mut requests = requests(&minute, &points);
    (requests.in_flight, requests.waiting) = (observe.in_flight(), observe.queue_depth.get());
    let mut findings = findings(admin, &fleet, &pools, &requests);
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    let more = findings.len().saturating_sub(FINDINGS_MAX);
    let level = findings.first().map_or(Level::Ok, |worst| worst.level);
    if more > 0 {
        findings.truncate(FINDINGS_MAX);
        findings.push(Finding { level: Level::Degraded, text: format!("and {more} more") });
    }
    State {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        now: unix(SystemTime::now()),
        level,
        findings,
        requests,
        times: times(&minute),
        pools,
        history: history(&points),
        failures: observe.failures().latest().into_iter().map(failure).collect(),
    }
}

fn findings(admin: &Admin, fleet: &Snapshot, pools: &[Pool], requests: &Requests) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |level, text| findings.push(Finding { level, text });
    if admin.draining.is_cancelled() {
        find(Level::Down, "the router is about to end: it takes no new requests".to_owned());
    }
    for role in admin.fleet.pools().roles() {
        if !fleet.can_serve(*role) {
            find(Level::Down, format!("no {role} engine is up"));
        }
    }
    for (role, engine) in pools.iter().flat_map(|pool| pool.engines.iter().map(|one| (&pool.role, one))) {
        let (url, state) = (&engine.url, engine.state.as_str());
        match state {
            "up" => {}
            "slow" => find(Level::Degraded, format!("{role} engine {url} answers probes too slowly")),
            "unknown" => find(Level::Degraded, format!("{role} engine {url} has not answered a probe yet")),
            _ => find(Level::Degraded, format!("{role} engine {url} is {state}")),
        }
        if engine.breaker != breaker::State::Closed.as_str() {
            let shown = engine.breaker.replace('_', "-");
            find(Level::Degraded, format!("{role} engine {url} keeps failing: its breaker is {shown}"));
        }
        if engine.pairs_open > 0 {
            let pairs = engine.pairs_open;
            find(
                Level::Degraded,
                format!("{role} engine {url} fails the handoffs of {pairs} prefill engine(s)"),
            );
        }
    }
    if admin.fleet.mixed_versions() {
        let text = "engines of different vLLM versions: only those of one version are paired";
        find(Level::Degraded, text.to_owned());
    }
    let (ended, by) = (&requests.ended, &requests.failed);
    let all = ended.ok
        + ended.client_closed
        + ended.client_error
        + ended.engine_error
        + ended.router_error
        + ended.shed
        + ended.incomplete_stream;
    let ago = format!("of {all} requests in the last {:.0} s", requests.minute_seconds);
    if by.engine > 0 {
        find(Level::Degraded, format!("{} {ago} failed by an engine's fault", by.engine));
    }
    if by.router > 0 {
        find(Level::Degraded, format!("{} {ago} had no room in the router", by.router));
    }
    findings
}

fn pool(role: Role, fleet: &Snapshot, history: &History) -> Pool {
    let engines = fleet.pool(role).iter().map(|known| {
        let mut engine = engine(known);
        let minute = history.engine(known.metrics());
        (engine.legs, engine.errors) = (minute.legs, minute.errors);
        (engine.answer, engine.inter_token) = (time(&minute.answer), time(&minute.inter_token));
        let ranks = fleet.candidates(role).iter().filter(|one| one.engine().id() == known.id());
        for rank in ranks {
            engine.load_requests += rank.requests();
            engine.load_tokens += rank.tokens();
            engine.ranks += 1;
        }
        engine
    });
    Pool { role: role.as_str().to_owned(), up: fleet.up(role), engines: engines.collect() }
}

fn engine(known: &Known) -> Engine {
    let now = Instant::now();
    let state = match (known.up(), known.slow(), known.resting().rests()) {
        (true, _, true) => known.resting().now().as_str(),
        (false, true, _) => "slow",
        (true, _, false) | (false, false, _) => known.health().as_str(),
    };
    Engine {
        url: known.url().as_str().to_owned(),
        state: state.to_owned(),
        breaker: known.breaker().state(now).as_str().to_owned(),
        pairs_open: known.pairs_open(now),
        in_flight: known.metrics().in_flight.get(),
        load_requests: 0,
        load_tokens: 0,
        ranks: 0,
        vllm: known.version().map(|version| version.to_string()),
        legs: 0,
        errors: 0,
        answer: Time::default(),
        inter_token: Time::default(),
    }
}

fn requests(minute: &Minute, points: &[Point]) -> Requests {
    let [ok, client_closed, client_error, engine_error, router_error, shed, incomplete_stream] = minute.ended;
    let [client, engine, router] = minute.blamed;
    let now = points.get(points.len().saturating_sub(NOW_POINTS)..).unwrap_or_default();
    #[allow(clippy::cast_precision_loss, reason = "there are five")]
    let mean = |of: fn(&Point) -> f64| round(now.iter().map(of).sum::<f64>() / now.len().max(1) as f64);
    Requests {
        in_flight: 0,
        waiting: 0,
        per_second: mean(|point| point.requests),
        failed_per_second: mean(|point| point.failed),
        tokens_per_second: mean(|point| point.tokens),
        minute_seconds: round(minute.seconds),
        ended: Ended { ok, client_closed, client_error, engine_error, router_error, shed, incomplete_stream },
        failed: ByBlame { client, engine, router },
    }
}

fn times(minute: &Minute) -> Times {
    Times {
        first_token: time(&minute.first_token),
        inter_token: time(&minute.inter_token),
        total: time(&minute.total),
        queue_wait: time(&minute.queue_wait),
        prefill: time(&minute.prefill),
        handoff_gap: time(&minute.handoff_gap),
        decode: time(&minute.decode),
        handover: time(&minute.handover),
        added: time(&minute.added),
    }
}

fn time(spread: &Spread) -> Time {
    let quantile = |share| spread.quantile(share).map(round);
    Time { count: spread.count(), p50: quantile(0.5), p99: quantile(0.99) }
}

fn history(points: &[Point]) -> Points {
    let rates = |of: fn(&Point) -> f64| points.iter().map(|point| round(of(point))).collect();
    let times = |of: fn(&Point) -> Option<f64>| points.iter().map(|point| of(point).map(round)).collect();
    Points {
        interval: LOOK_INTERVAL.as_secs_f64(),
        per_second: rates(|point| point.requests),
        failed_per_second: rates(|point| point.failed),
        tokens_per_second: rates(|point| point.tokens),
        first_token_p50: times(|point| point.first_token.map(|[p50, _]| p50)),
        first_token_p99: times(|point| point.first_token.map(|[_, p99]| p99)),
        inter_token_p50: times(|point| point.inter_token.map(|[p50, _]| p50)),
        inter_token_p99: times(|point| point.inter_token.map(|[_, p99]| p99)),
    }
}

fn failure(Alike { last, count }: Alike) -> Failure {
    Failure {
        at: unix(last.at),
        count,
        request_id: last.id,
        api: last.api.to_owned(),
        leg: last.leg.map(|leg| leg.as_str().to_owned()),
        engine: last.engine,
        reason: last.reason,
        detail: last.detail,
        status: last.status,
        outcome: last.outcome.as_str().to_owned(),
        blame: last.blame.as_str().to_owned(),
    }
}

fn unix(at: SystemTime) -> f64 {
    at.duration_since(UNIX_EPOCH).map_or(0.0, |since| (since.as_secs_f64() * 1e3).round() / 1e3)
}

/// To the microsecond: more digits are noise.
fn round(number: f64) -> f64 {
    (number * 1e6).round() / 1e6
}

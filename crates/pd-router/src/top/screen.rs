//! The state as lines of a terminal: what the page at `/ui` shows, the most pressing first.

use super::line::{Cell, Column, Line, Tone, cell, table};
use crate::ui::state::{Engine, Failure, Level, Points, Pool, State, Time, Times};

/// Failures that are shown; the page has all that the router keeps.
const FAILURES_MAX: usize = 8;

/// Columns of a chart.
const CHART_MAX: usize = 40;

/// That the router does not answer, since when.
#[derive(Clone, Debug)]
pub(super) struct Lost {
    /// Whether something answers there, though not with a state.
    pub(super) reached: bool,
    pub(super) error: String,
    pub(super) since: f64,
    pub(super) now: f64,
}

impl Lost {
    /// Alone, where nothing was seen before.
    pub(super) fn lines(&self, url: &str) -> Vec<Line> {
        let what = if self.reached { "no state from" } else { "cannot reach" };
        let since = format!("{what} {url} since {} ({})", clock(self.since), span(self.now - self.since));
        let parts = self.error.split("; ").flat_map(|part| part.split_inclusive("? "));
        let parts = parts.map(|part| Line::of(Tone::Plain, &format!("  {}", part.trim_end())));
        std::iter::once(Line::of(Tone::Bad, &since)).chain(parts).collect()
    }
}

/// The whole screen in so many columns.
pub(super) fn lines(state: &State, url: &str, lost: Option<&Lost>, width: usize) -> Vec<Line> {
    let mut out = Vec::new();
    if let Some(lost) = lost {
        out.extend(lost.lines(url));
        out.push(Line::of(Tone::Bad, &format!("  what is below is of {}", clock(state.now))));
    }
    let about = format!(" {}  {url}  as of {}", state.version, clock(state.now));
    out.push(Line::of(Tone::Strong, "pd-router").and(Tone::Dim, &about));
    let (tone, verdict) = match state.level {
        Level::Ok => (Tone::Good, "HEALTHY"),
        Level::Degraded => (Tone::Warn, "SERVING, WITH TROUBLE"),
        Level::Down => (Tone::Bad, "NOT SERVING"),
    };
    out.push(Line::of(tone, verdict));
    for finding in &state.findings {
        let tone = if finding.level == Level::Down { Tone::Bad } else { Tone::Warn };
        out.push(Line::of(tone, &format!("  {}", finding.text)));
    }
    out.push(Line::default());
    out.extend(speed(state, width));
    for pool in &state.pools {
        out.push(Line::default());
        out.extend(engines(pool, width));
    }
    out.push(Line::default());
    out.extend(failures(state, width));
    out.push(Line::default());
    out.extend(parts(&state.times, width));
    out
}

/// As many of the lines as there are rows, the last one telling how many are missing.
pub(super) fn fit(lines: &[Line], rows: Option<usize>) -> Vec<Line> {
    let rows = rows.filter(|rows| *rows > 0).unwrap_or(lines.len());
    if lines.len() <= rows {
        return lines.to_vec();
    }
    let shown = rows.saturating_sub(1);
    let more =
        format!("… {} more lines: make the window higher, or see all with --once", lines.len() - shown);
    lines.iter().take(shown).cloned().chain([Line::of(Tone::Dim, &more)]).collect()
}

fn speed(state: &State, width: usize) -> Vec<Line> {
    let (now, history) = (&state.requests, &state.history);
    let failed = now.failed.engine + now.failed.router;
    let tone = if failed > 0 { Tone::Bad } else { Tone::Plain };
    let load = Line::of(Tone::Dim, "now       ")
        .and(Tone::Strong, &format!("{} requests/s", number(now.per_second)))
        .and(Tone::Plain, &format!("  {} tokens/s", number(now.tokens_per_second)))
        .and(Tone::Plain, &format!("  {} in flight  {} waiting  ", now.in_flight, now.waiting))
        .and(tone, &format!("{failed} failed"))
        .and(Tone::Dim, " in the last minute");
    let pair = |time: &Time| format!("p50 {:>7}  p99 {:>7}", shown(time.p50), shown(time.p99));
    let first = &state.times.first_token;
    let inter = &state.times.inter_token;
    let head = format!("last {}", span(duration(history)));
    let rate = format!("{:>9}", number(history.per_second.iter().copied().fold(0.0, f64::max)));
    vec![
        load,
        Line::of(Tone::Dim, &format!("{:<40}", "last minute")).and(Tone::Dim, &head),
        chart("TTFT", &pair(first), &history.first_token_p99, " p99", width),
        chart("ITL", &pair(inter), &history.inter_token_p99, " p99", width),
        chart("requests", &format!("highest {rate}/s"), &some(&history.per_second), "", width),
    ]
}

fn some(values: &[f64]) -> Vec<Option<f64>> {
    values.iter().copied().map(Some).collect()
}

fn duration(history: &Points) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "there are a few hundred points")]
    let points = history.per_second.len() as f64;
    points * history.interval
}

/// A name, its numbers and a chart of what is left of the width.
fn chart(name: &str, numbers: &str, values: &[Option<f64>], of: &str, width: usize) -> Line {
    let room = width.saturating_sub(40 + of.len()).min(CHART_MAX);
    Line::of(Tone::Dim, &format!("{name:<10}"))
        .and(Tone::Strong, &format!("{numbers:<30}"))
        .and(Tone::Good, &bars(values, room))
        .and(Tone::Dim, of)
}

/// One bar for the highest of each few values, in eighths of the highest of all; a gap where there is none.
fn bars(values: &[Option<f64>], room: usize) -> String {
    let highest = values.iter().flatten().copied().fold(0.0, f64::max);
    if room == 0 || values.is_empty() {
        return String::new();
    }
    let bar = |few: &[Option<f64>]| {
        let most = few.iter().flatten().copied().fold(f64::NEG_INFINITY, f64::max);
        if most <= 0.0 || highest <= 0.0 {
            return ' ';
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 1 to 8")]
        let eighths = (most / highest * 8.0).ceil().clamp(1.0, 8.0) as usize;
        "▁▂▃▄▅▆▇█".chars().nth(eighths - 1).unwrap_or(' ')
    };
    values.chunks(values.len().div_ceil(room)).map(bar).collect()
}

const fn column(head: &'static str, number: bool, spare: u8) -> Column {
    Column { head, number, spare }
}

fn engines(pool: &Pool, width: usize) -> Vec<Line> {
    let (decode, all) = (pool.role == "decode", pool.engines.len());
    let tone = if pool.up < all { Tone::Bad } else { Tone::Good };
    let title = Line::of(Tone::Strong, &format!("{} engines ", pool.role))
        .and(tone, &format!("{} of {all} up", pool.up));
    let mut columns = vec![
        column("engine", false, 0),
        column("state", false, 0),
        column("breaker", false, 0),
        column("in flight", true, 1),
        column(if decode { "promised" } else { "tokens waiting" }, true, 5),
        column("legs/min", true, 4),
        column("failed", true, 2),
        column(if decode { "first byte p50 / p99" } else { "answer p50 / p99" }, true, 3),
    ];
    if decode {
        columns.push(column("ITL p50 / p99", true, 4));
    }
    columns.push(column("vLLM", false, 6));
    let rows: Vec<Vec<Cell>> = pool.engines.iter().map(|engine| engine_row(engine, decode)).collect();
    std::iter::once(title).chain(table(&columns, &rows, width)).collect()
}

fn engine_row(engine: &Engine, decode: bool) -> Vec<Cell> {
    let plain = |text: &str| cell(Tone::Plain, text);
    let mut breaker = engine.breaker.replace('_', "-");
    if engine.pairs_open > 0 {
        breaker = format!("{breaker}, {} pair(s) open", engine.pairs_open);
    }
    let load = if decode { (engine.load_requests - engine.in_flight).max(0) } else { engine.load_tokens };
    let tone = |word: &str| match word {
        "up" | "closed" => Tone::Good,
        "down" | "open" => Tone::Bad,
        _ => Tone::Warn,
    };
    let breaker_tone = if engine.pairs_open > 0 { Tone::Bad } else { tone(&engine.breaker) };
    let errors = if engine.errors > 0 { Tone::Bad } else { Tone::Plain };
    let ranks = if engine.ranks > 1 { format!(" ({} ranks)", engine.ranks) } else { String::new() };
    let mut row = vec![
        plain(&format!("{}{ranks}", engine.url)),
        cell(tone(&engine.state), &engine.state),
        cell(breaker_tone, &breaker),
        plain(&engine.in_flight.to_string()),
        plain(&load.to_string()),
        plain(&engine.legs.to_string()),
        cell(errors, &engine.errors.to_string()),
        plain(&both(&engine.answer)),
    ];
    if decode {
        row.push(plain(&both(&engine.inter_token)));
    }
    row.push(plain(engine.vllm.as_deref().unwrap_or("–")));
    row
}

fn failures(state: &State, width: usize) -> Vec<Line> {
    let title = Line::of(Tone::Strong, "last failures ");
    if state.failures.is_empty() {
        return vec![title.and(Tone::Dim, "none since the router started")];
    }
    let more = state.failures.len().saturating_sub(FAILURES_MAX);
    let about =
        if more > 0 { format!("alike ones as one; {more} more at /ui") } else { "alike ones as one".into() };
    let columns = [
        column("when", false, 0),
        column("times", true, 2),
        column("fault", false, 0),
        column("leg", false, 0),
        column("engine", false, 0),
        column("why", false, 0),
        column("client got", false, 1),
        column("last request", false, 4),
        column("detail", false, 3),
    ];
    let shown = state.failures.iter().take(FAILURES_MAX);
    let rows: Vec<Vec<Cell>> = shown.map(|one| failure_row(one, state.now)).collect();
    std::iter::once(title.and(Tone::Dim, &about)).chain(table(&columns, &rows, width)).collect()
}

fn failure_row(one: &Failure, now: f64) -> Vec<Cell> {
    let plain = |text: &str| cell(Tone::Plain, text);
    let (tone, got) = match (one.status, one.outcome.as_str()) {
        (Some(status @ ..300), "ok") => (Tone::Good, format!("{status} on retry")),
        (Some(status @ ..300), _) => (Tone::Bad, format!("{status}, broken off")),
        (Some(status), _) if one.blame == "client" => (Tone::Plain, status.to_string()),
        (Some(status), _) => (Tone::Bad, status.to_string()),
        (None, _) => (Tone::Plain, "left before".to_owned()),
    };
    let fault = match one.blame.as_str() {
        "engine" => Tone::Bad,
        "router" => Tone::Warn,
        _ => Tone::Plain,
    };
    vec![
        plain(&format!("{} ago", span(now - one.at))),
        plain(&one.count.to_string()),
        cell(fault, &one.blame),
        plain(one.leg.as_deref().unwrap_or("–")),
        plain(one.engine.as_deref().unwrap_or("–")),
        plain(&one.reason),
        cell(tone, &got),
        plain(&one.request_id),
        plain(one.detail.as_deref().unwrap_or("–")),
    ]
}

fn parts(times: &Times, width: usize) -> Vec<Line> {
    let columns = [
        column("part", false, 0),
        column("p50", true, 0),
        column("p99", true, 0),
        column("measured", true, 1),
        column("if it is long, look at", false, 2),
    ];
    let rows: Vec<Vec<Cell>> = [
        ("wait for a slot", &times.queue_wait, "router full"),
        ("prefill leg", &times.prefill, "prefill engines"),
        ("handoff gap", &times.handoff_gap, "router, connecting to decode"),
        ("decode leg to its first byte", &times.decode, "decode engines"),
        ("prefill answer to first event", &times.handover, "KV cache transfer and decode"),
        ("router's own time", &times.added, "router"),
        ("whole request", &times.total, "prompt and output length too"),
    ]
    .into_iter()
    .map(|(name, time, who)| {
        vec![
            cell(Tone::Plain, name),
            cell(Tone::Plain, &shown(time.p50)),
            cell(Tone::Plain, &shown(time.p99)),
            cell(Tone::Plain, &time.count.to_string()),
            cell(Tone::Dim, who),
        ]
    })
    .collect();
    let title = Line::of(Tone::Strong, "where the time goes ").and(Tone::Dim, "last minute");
    std::iter::once(title).chain(table(&columns, &rows, width)).collect()
}

fn both(time: &Time) -> String {
    if time.count == 0 { "–".to_owned() } else { format!("{} / {}", shown(time.p50), shown(time.p99)) }
}

/// A time of so many seconds, in three digits or so.
fn shown(seconds: Option<f64>) -> String {
    let digits = |number: f64, unit| match number {
        100.0.. => format!("{number:.0} {unit}"),
        10.0.. => format!("{number:.1} {unit}"),
        _ => format!("{number:.2} {unit}"),
    };
    match seconds {
        None => "–".to_owned(),
        Some(seconds @ 1.0..) => digits(seconds, "s"),
        Some(seconds @ 0.001..) => digits(seconds * 1e3, "ms"),
        Some(seconds) => format!("{:.0} µs", seconds * 1e6),
    }
}

fn number(number: f64) -> String {
    match number {
        100.0.. => format!("{number:.0}"),
        10.0.. => format!("{number:.1}"),
        0.005.. => format!("{number:.2}"),
        _ => "0".to_owned(),
    }
}

/// So many seconds, roughly.
fn span(seconds: f64) -> String {
    match seconds.max(0.0) {
        seconds @ ..59.5 => format!("{seconds:.0} s"),
        seconds @ ..5400.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.0} h", seconds / 3600.0),
    }
}

/// The time of the day of a Unix time.
fn clock(unix: f64) -> String {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds of a day")]
    let second = unix.max(0.0).rem_euclid(86_400.0) as u32;
    format!("{:02}:{:02}:{:02} UTC", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests;

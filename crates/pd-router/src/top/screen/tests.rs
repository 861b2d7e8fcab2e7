//! The screen, as a person sees it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::{Value, json};

use super::*;

const NOW: f64 = 1_000_000_000.0;

fn time(count: u64, p50: f64, p99: f64) -> Value {
    json!({"count": count, "p50": p50, "p99": p99})
}

fn none() -> Value {
    json!({"count": 0, "p50": null, "p99": null})
}

fn engine(url: &str, answer: &Value, inter_token: &Value) -> Value {
    json!({
        "url": url, "state": "up", "breaker": "closed", "pairs_open": 0, "in_flight": 3, "load_requests": 4,
        "load_tokens": 1234, "ranks": 1, "vllm": "0.32.0", "legs": 300, "errors": 0, "answer": answer,
        "inter_token": inter_token
    })
}

fn calm() -> Value {
    let (prefill, decode) = (time(300, 0.031, 0.058), time(300, 0.0042, 0.0121));
    let gaps = time(18_000, 0.025, 0.0272);
    let ramp: Vec<f64> = (0..300).map(|point| f64::from(point) / 30.0).collect();
    json!({
        "version": "0.1.0", "now": NOW, "level": "ok", "findings": [],
        "requests": {
            "in_flight": 6, "waiting": 0, "per_second": 9.97, "failed_per_second": 0.0,
            "tokens_per_second": 318.4, "minute_seconds": 60.0,
            "ended": {"ok": 600, "client_closed": 2, "client_error": 0, "engine_error": 0, "router_error": 0, "shed": 0,
                "incomplete_stream": 0},
            "failed": {"client": 0, "engine": 0, "router": 0}
        },
        "times": {
            "first_token": time(600, 0.0412, 0.0873), "inter_token": gaps, "total": time(600, 0.81, 1.2),
            "queue_wait": time(600, 0.000_004, 0.000_011), "prefill": prefill,
            "handoff_gap": time(600, 0.000_09, 0.0004), "decode": decode,
            "handover": time(600, 0.0061, 0.0148), "added": time(600, 0.000_12, 0.0006)
        },
        "pools": [
            {"role": "prefill", "up": 2, "engines": [
                engine("http://p1:8000", &prefill, &none()), engine("http://p2:8000", &prefill, &none())]},
            {"role": "decode", "up": 2, "engines": [
                engine("http://d1:8000", &decode, &gaps), engine("http://d2:8000", &decode, &gaps)]}
        ],
        "history": {
            "interval": 2.0, "per_second": ramp, "failed_per_second": [], "tokens_per_second": [],
            "first_token_p50": [], "inter_token_p50": [],
            "first_token_p99": (0..300).map(|point| (point > 99).then_some(0.08)).collect::<Vec<_>>(),
            "inter_token_p99": (0..300).map(|point| if point % 60 < 30 { 0.03 } else { 0.06 }).collect::<Vec<_>>()
        },
        "failures": []
    })
}

fn with_a_dead_engine() -> Value {
    let mut state = calm();
    state["level"] = json!("degraded");
    state["findings"] = json!([
        {"level": "degraded", "text": "decode engine http://d2:8000 is down"},
        {"level": "degraded", "text": "7 of 600 requests in the last 60 s failed by an engine's fault"}
    ]);
    state["requests"]["failed"]["engine"] = json!(7);
    state["pools"][1]["up"] = json!(1);
    let dead = &mut state["pools"][1]["engines"][1];
    (dead["state"], dead["breaker"], dead["errors"]) = (json!("down"), json!("half_open"), json!(7));
    let failure = |at: f64, count, reason, status, outcome| {
        json!({
            "at": at, "count": count, "request_id": "chatcmpl-0193", "api": "chat", "leg": "decode",
            "engine": "http://d2:8000", "reason": reason, "detail": "connection refused", "status": status,
            "outcome": outcome, "blame": "engine"
        })
    };
    state["failures"] = json!([
        failure(NOW - 3.0, 12, "decode_unreachable", json!(200), "ok"),
        failure(NOW - 70.0, 7, "decode_broke_off", json!(200), "incomplete_stream"),
        failure(NOW - 9000.0, 1, "decode_unreachable", json!(502), "engine_error"),
        failure(NOW - 9000.0, 1, "decode_unreachable", json!(null), "client_closed"),
    ]);
    state
}

fn parsed(state: Value) -> State {
    serde_json::from_value(state).unwrap()
}

fn plain(lines: &[Line], width: usize) -> String {
    lines.iter().map(|line| line.show(width, false) + "\n").collect()
}

fn shown(state: Value, width: usize) -> String {
    plain(&lines(&parsed(state), "http://router:30000", None, width), width)
}

#[test]
fn calm_traffic() {
    insta::assert_snapshot!(shown(calm(), 120));
}

#[test]
fn one_engine_is_down() {
    insta::assert_snapshot!(shown(with_a_dead_engine(), 140));
}

#[test]
fn a_narrow_terminal_keeps_what_matters() {
    let text = shown(with_a_dead_engine(), 60);
    assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn every_width_does() {
    for width in 0..160 {
        let text = shown(with_a_dead_engine(), width);
        assert!(text.lines().all(|line| line.chars().count() <= width), "{width}: {text}");
    }
}

#[test]
fn hostile_names_are_text() {
    let evil = "a\u{1b}[2J\u{1b}]0;title\u{7}\r\nHEALTHY\u{9b}31m\u{202e}b\u{200b}";
    let mut state = with_a_dead_engine();
    state["version"] = json!(evil);
    state["findings"][0]["text"] = json!(evil);
    for member in ["url", "state", "breaker", "vllm"] {
        state["pools"][0]["engines"][0][member] = json!(evil);
    }
    state["pools"][0]["role"] = json!(evil);
    for member in ["request_id", "leg", "engine", "reason", "detail", "outcome", "blame"] {
        state["failures"][0][member] = json!(evil);
    }
    let lost = Lost { reached: true, error: evil.to_owned(), since: NOW, now: NOW + 4.0 };
    let lines = lines(&parsed(state), evil, Some(&lost), 4000);
    let text = plain(&lines, 4000);
    assert!(!text.contains(|char: char| char.is_control() && char != '\n'), "{text:?}");
    assert!(!text.contains(['\u{202e}', '\u{200b}']), "{text:?}");
    assert!(text.contains(r"a\u{1b}[2J\u{1b}]0;title\u{7}\r\nHEALTHY\u{9b}31m\u{202e}b\u{200b}"), "{text}");
    assert!(!text.lines().any(|line| line.starts_with("HEALTHY")), "{text}");
}

#[test]
fn a_router_that_went_away_is_told_above_what_is_old() {
    let lost = Lost {
        reached: false,
        error: "cannot reach it: refused; is it there? Try this".to_owned(),
        since: NOW + 2.0,
        now: NOW + 64.0,
    };
    let lines = lines(&parsed(calm()), "http://router:30000", Some(&lost), 100);
    let head = plain(&lines[..6], 100);
    let expected = "cannot reach http://router:30000 since 01:46:42 UTC (1 min)\n  cannot reach it: refused\n  is it there?\n  Try this\n  \
                    what is below is of 01:46:40 UTC\npd-router 0.1.0  http://router:30000  as of 01:46:40 UTC\n";
    assert_eq!(head, expected);
}

#[test]
fn a_low_terminal_says_what_is_missing() {
    let lines: Vec<Line> = (0..9).map(|number| Line::of(Tone::Plain, &number.to_string())).collect();
    assert_eq!(fit(&lines, Some(9)).len(), 9);
    assert_eq!(fit(&lines, None).len(), 9);
    let low = plain(&fit(&lines, Some(3)), 100);
    assert_eq!(low, "0\n1\n… 7 more lines: make the window higher, or see all with --once\n");
}

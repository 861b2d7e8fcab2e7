//! Dashboard and alert rules in `deploy/` ask for what the router serves: each family, label and value of every
//! query exists, and each alert has a case in which it fires and one in which it does not. What the queries
//! return from a real Prometheus is seen by `deploy/prometheus/check.sh`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use clap::CommandFactory;
use pd_router::cli::Args;
use pd_tests::promql::{self, Query, Selector};
use pd_tests::{args, bed, exposition};
use serde_json::Value;

/// The labels that Prometheus gives every series that it scrapes.
const TARGET: [&str; 2] = ["job", "instance"];
const JOB: &str = "pd-router";

fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The labels of each series that can be asked for, from the tables of `docs/reference/metrics.md`.
struct Known(BTreeMap<String, Vec<String>>);

impl Known {
    fn read() -> Self {
        let mut known = BTreeMap::from([("up".to_owned(), Vec::new())]);
        let text = file("docs/reference/metrics.md");
        let (_, tables) = text.split_once("<!-- generated").expect("the generated tables");
        for line in tables.lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let name = cells[1].trim_matches('`');
            let words = cells[3].split(", ").filter(|word| !word.is_empty());
            let labels: Vec<String> = words.map(|word| word.trim_matches('`').to_owned()).collect();
            let (suffixes, plain): (&[&str], _) = match cells[2] {
                "histogram" => (&["_bucket", "_sum", "_count"], false),
                "summary" => (&["_sum", "_count"], false),
                "counter" | "gauge" => (&[], true),
                other => panic!("{name} is a {other}"),
            };
            for suffix in suffixes {
                let le = (*suffix == "_bucket").then(|| "le".to_owned());
                known.insert(format!("{name}{suffix}"), labels.iter().cloned().chain(le).collect());
            }
            if plain {
                known.insert(name.to_owned(), labels);
            }
        }
        assert!(known.len() > 70, "only {} series were read", known.len());
        Self(known)
    }

    /// The labels of what a selector picks, those of the target included.
    fn labels(&self, selector: &Selector) -> Vec<String> {
        let own = self.0.get(&selector.metric).cloned().unwrap_or_default();
        own.into_iter().chain(TARGET.map(str::to_owned)).collect()
    }

    /// Reads a query and says what in it is not there.
    fn check(&self, text: &str) -> Result<Query, String> {
        let query = promql::read(text)?;
        let has = |selector: &Selector, label: &String| {
            let there = self.labels(selector).contains(label);
            if there { Ok(()) } else { Err(format!("{} has no label {label}", selector.metric)) }
        };
        for selector in &query.selectors {
            if !self.0.contains_key(&selector.metric) {
                return Err(format!("no series {}", selector.metric));
            }
            if selector.metric.starts_with("vllm_router_") {
                return Err(format!("--metrics-compat none drops {}", selector.metric));
            }
            selector.matchers.iter().try_for_each(|(label, ..)| has(selector, label))?;
        }
        for grouping in &query.groupings {
            if query.over(grouping).next().is_none() {
                return Err("a grouping over nothing".to_owned());
            }
            let each = query.over(grouping);
            each.flat_map(|one| grouping.labels.iter().map(move |label| (one, label)))
                .try_for_each(|(one, label)| has(one, label))?;
        }
        let first = query.selectors.first().ok_or("it reads no series")?;
        query.matched_by.iter().try_for_each(|label| has(first, label))?;
        Ok(query)
    }

    fn good(&self, text: &str, place: &str) -> Query {
        self.check(text).unwrap_or_else(|error| panic!("{place}: {error}\n{text}"))
    }

    fn result(&self, query: &Query) -> Vec<String> {
        query.result(|selector| self.labels(selector))
    }
}

/// One alert of `deploy/prometheus/alerts.yml`.
struct Alert {
    name: String,
    expr: String,
    text: String,
}

/// The alerts, by the few forms that the file is written in.
fn alerts() -> Vec<Alert> {
    let text = file("deploy/prometheus/alerts.yml");
    let mut parts = text.split("      - alert: ");
    assert!(!parts.next().expect("a head").contains("expr"), "an expression before the first alert");
    let read = |part: &str| {
        let (name, rest) = part.split_once('\n').expect("a name");
        let rest =
            rest.strip_prefix("        expr: |-\n").unwrap_or_else(|| panic!("{name} begins otherwise"));
        let lines: Vec<&str> = rest.lines().take_while(|line| line.starts_with("          ")).collect();
        let rest = rest.lines().skip(lines.len()).map(str::trim).collect::<Vec<_>>().join(" ");
        Alert { name: name.to_owned(), expr: lines.join("\n"), text: rest }
    };
    let alerts: Vec<Alert> = parts.map(read).collect();
    assert_eq!(alerts.len(), text.matches("expr:").count(), "an alert was not read");
    alerts
}

fn dashboard() -> Value {
    serde_json::from_str(&file("deploy/grafana/pd-router.json")).expect("the dashboard is JSON")
}

/// The panels that show something, and the titles of the rows.
fn panels(dashboard: &Value) -> (Vec<&Value>, Vec<&str>) {
    let all = dashboard["panels"].as_array().expect("panels").iter();
    let (rows, panels): (Vec<&Value>, Vec<&Value>) = all.partition(|panel| panel["type"] == "row");
    (panels, rows.into_iter().map(|row| row["title"].as_str().expect("a title")).collect())
}

/// Title, query and legend of every target.
fn targets(dashboard: &Value) -> Vec<(&str, &str, &str)> {
    let of = |panel| {
        let title = text(panel, "/title");
        let targets = panel.pointer("/targets").and_then(Value::as_array).expect("targets");
        targets.iter().map(move |target| (title, text(target, "/expr"), text(target, "/legendFormat")))
    };
    panels(dashboard).0.into_iter().flat_map(of).collect()
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    let found = value.pointer(pointer).and_then(Value::as_str);
    found.filter(|text| !text.is_empty()).unwrap_or_else(|| panic!("no {pointer} in {value}"))
}

/// What stands between each `open` and the `close` behind it.
fn between<'a>(text: &'a str, open: &'a str, close: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(open).skip(1).map(move |part| part.split_once(close).expect("its end").0.trim())
}

/// A regular expression of literals, `.`, `.*` and `|`, against a whole value.
fn matches(pattern: &str, value: &str) -> bool {
    fn one(pattern: &str, value: &str) -> bool {
        let mut chars = pattern.chars();
        match chars.next() {
            None => value.is_empty(),
            Some('.') if chars.as_str().starts_with('*') => {
                let rest = &chars.as_str()[1..];
                value.char_indices().any(|(at, _)| one(rest, &value[at..])) || one(rest, "")
            }
            Some(c) => value.chars().next().is_some_and(|first| {
                (c == '.' || c == first) && one(chars.as_str(), &value[first.len_utf8()..])
            }),
        }
    }
    pattern.split('|').any(|pattern| one(pattern, value))
}

#[test]
fn every_query_of_the_dashboard_exists() {
    let (known, dashboard) = (Known::read(), dashboard());
    let targets = targets(&dashboard);
    assert!(targets.len() > 50, "only {} queries", targets.len());
    for (title, expr, legend) in targets {
        let query = known.good(expr, title);
        for selector in &query.selectors {
            let of = |label: &str| selector.matchers.iter().find(|(name, ..)| name == label);
            let instance = of("instance").map(|(_, operator, value)| (operator.as_str(), value.as_str()));
            assert_eq!(instance, Some(("=~", "$instance")), "{title}: {expr}");
            // engines have them too
            let shared = selector.metric.starts_with("process_");
            assert_eq!(of("job").is_some(), shared, "{title}: {expr}");
        }
        for label in between(legend, "{{", "}}") {
            assert!(known.result(&query).iter().any(|have| have == label), "{title}: no {label} in {expr}");
        }
    }
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    let names: Vec<&str> = variables.iter().map(|variable| text(variable, "/name")).collect();
    assert_eq!(names, ["datasource", "instance"]);
    let values = text(&variables[1], "/query/query");
    let (metric, label) = values
        .strip_prefix("label_values(")
        .and_then(|rest| rest.strip_suffix(')')?.split_once(", "))
        .expect("label_values(METRIC, LABEL)");
    known.good(&format!("sum by ({label}) ({metric})"), "the variable instance");
}

#[test]
fn every_panel_says_what_it_shows() {
    let dashboard = dashboard();
    let (panels, rows) = panels(&dashboard);
    assert_eq!(rows, ["Is it fast", "Is it healthy", "Which leg", "Which engine", "Whose fault"]);
    let (mut ids, mut titles, mut cells) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for panel in panels {
        let title = text(panel, "/title");
        assert!(titles.insert(title), "{title} twice");
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "the id of {title} twice");
        assert!(text(panel, "/description").len() > 20, "{title} says nothing");
        text(panel, "/fieldConfig/defaults/unit");
        assert_eq!(text(panel, "/datasource/uid"), "${datasource}", "{title}");
        let at = |name: &str| panel["gridPos"][name].as_u64().expect("a place");
        assert!(at("x") + at("w") <= 24, "{title} is beside the page");
        for cell in
            (at("y")..at("y") + at("h")).flat_map(|y| (at("x")..at("x") + at("w")).map(move |x| (x, y)))
        {
            assert!(cells.insert(cell), "{title} lies over another panel");
        }
    }
}

#[test]
fn every_alert_exists_and_names_what_is_there() {
    let (known, dashboard) = (Known::read(), dashboard());
    let (panels, rows) = panels(&dashboard);
    let titles: BTreeSet<&str> = panels.into_iter().map(|panel| text(panel, "/title")).collect();
    let alerts = alerts();
    assert!(alerts.len() > 20, "only {} alerts", alerts.len());
    let mut names = BTreeSet::new();
    for Alert { name, expr, text } in &alerts {
        assert!(names.insert(name), "{name} twice");
        let query = known.good(expr, name);
        // those of an absent series are its matchers
        let result = if expr.contains("absent(") { Vec::new() } else { known.result(&query) };
        for label in between(text, "{{ $labels.", " }}") {
            assert!(result.iter().any(|have| have == label), "{name}: its result has no label {label}");
        }
        for label in
            result.iter().filter(|label| ["role", "engine", "leg", "reason"].contains(&label.as_str()))
        {
            assert!(
                text.contains(&format!("{{{{ $labels.{label} }}}}")),
                "{name} keeps its {label} to itself"
            );
        }
        for part in ["labels: {severity: ", " summary: >-", " description: >-"] {
            assert_eq!(text.matches(part).count(), 1, "{name}: {part}");
        }
        for title in between(&text.replace("anel \"", "anel ["), "anel [", "\"") {
            assert!(titles.contains(title), "{name}: no panel {title}");
        }
        for row in between(&text.replace("row \"", "row ["), "row [", "\"") {
            assert!(rows.contains(&row), "{name}: no row {row}");
        }
    }
}

#[test]
fn every_alert_is_tested_both_ways() {
    let (known, cases) = (Known::read(), file("deploy/prometheus/alerts_test.yml"));
    for Alert { name, .. } in alerts() {
        let quiet = cases.lines().any(|line| {
            line.contains(&format!("{{alertname: {name}, ")) && line.ends_with("exp_alerts: []}")
        });
        assert!(quiet, "no case in which {name} does not fire");
        let fires =
            cases.split("      - alertname: ").skip(1).filter(|case| case.starts_with(&format!("{name}\n")));
        let fires: Vec<&str> = fires.collect();
        assert!(!fires.is_empty(), "no case in which {name} fires");
        assert!(fires.iter().all(|case| case.contains("- exp_labels:")), "{name} fires for nothing");
    }
    let series: Vec<&str> = between(&cases, "series: '", "'").collect();
    assert!(series.len() > 80, "only {} series", series.len());
    for series in series {
        known.good(series, "alerts_test.yml");
    }
}

#[tokio::test]
async fn every_value_that_is_asked_for_is_one_of_the_routers() {
    let bed = bed(1, 1, |_| {}).await;
    let families = exposition::read(&bed.router.observe().render());
    let (known, dashboard) = (Known::read(), dashboard());
    let of_alerts = alerts().into_iter().map(|alert| (alert.name, alert.expr));
    let of_panels =
        targets(&dashboard).into_iter().map(|(title, expr, _)| (title.to_owned(), expr.to_owned()));
    let mut checked = 0;
    for (place, expr) in of_alerts.chain(of_panels) {
        for Selector { metric, matchers, .. } in known.good(&expr, &place).selectors {
            let samples = families.values().flat_map(|family| &family.samples);
            let labels: Vec<_> =
                samples.filter(|(name, ..)| *name == metric).map(|(_, labels, _)| labels).collect();
            assert!(metric == "up" || !labels.is_empty(), "{place}: no series {metric} from the start");
            for (label, operator, value) in matchers.iter().filter(|(label, ..)| label != "instance") {
                if label == "job" {
                    assert_eq!((operator.as_str(), value.as_str()), ("=", JOB), "{place}");
                    continue;
                }
                for value in value.split('|') {
                    let there = labels.iter().any(|labels| matches(value, &labels[label]));
                    assert!(there, "{place}: no {metric} with {label}={value}");
                    checked += 1;
                }
            }
        }
    }
    assert!(checked > 30, "only {checked} values");
}

#[test]
fn the_scrape_finds_a_router_that_was_started_without_flags() {
    let config = file("deploy/prometheus/prometheus.yml");
    let router = args(&["--prefill", "http://p:1", "--decode", "http://d:1"]);
    let target = format!("targets: [\"{}:{}\"]", router.prometheus_host, router.prometheus_port);
    assert!(config.contains(&target), "{target}");
    assert!(config.contains(&format!("  - job_name: {JOB}\n")), "the job's name");
    assert!(config.contains("\nrule_files: [alerts.yml]\n"), "the rules");
}

#[test]
fn every_flag_that_is_named_is_one() {
    let mut command = Args::command();
    command.build();
    let flags: BTreeSet<String> =
        command.get_arguments().filter_map(|argument| Some(format!("--{}", argument.get_long()?))).collect();
    // the engine's
    let engines = ["--kv-transfer-config"];
    let mut seen = 0;
    for path in
        ["deploy/prometheus/alerts.yml", "deploy/prometheus/prometheus.yml", "deploy/grafana/pd-router.json"]
    {
        let text = file(path);
        let part = |c: char| c.is_ascii_lowercase() || c == '-';
        for rest in
            text.split(" --").skip(1).chain(text.split("(--").skip(1)).chain(text.split("`--").skip(1))
        {
            let flag = format!("--{}", &rest[..rest.find(|c| !part(c)).unwrap_or(rest.len())]);
            if flag != "--config" {
                assert!(flags.contains(&flag) || engines.contains(&flag.as_str()), "{path}: {flag}");
            }
            seen += 1;
        }
    }
    assert!(seen > 15, "only {seen} flags");
}

#[test]
fn what_is_not_there_is_found() {
    let known = Known::read();
    let good = "sum by (api, le) (rate(pd_router_request_seconds_bucket{api=\"chat\"}[5m])) > 1";
    assert!(known.check(good).is_ok());
    for (bad, why) in [
        ("pd_router_made_up_total", "no series"),
        ("rate(pd_router_request_seconds[5m])", "no series"),
        ("rate(pd_router_queue_depth_count[5m])", "no series"),
        ("pd_router_requests_total{engine=\"x\"}", "no label engine"),
        ("sum by (engine) (rate(pd_router_requests_total[5m]))", "no label engine"),
        ("sum by (le) (rate(pd_router_request_seconds_sum[5m]))", "no label le"),
        ("pd_router_queue_depth / on (engine) pd_router_buffered_bytes", "no label engine"),
        ("vllm_router_worker_health == 0", "drops"),
        ("sum(rate(pd_router_requests_total[5m])) by (api)", "before"),
        ("rated(pd_router_requests_total[5m])", "not known"),
        ("rate(pd_router_requests_total[$interval])", "no interval"),
        ("time()", "no series"),
    ] {
        let error = known.check(bad).expect_err(bad);
        assert!(error.contains(why), "{bad}: {error}");
    }
    assert!(matches("stranded_.*", "stranded_no_decode") && matches("5..", "502") && matches("a|b", "b"));
    assert!(!matches("stranded_.*", "issued") && !matches("5..", "5021") && !matches("a", "ab"));
}

//! A strict reader of the Prometheus text format 0.0.4: what it does not understand fails the test.

use std::collections::{BTreeMap, BTreeSet};

/// One family as it was scraped.
#[derive(Clone, Debug, Default)]
pub struct Family {
    /// What HELP says.
    pub help: String,
    /// What TYPE says.
    pub kind: String,
    /// The samples' names, labels and values.
    pub samples: Vec<(String, BTreeMap<String, String>, f64)>,
}

impl Family {
    /// The names of its labels, without those that its type brings.
    #[must_use]
    pub fn labels(&self) -> BTreeSet<String> {
        let names = self.samples.iter().flat_map(|(_, labels, _)| labels.keys());
        names.filter(|name| !["le", "quantile"].contains(&name.as_str())).cloned().collect()
    }

    /// The bounds of a histogram's buckets, as written.
    #[must_use]
    pub fn bounds(&self) -> Vec<String> {
        let mut bounds = Vec::new();
        for bound in self.samples.iter().filter_map(|(_, labels, _)| labels.get("le")) {
            if !bounds.contains(bound) {
                bounds.push(bound.clone());
            }
        }
        bounds
    }
}

/// Reads a scrape and checks it.
///
/// # Panics
/// Where it is not valid: that is the test.
#[must_use]
pub fn read(text: &str) -> BTreeMap<String, Family> {
    assert!(text.ends_with('\n'), "the last line has no end");
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a name and a help");
            current = name.to_owned();
            let family = Family { help: help.to_owned(), ..Family::default() };
            assert!(families.insert(current.clone(), family).is_none(), "{name} twice");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a name and a type");
            assert_eq!(name, current, "TYPE follows HELP");
            assert!(["counter", "gauge", "histogram", "summary"].contains(&kind), "{line}");
            families.get_mut(name).expect("its HELP").kind = kind.to_owned();
        } else {
            let sample = sample(line);
            let family = families.get_mut(&current).expect("a family");
            let suffix = sample.0.strip_prefix(&current).unwrap_or_else(|| panic!("{line} in {current}"));
            let suffixes: &[&str] = match family.kind.as_str() {
                "histogram" => &["_bucket", "_sum", "_count"],
                "summary" => &["", "_sum", "_count"],
                _ => &[""],
            };
            assert!(suffixes.contains(&suffix), "{line} in the {} {current}", family.kind);
            family.samples.push(sample);
        }
    }
    for (name, family) in &families {
        check(name, family);
    }
    families
}

fn name_at(text: &str, colons: bool) -> usize {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '_' || (colons && c == ':');
    assert!(text.starts_with(|c: char| good(c) && !c.is_ascii_digit()), "a name: {text}");
    text.find(|c| !good(c)).unwrap_or(text.len())
}

fn sample(line: &str) -> (String, BTreeMap<String, String>, f64) {
    let (name, mut rest) = line.split_at(name_at(line, true));
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, after) = rest.split_at(name_at(rest, false));
            let mut value = String::new();
            let mut chars = after.strip_prefix("=\"").expect("a quoted value").chars();
            loop {
                match chars.next().expect("a closing quote") {
                    '"' => break,
                    '\\' => value.push(match chars.next() {
                        Some('n') => '\n',
                        Some(c @ ('"' | '\\')) => c,
                        other => panic!("an escape {other:?} in {line}"),
                    }),
                    c => value.push(c),
                }
            }
            assert!(labels.insert(label.to_owned(), value).is_none(), "a label twice: {line}");
            rest = chars.as_str();
            match rest.chars().next() {
                Some(',') => rest = &rest[1..],
                Some('}') => break,
                other => panic!("{other:?} behind a label: {line}"),
            }
        }
        rest = &rest[1..];
    }
    let value = rest.strip_prefix(' ').expect("a space before the value");
    (name.to_owned(), labels, value.parse().unwrap_or_else(|_| panic!("no number: {line}")))
}

fn check(name: &str, family: &Family) {
    assert!(!family.kind.is_empty() && !family.help.is_empty() && !family.samples.is_empty(), "{name}");
    let mut seen = BTreeSet::new();
    for (sample, labels, value) in &family.samples {
        assert!(seen.insert((sample, labels)), "{sample} {labels:?} twice");
        assert!(!value.is_nan(), "{sample} {labels:?} is no number");
        assert!(family.kind == "gauge" || *value >= 0.0, "{sample} {labels:?} is {value}");
    }
    if family.kind == "counter" {
        assert!(name.ends_with("_total"), "the counter {name} does not end in _total");
    }
    if family.kind != "histogram" {
        return;
    }
    let mut series: BTreeMap<BTreeMap<String, String>, Vec<(f64, f64)>> = BTreeMap::new();
    for (_, labels, value) in family.samples.iter().filter(|(sample, ..)| sample.ends_with("_bucket")) {
        let mut labels = labels.clone();
        let bound = labels.remove("le").expect("le").parse().expect("a bound");
        series.entry(labels).or_default().push((bound, *value));
    }
    for (labels, buckets) in &series {
        assert!(buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{name} {labels:?}: {buckets:?}");
        let count = format!("{name}_count");
        let of = |wanted: &str| {
            family.samples.iter().find(|(sample, of, _)| sample == wanted && of == labels).expect("a count").2
        };
        let last = buckets.last().expect("buckets");
        assert!(last.0.is_infinite(), "{name} {labels:?} does not end with +Inf");
        assert!((last.1 - of(&count)).abs() < f64::EPSILON, "{name} {labels:?}: +Inf is not the count");
        of(&format!("{name}_sum"));
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::read;

    const GOOD: &str = "# HELP a_total What.\n# TYPE a_total counter\na_total{x=\"1\\n\",y=\"2\"} 3\n\
        # HELP h_seconds What.\n# TYPE h_seconds histogram\nh_seconds_bucket{le=\"0.1\"} 1\n\
        h_seconds_bucket{le=\"+Inf\"} 2\nh_seconds_sum 0.5\nh_seconds_count 2\n";

    #[test]
    fn what_is_wrong_fails() {
        assert_eq!(read(GOOD)["a_total"].samples[0].1["x"], "1\n");
        for (good, bad) in [
            ("# TYPE a_total counter\n", ""),
            ("# HELP a_total What.\n", ""),
            ("# TYPE a_total counter", "# TYPE a_total number"),
            ("a_total", "a"),
            ("y=\"2\"", "x=\"2\""),
            ("y=\"2\"", "y=\"2"),
            ("\\n", "\\t"),
            ("} 3\n", "} three\n"),
            ("} 3\n", "} NaN\n"),
            ("} 3\n", "} -3\n"),
            ("} 3\n", "} 3\na_total{x=\"1\\n\",y=\"2\"} 3\n"),
            ("+Inf", "10"),
            ("\"} 2", "\"} 0"),
            ("count 2", "count 3"),
            ("h_seconds_sum 0.5\n", ""),
            ("count 2\n", "count 2"),
        ] {
            assert!(GOOD.contains(good), "{good}");
            let text = GOOD.replacen(good, bad, if good == "a_total" { 9 } else { 1 });
            assert!(catch_unwind(|| read(&text)).is_err(), "{text}");
        }
    }
}

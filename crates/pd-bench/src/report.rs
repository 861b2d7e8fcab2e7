//! What a comparison prints: a table with medians, spreads and ratios, what makes it untrustworthy, and JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::run::Plan;
use crate::sample::{Metric, Sample};
use crate::stats::Spread;
use crate::works::Work;

/// Above this share of its threads the generator, engines included, is the limit and not the subject.
const BUSY_MAX: f64 = 0.85;

/// Below this share of idle time the machine is the limit.
const IDLE_MIN: f64 = 0.05;

/// All runs of one work.
#[derive(Debug)]
pub struct WorkReport {
    work: Work,
    samples: Vec<(String, Vec<Sample>)>,
}

impl WorkReport {
    /// With no run yet; subjects stand in the order of the plan.
    #[must_use]
    pub fn new(work: &Work, plan: &Plan) -> Self {
        let samples = plan.subjects.iter().map(|subject| (subject.name.clone(), Vec::new())).collect();
        Self { work: work.clone(), samples }
    }

    /// Adds a run of a subject.
    pub fn add(&mut self, subject: &str, sample: Sample) {
        if let Some((_, samples)) = self.samples.iter_mut().find(|(name, _)| name == subject) {
            samples.push(sample);
        }
    }

    /// Answers that were wrong, of all subjects.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.samples.iter().flat_map(|(_, samples)| samples).map(|sample| sample.failed).sum()
    }

    /// What one subject's repeats gave.
    #[must_use]
    pub fn spread(&self, subject: &str, metric: Metric) -> Option<Spread> {
        let of = |name: &str| self.samples.iter().find(|(own, _)| own == name).map(|(_, samples)| samples);
        let direct = of("direct");
        let value = |(turn, sample): (usize, &Sample)| {
            metric.of(sample, direct.and_then(|samples| samples.get(turn)))
        };
        Spread::of(of(subject)?.iter().enumerate().filter_map(value))
    }

    /// The table.
    #[must_use]
    pub fn table(&self, baseline: &str) -> String {
        let repeats = self.samples.first().map_or(0, |(_, samples)| samples.len());
        let mut out = format!("\n{} · median of {repeats} [range] ×{baseline}\n", self.work.title);
        let titles = self.work.metrics.iter().map(|metric| metric.title().to_owned());
        let mut lines: Vec<Vec<String>> = vec![std::iter::once("subject".to_owned()).chain(titles).collect()];
        for (name, _) in &self.samples {
            let cells = self.work.metrics.iter().map(|metric| self.cell(name, *metric, baseline));
            lines.push(std::iter::once(name.clone()).chain(cells).collect());
        }
        let width = |column: usize| {
            lines
                .iter()
                .filter_map(|line| line.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..=self.work.metrics.len()).map(width).collect();
        for line in &lines {
            let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            // Writing to a String cannot fail.
            writeln!(out, "  {}", cells.collect::<Vec<_>>().join("  ").trim_end()).ok();
        }
        for warning in self.warnings() {
            writeln!(out, "  warning: {warning}").ok();
        }
        out
    }

    fn cell(&self, subject: &str, metric: Metric, baseline: &str) -> String {
        let Some(spread) = self.spread(subject, metric) else { return "–".to_owned() };
        let mut cell = format!("{} [{}–{}]", short(spread.median), short(spread.min), short(spread.max));
        let base = self.spread(baseline, metric).map(|base| base.median).filter(|base| *base > 0.0);
        if let Some(base) = base
            && subject != baseline
        {
            write!(cell, " ×{:.2}", spread.median / base).ok();
        }
        cell
    }

    /// What makes the numbers untrustworthy.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for (name, samples) in &self.samples {
            for (label, (count, first)) in samples.iter().flat_map(|sample| &sample.failures) {
                warnings.push(format!("{name}: {count} answers failed ({label}); the first: {first}"));
            }
            let most = |value: fn(&Sample) -> f64| samples.iter().map(value).fold(0.0, f64::max);
            let busy = most(|sample| sample.generator_busy);
            if busy > BUSY_MAX {
                warnings.push(format!(
                    "{name}: generator and engines used {:.0} % of their threads: they were the limit, not {name}",
                    busy * 100.0
                ));
            }
            let idle = 1.0 - most(|sample| 1.0 - sample.machine_idle.unwrap_or(1.0));
            if idle < IDLE_MIN {
                warnings.push(format!(
                    "{name}: the machine had no core left: rates and times are the machine's; CPU a request holds"
                ));
            }
            let few = |kind: &&&str| {
                samples
                    .iter()
                    .any(|sample| (1..1000).contains(&sample.counts.get(**kind).copied().unwrap_or(0)))
            };
            for kind in ["e2e", "itl"].iter().filter(few) {
                warnings.push(format!(
                    "{name}: fewer than 1,000 times of {kind} in a run: no p99 is printed for it"
                ));
            }
        }
        warnings
    }

    /// Everything, for programs.
    #[must_use]
    pub fn document(&self, baseline: &str) -> Value {
        let subject = |(name, samples): &(String, Vec<Sample>)| {
            let metric = |metric: &Metric| {
                let spread = self.spread(name, *metric);
                let base = self.spread(baseline, *metric).map(|base| base.median);
                let ratio = spread.zip(base).map(|(spread, base)| spread.median / base);
                json!({"metric": metric, "spread": spread, "ratio": ratio})
            };
            let metrics: Vec<Value> = self.work.metrics.iter().map(metric).collect();
            json!({"subject": name, "metrics": metrics, "samples": samples})
        };
        let subjects: Vec<Value> = self.samples.iter().map(subject).collect();
        json!({
            "work": self.work.name, "title": self.work.title, "ask": self.work.ask,
            "engines_a_pool": self.work.engines, "baseline": baseline,
            "subjects": subjects, "warnings": self.warnings(),
        })
    }
}

/// Three digits that matter.
fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// What two works give together: memory a stream, and what more engines cost.
#[must_use]
pub fn derived(reports: &[WorkReport]) -> Vec<String> {
    let of = |name: &str| reports.iter().find(|report| report.work.name == name);
    let mut lines = Vec::new();
    let mut each = |few: &str, many: &str, say: &dyn Fn(&WorkReport, &WorkReport, &str) -> Option<String>| {
        let Some((few, many)) = of(few).zip(of(many)) else { return };
        lines.extend(many.samples.iter().filter_map(|(name, _)| say(few, many, name)));
    };
    each("slow-2000", "slow-8000", &|few, many, name| {
        let rss = |report: &WorkReport| Some(report.spread(name, Metric::Rss)?.median);
        let kib = (rss(many)? - rss(few)?) * 1e6 / 1024.0 / 6000.0;
        Some(format!("{name}: {kib:.1} KiB of RSS a stream between 2,000 and 8,000"))
    });
    for (more, what, of) in [("engines-16", "16 engines a pool", "2"), ("small-8000", "8,000 clients", "64")]
    {
        each("small-64", more, &|few, many, name| {
            let cpu = |report: &WorkReport| Some(report.spread(name, Metric::CpuRequest)?.median);
            Some(format!("{name}: {what} cost ×{:.2} of {of}", cpu(many)? / cpu(few)?))
        });
    }
    lines
}

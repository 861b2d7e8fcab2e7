//! One measured run of one subject, and the numbers that are made of it.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::load::Totals;

/// What one run gave.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Sample {
    /// Length of the window in which CPU, answers and events were counted, in seconds.
    pub seconds: f64,
    /// Right answers in the window.
    pub served: u64,
    /// Events in the window.
    pub events: u64,
    /// Wrong answers in the whole run.
    pub failed: u64,
    /// In which way how many were wrong, and the first of each.
    pub failures: BTreeMap<String, (u64, String)>,
    /// The subject's CPU time in the window, in seconds; none for the subject without a process.
    pub cpu_seconds: Option<f64>,
    /// Resident memory at the end of the window, in KiB.
    pub rss_kib: Option<u64>,
    /// Its peak in the window, in KiB.
    pub peak_kib: Option<u64>,
    /// The generator's CPU time in the window as a share of its threads.
    pub generator_busy: f64,
    /// Share of the machine's CPU time that was idle in the window.
    pub machine_idle: Option<f64>,
    /// Quantiles in microseconds by name; one with too few samples is missing.
    pub quantiles: BTreeMap<String, f64>,
    /// Times noted, by kind.
    pub counts: BTreeMap<String, u64>,
}

/// The quantiles of each kind of time.
const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)];

impl Sample {
    /// Takes in the times and the failures of a load.
    pub fn take(&mut self, totals: &Totals) {
        self.failed = totals.failed;
        let of = |(label, counted): (&&'static str, &(u64, String))| ((*label).to_owned(), counted.clone());
        self.failures = totals.failures.iter().map(of).collect();
        for (kind, times) in [("ttft", &totals.ttft), ("itl", &totals.itl), ("e2e", &totals.e2e)] {
            self.counts.insert(kind.to_owned(), times.count());
            for (name, quantile) in QUANTILES {
                if let Some(us) = times.quantile_us(quantile) {
                    self.quantiles.insert(format!("{kind}_{name}"), us);
                }
            }
        }
    }
}

/// A number of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Requests a second.
    Rate,
    /// The subject's CPU time a request, in microseconds.
    CpuRequest,
    /// The subject's CPU time an event, in microseconds.
    CpuEvent,
    /// Cores that the subject used.
    Cores,
    /// End to end, median, in microseconds.
    E2eP50,
    /// End to end, 99 of 100, in microseconds.
    E2eP99,
    /// Over the two legs called in sequence, median, in microseconds.
    AddedP50,
    /// The same of the two p99, in microseconds.
    AddedP99,
    /// To the first event, median, in microseconds.
    TtftP50,
    /// Between two events, 99 of 100, in microseconds.
    ItlP99,
    /// The same over that of the two legs called in sequence, in microseconds.
    AddedItlP99,
    /// Resident memory, in MB of 10^6 bytes.
    Rss,
    /// Its peak.
    PeakRss,
}

impl Metric {
    /// What stands above its column.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Rate => "requests/s",
            Self::CpuRequest => "CPU µs/request",
            Self::CpuEvent => "CPU µs/event",
            Self::Cores => "cores",
            Self::E2eP50 => "E2E p50 µs",
            Self::E2eP99 => "E2E p99 µs",
            Self::AddedP50 => "added p50 µs",
            Self::AddedP99 => "added p99 µs",
            Self::TtftP50 => "TTFT p50 µs",
            Self::ItlP99 => "ITL p99 µs",
            Self::AddedItlP99 => "added ITL p99 µs",
            Self::Rss => "RSS MB",
            Self::PeakRss => "peak RSS MB",
        }
    }

    /// Its value in a run; `direct` is the run of the two legs in sequence in the same turn.
    #[must_use]
    pub fn of(self, sample: &Sample, direct: Option<&Sample>) -> Option<f64> {
        let quantile = |name: &str| sample.quantiles.get(name).copied();
        let added = |name: &str| Some(quantile(name)? - direct?.quantiles.get(name)?);
        let each = |count: u64| (count > 0).then(|| sample.cpu_seconds.map(|cpu| cpu * 1e6 / count as f64));
        let mb = |kib: Option<u64>| kib.map(|kib| kib as f64 * 1024.0 / 1e6);
        match self {
            Self::Rate => Some(sample.served as f64 / sample.seconds),
            Self::CpuRequest => each(sample.served)?,
            Self::CpuEvent => each(sample.events)?,
            Self::Cores => sample.cpu_seconds.map(|cpu| cpu / sample.seconds),
            Self::E2eP50 => quantile("e2e_p50"),
            Self::E2eP99 => quantile("e2e_p99"),
            Self::AddedP50 => added("e2e_p50"),
            Self::AddedP99 => added("e2e_p99"),
            Self::TtftP50 => quantile("ttft_p50"),
            Self::ItlP99 => quantile("itl_p99"),
            Self::AddedItlP99 => added("itl_p99"),
            Self::Rss => mb(sample.rss_kib),
            Self::PeakRss => mb(sample.peak_kib),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Metric, Sample};

    #[test]
    fn cpu_is_divided_by_what_was_served() {
        let sample = Sample { served: 1000, seconds: 2.0, cpu_seconds: Some(0.05), ..Sample::default() };
        assert_eq!(Metric::CpuRequest.of(&sample, None), Some(50.0));
        assert_eq!(Metric::Rate.of(&sample, None), Some(500.0));
        assert_eq!(Metric::CpuEvent.of(&sample, None), None);
    }

    #[test]
    fn added_time_is_over_the_direct_run() {
        let with = |us| Sample { quantiles: [("e2e_p50".to_owned(), us)].into(), ..Sample::default() };
        assert_eq!(Metric::AddedP50.of(&with(90.0), Some(&with(60.0))), Some(30.0));
        assert_eq!(Metric::AddedP50.of(&with(90.0), None), None);
    }
}

//! What histograms took in of late: counts by bucket, as the difference between two looks.

use prometheus::Histogram;
use prometheus::core::Metric;

/// Observations by bucket; those beyond the last bound come last.
#[derive(Clone, Debug, Default)]
pub struct Spread {
    bounds: &'static [f64],
    counts: Vec<u64>,
}

impl Spread {
    /// Takes in another one of the same bounds.
    pub fn add(&mut self, other: &Self) {
        if self.counts.is_empty() {
            *self = other.clone();
            return;
        }
        for (own, other) in self.counts.iter_mut().zip(&other.counts) {
            *own += other;
        }
    }

    /// How many observations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The value below which this share of them lies, 0 to 1, as even within a bucket as Prometheus's
    /// `histogram_quantile` takes it; beyond the last bound it is that bound. None without observations.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "counts of a minute are far below 2^52")]
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let count = self.count();
        let wanted = share * count as f64;
        let (mut before, mut from) = (0.0, 0.0);
        for (bound, inside) in self.bounds.iter().zip(&self.counts) {
            let inside = *inside as f64;
            if inside > 0.0 && before + inside >= wanted {
                return Some(from + (bound - from) * ((wanted - before) / inside).clamp(0.0, 1.0));
            }
            (before, from) = (before + inside, *bound);
        }
        self.bounds.last().copied().filter(|_| count > 0)
    }
}

/// A histogram, and what of it was seen before.
#[derive(Debug)]
pub(super) struct Seen {
    histogram: Histogram,
    bounds: &'static [f64],
    before: Vec<u64>,
}

impl Seen {
    /// What comes from now on to a histogram of these bounds.
    pub(super) fn new(histogram: &Histogram, bounds: &'static [f64]) -> Self {
        let mut seen = Self { histogram: histogram.clone(), bounds, before: Vec::new() };
        seen.before = seen.cumulative();
        seen
    }

    fn cumulative(&self) -> Vec<u64> {
        let metric = self.histogram.metric();
        let histogram = metric.get_histogram();
        let buckets = histogram.get_bucket().iter().take(self.bounds.len());
        buckets
            .map(prometheus::proto::Bucket::cumulative_count)
            .chain([histogram.get_sample_count()])
            .collect()
    }

    /// What came since the last look.
    pub(super) fn fresh(&mut self) -> Spread {
        let now = self.cumulative();
        let grown = now.iter().zip(&self.before).map(|(now, before)| now.saturating_sub(*before));
        let mut below = 0;
        let counts = grown
            .map(|up_to| {
                let inside = up_to.saturating_sub(below);
                below = up_to;
                inside
            })
            .collect();
        self.before = now;
        Spread { bounds: self.bounds, counts }
    }
}

#[cfg(test)]
mod tests {
    use prometheus::HistogramOpts;

    use super::*;

    const BOUNDS: &[f64] = &[1.0, 2.0, 4.0];

    fn seen() -> (Histogram, Seen) {
        let histogram = Histogram::with_opts(HistogramOpts::new("a", "b").buckets(BOUNDS.to_vec())).unwrap();
        histogram.observe(1.5);
        let seen = Seen::new(&histogram, BOUNDS);
        (histogram, seen)
    }

    #[test]
    fn only_what_came_since_the_last_look_counts() {
        let (histogram, mut seen) = seen();
        assert_eq!((seen.fresh().count(), seen.fresh().quantile(0.5)), (0, None));
        for value in [0.5, 1.5, 1.6, 3.0, 9.0] {
            histogram.observe(value);
        }
        let mut spread = seen.fresh();
        assert_eq!(spread.counts, [1, 2, 1, 1]);
        assert_eq!(seen.fresh().counts, [0, 0, 0, 0]);
        histogram.observe(0.1);
        spread.add(&seen.fresh());
        assert_eq!(spread.counts, [2, 2, 1, 1]);
        let mut fresh = Spread::default();
        fresh.add(&spread);
        assert_eq!(fresh.count(), 6);
    }

    #[test]
    fn quantiles_are_those_of_prometheus() {
        let (histogram, mut seen) = seen();
        for value in [0.5, 0.5, 1.5, 1.5] {
            histogram.observe(value);
        }
        let spread = seen.fresh();
        assert_eq!(spread.quantile(0.25), Some(0.5));
        assert_eq!(spread.quantile(0.5), Some(1.0));
        assert_eq!(spread.quantile(1.0), Some(2.0));
        assert_eq!(spread.quantile(0.0), Some(0.0));
        histogram.observe(100.0);
        assert_eq!(seen.fresh().quantile(0.99), Some(4.0), "nothing is known beyond the last bound");
    }
}

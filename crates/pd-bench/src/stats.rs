//! Medians, spreads and quantiles, and when there are too few samples for one.

use hdrhistogram::Histogram;

/// Samples that have to lie beyond a quantile for it to be printed.
const BEYOND_MIN: f64 = 10.0;

/// The longest time that a histogram holds, in nanoseconds.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// What repeats gave: the median and the range.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Spread {
    /// The middle one; of an even number the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The most.
    pub max: f64,
}

impl Spread {
    /// Of these values; none of no values.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let (low, high) = (values.get((values.len() - 1) / 2)?, values.get(values.len() / 2)?);
        Some(Self { median: (low + high) / 2.0, min, max })
    }
}

/// Times of one kind, kept to three digits.
#[derive(Clone, Debug)]
pub struct Times(Histogram<u64>);

impl Default for Times {
    #[allow(clippy::expect_used, reason = "constant bounds that the crate documents as valid")]
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("valid bounds"))
    }
}

impl Times {
    /// Notes one time.
    pub fn note(&mut self, time: std::time::Duration) {
        self.0.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(LONGEST_NS).max(1));
    }

    /// Takes in what another has noted.
    pub fn add(&mut self, other: &Self) {
        // Both have the same bounds.
        self.0.add(&other.0).ok();
    }

    /// How many were noted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// A quantile in microseconds; none where fewer than ten samples lie beyond it.
    #[must_use]
    pub fn quantile_us(&self, quantile: f64) -> Option<f64> {
        let beyond = self.0.len() as f64 * (1.0 - quantile);
        // A hair less, for quantiles that no binary number is.
        (beyond + 1e-6 >= BEYOND_MIN).then(|| self.0.value_at_quantile(quantile) as f64 / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Spread, Times};

    #[test]
    fn the_median_is_the_middle() {
        let spread = Spread::of([3.0, 1.0, 2.0]).unwrap();
        assert_eq!((spread.median, spread.min, spread.max), (2.0, 1.0, 3.0));
        assert_eq!(Spread::of([4.0, 1.0]).unwrap().median, 2.5);
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([f64::NAN]), None);
    }

    #[test]
    fn quantiles_are_within_a_thousandth() {
        let mut times = Times::default();
        (1..=10_000).for_each(|us| times.note(Duration::from_micros(us)));
        let near = |quantile: f64, want: f64| {
            let got = times.quantile_us(quantile).unwrap();
            assert!((got / want - 1.0).abs() < 0.002, "{got} for {want}");
        };
        near(0.5, 5000.0);
        near(0.99, 9900.0);
    }

    #[test]
    fn too_few_samples_give_no_quantile() {
        let mut times = Times::default();
        (0..999).for_each(|_| times.note(Duration::from_micros(5)));
        assert!(times.quantile_us(0.5).is_some());
        assert_eq!(times.quantile_us(0.99), None);
        times.note(Duration::from_micros(5));
        assert!(times.quantile_us(0.99).is_some());
        assert_eq!(times.quantile_us(0.999), None);
    }

    #[test]
    fn histograms_add_up() {
        let (mut one, mut two) = (Times::default(), Times::default());
        one.note(Duration::from_secs(1));
        two.note(Duration::from_secs(2));
        one.add(&two);
        assert_eq!(one.count(), 2);
    }
}

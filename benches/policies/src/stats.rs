//! What a run has shown, as the numbers of a row.

use std::time::Duration;

use crate::bed::ENGINES;

/// What is noted of one request.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Those that the prefill engine had.
    pub cached_tokens: usize,
    /// The place of its prefill engine.
    pub prefill: usize,
    /// The place of its decode engine.
    pub decode: usize,
    /// Time to first token.
    pub ttft: Duration,
    /// Mean time between tokens after the first one.
    pub tpot: Duration,
}

/// The numbers of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stats {
    /// Share of all prompt tokens that did not have to be computed.
    pub hit_rate: f64,
    /// Median time to first token.
    pub ttft_p50: Duration,
    /// Time to first token, 99th percentile.
    pub ttft_p99: Duration,
    /// Mean time between the tokens of a request, 99th percentile of requests.
    pub tpot_p99: Duration,
    /// Requests of the prefill engine that had most, over the mean.
    pub prefill_spread: f64,
    /// Requests of the decode engine that had most, over the mean.
    pub decode_spread: f64,
}

impl Stats {
    /// Of these requests.
    #[must_use]
    pub fn of(samples: &[Sample]) -> Self {
        let sum = |what: fn(&Sample) -> usize| samples.iter().map(what).sum::<usize>() as f64;
        let sorted = |what: fn(&Sample) -> Duration| {
            let mut all: Vec<Duration> = samples.iter().map(what).collect();
            all.sort_unstable();
            all
        };
        let ttft = sorted(|one| one.ttft);
        Self {
            hit_rate: sum(|one| one.cached_tokens) / sum(|one| one.prompt_tokens).max(1.0),
            ttft_p50: percentile(&ttft, 50),
            ttft_p99: percentile(&ttft, 99),
            tpot_p99: percentile(&sorted(|one| one.tpot), 99),
            prefill_spread: spread(samples.iter().map(|one| one.prefill)),
            decode_spread: spread(samples.iter().map(|one| one.decode)),
        }
    }
}

/// The smallest that at least `percent` of a hundred do not exceed.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

fn spread(places: impl Iterator<Item = usize>) -> f64 {
    let mut counts = [0_usize; ENGINES];
    for place in places {
        if let Some(count) = counts.get_mut(place) {
            *count += 1;
        }
    }
    let mean = counts.iter().sum::<usize>() as f64 / ENGINES as f64;
    counts.iter().max().copied().unwrap_or_default() as f64 / mean.max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let hundred: Vec<Duration> = (1..=100).map(Duration::from_millis).collect();
        assert_eq!(percentile(&hundred, 50), Duration::from_millis(50));
        assert_eq!(percentile(&hundred, 99), Duration::from_millis(99));
        assert_eq!(percentile(&hundred[..1], 99), Duration::from_millis(1));
        assert_eq!(percentile(&[], 50), Duration::ZERO);
    }

    #[test]
    fn spread_is_the_most_over_the_mean() {
        assert!((spread([0, 1, 2, 3].into_iter()) - 1.0).abs() < 1e-9);
        assert!((spread([0, 0, 0, 1].into_iter()) - 3.0).abs() < 1e-9);
    }
}

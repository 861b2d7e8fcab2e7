//! The works of the comparison: which requests, how many at once, and what is printed of them.

use std::time::Duration;

use crate::api::{Api, Ask, Prompt};
use crate::load::Loop;
use crate::sample::Metric;

/// One row of the comparison.
#[derive(Clone, Debug)]
pub struct Work {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What it is.
    pub title: &'static str,
    /// The requests.
    pub ask: Ask,
    /// How they come.
    pub how: Loop,
    /// Engines a pool.
    pub engines: usize,
    /// Times the usual length of a window: long streams need longer ones.
    pub longer: u32,
    /// What is printed.
    pub metrics: &'static [Metric],
}

const fn closed(clients: usize) -> Loop {
    Loop::Closed { clients, ramp: Duration::ZERO }
}

const fn ramped(clients: usize, seconds: u64) -> Loop {
    Loop::Closed { clients, ramp: Duration::from_secs(seconds) }
}

const fn ask(api: Api, prompt: Prompt, tokens: u64) -> Ask {
    Ask { api, prompt, tokens, stream: false, interval_ms: 0 }
}

const fn stream(tokens: u64, interval_ms: u64) -> Ask {
    Ask { api: Api::Completions, prompt: SMALL, tokens, stream: true, interval_ms }
}

/// About 200 bytes of body.
const SMALL: Prompt = Prompt::Text(100);
const SMALL_ASK: Ask = ask(Api::Completions, SMALL, 16);

const LATENCY: &[Metric] =
    &[Metric::AddedP50, Metric::AddedP99, Metric::E2eP50, Metric::CpuRequest, Metric::Rate];
const LOADED: &[Metric] = &[Metric::CpuRequest, Metric::Rate, Metric::Cores, Metric::E2eP99, Metric::Rss];
const LARGE: &[Metric] = &[Metric::CpuRequest, Metric::Rate, Metric::PeakRss, Metric::E2eP50];
const BURST: &[Metric] = &[Metric::CpuEvent, Metric::CpuRequest, Metric::Cores, Metric::TtftP50];
const SLOW: &[Metric] = &[Metric::CpuEvent, Metric::AddedItlP99, Metric::ItlP99, Metric::Cores, Metric::Rss];

/// Every work.
#[must_use]
pub fn all() -> Vec<Work> {
    let work =
        |name, title, ask, how, metrics| Work { name, title, ask, how, engines: 2, longer: 1, metrics };
    vec![
        work("small-1", "small completion (200 B, 16 tokens), 1 client", SMALL_ASK, closed(1), LATENCY),
        work("small-64", "small completion, 64 clients", SMALL_ASK, closed(64), LOADED),
        work(
            "ids-16k",
            "/inference/v1/generate, 16,384 token ids, 16 clients",
            ask(Api::Generate, Prompt::Ids(16_384), 16),
            closed(16),
            LARGE,
        ),
        work(
            "text-4m",
            "completion, 4 MiB prompt, 4 clients",
            ask(Api::Completions, Prompt::Text(4 << 20), 16),
            closed(4),
            LARGE,
        ),
        work(
            "burst",
            "streams of 1,000 events as fast as they go, 16 clients",
            stream(1000, 0),
            closed(16),
            BURST,
        ),
        Work {
            longer: 2,
            ..work("slow-512", "512 streams, 20 ms between events", stream(100, 20), ramped(512, 1), SLOW)
        },
        Work {
            longer: 4,
            ..work("slow-2000", "2,000 streams, 1 event/s", stream(20, 1000), ramped(2000, 2), SLOW)
        },
        Work {
            longer: 4,
            ..work("slow-8000", "8,000 streams, 1 event/s", stream(20, 1000), ramped(8000, 8), SLOW)
        },
        Work {
            engines: 16,
            ..work(
                "engines-16",
                "small completion, 64 clients, 16 engines a pool",
                SMALL_ASK,
                closed(64),
                LOADED,
            )
        },
        work("small-2000", "small completion, 2,000 clients", SMALL_ASK, ramped(2000, 1), LOADED),
        work("small-8000", "small completion, 8,000 clients", SMALL_ASK, ramped(8000, 2), LOADED),
    ]
}

#[cfg(test)]
mod tests {
    use super::all;
    use crate::api::Bodies;

    #[test]
    fn bodies_have_the_sizes_that_titles_say() {
        let bytes = |name| {
            let work = all().into_iter().find(|work| work.name == name).unwrap();
            Bodies::of(&work.ask).bytes()
        };
        assert!((180..240).contains(&bytes("small-1")), "{}", bytes("small-1"));
        assert!((90_000..115_000).contains(&bytes("ids-16k")), "{}", bytes("ids-16k"));
        assert!((4_190_000..4_200_000).contains(&bytes("text-4m")), "{}", bytes("text-4m"));
    }
}

//! Status codes as a label of few values.

use prometheus::{IntCounter, IntCounterVec};

/// The codes that have a value of their own: those that vLLM and this router answer with. 499 stands for a
/// client that left before it was answered.
const KNOWN: [u16; 21] =
    [200, 201, 202, 204, 400, 401, 403, 404, 405, 408, 409, 413, 415, 422, 429, 499, 500, 501, 502, 503, 504];

/// The values for the rest.
const REST: [&str; 5] = ["other_2xx", "other_3xx", "other_4xx", "other_5xx", "other"];

/// The label's value for a request that got no status.
pub const NONE: u16 = 499;

/// One counter a value.
#[derive(Debug)]
pub struct Codes {
    known: Vec<IntCounter>,
    rest: Vec<IntCounter>,
}

impl Codes {
    /// The counters of this family; from now on its series exist.
    #[must_use]
    pub fn new(family: &IntCounterVec) -> Self {
        Self {
            known: KNOWN.iter().map(|code| family.with_label_values(&[code.to_string()])).collect(),
            rest: REST.iter().map(|class| family.with_label_values(&[class])).collect(),
        }
    }

    /// Counts an answer.
    pub fn count(&self, code: u16) {
        let counter = match KNOWN.binary_search(&code) {
            Ok(place) => self.known.get(place),
            Err(_) => self.rest.get(match code {
                200..=299 => 0,
                300..=399 => 1,
                400..=499 => 2,
                500..=599 => 3,
                _ => 4,
            }),
        };
        if let Some(counter) = counter {
            counter.inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Opts;

    use super::*;

    #[test]
    fn every_code_has_a_value_and_there_are_few() {
        assert!(KNOWN.is_sorted());
        let family = IntCounterVec::new(Opts::new("a", "b"), &["code"]).unwrap();
        let codes = Codes::new(&family);
        for code in 0..=u16::MAX {
            codes.count(code);
        }
        let of = |value: &str| family.with_label_values(&[value]).get();
        assert_eq!((of("200"), of("418"), of("other_4xx"), of("other_2xx")), (1, 0, 100 - 12, 100 - 4));
        let all: u64 = KNOWN.iter().map(|code| of(&code.to_string())).chain(REST.map(of)).sum();
        assert_eq!(all, u64::from(u16::MAX) + 1);
    }
}

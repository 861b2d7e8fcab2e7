//! Counted against committed.

use std::fmt;

use serde_json::{Map, Value};

/// How far over the committed number a count may be, in percent.
const MORE: u64 = 5;
/// How far under it may be before the committed number should follow, in percent.
const LESS: u64 = 5;

/// One line of the table.
#[derive(Debug)]
pub(crate) struct Row {
    name: String,
    counted: u64,
    committed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Within,
    Over,
    Under,
}

impl Row {
    pub(crate) fn verdict(&self) -> Verdict {
        if self.counted * 100 > self.committed * (100 + MORE) {
            return Verdict::Over;
        }
        if self.counted * 100 < self.committed * (100 - LESS) {
            return Verdict::Under;
        }
        Verdict::Within
    }
}

impl fmt::Display for Row {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let change = (self.counted as f64 / self.committed as f64 - 1.0) * 100.0;
        let word = match self.verdict() {
            Verdict::Within => "ok",
            Verdict::Over => "OVER: find what grew, or commit a new number with the reason",
            Verdict::Under => "ok, and the committed number can come down",
        };
        write!(
            out,
            "{:<32} {:>9} instructions, committed {:>9} ({change:+.1} %): {word}",
            self.name, self.counted, self.committed
        )
    }
}

/// The file of committed numbers.
pub(crate) fn document(counted: &[(&str, u64)]) -> String {
    let numbers: Map<String, Value> =
        counted.iter().map(|(name, each)| ((*name).to_owned(), (*each).into())).collect();
    format!("{:#}\n", Value::Object(numbers))
}

/// Each count beside its committed number.
pub(crate) fn rows(counted: &[(&str, u64)], baseline: &str) -> Result<Vec<Row>, String> {
    let numbers: Map<String, Value> =
        serde_json::from_str(baseline).map_err(|error| format!("the committed numbers: {error}"))?;
    let row = |(name, each): &(&str, u64)| {
        let committed = numbers.get(*name).and_then(Value::as_u64).filter(|number| *number > 0);
        let committed =
            committed.ok_or_else(|| format!("no committed number for \"{name}\"; --write adds it"))?;
        Ok(Row { name: (*name).to_owned(), counted: *each, committed })
    };
    counted.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::{Verdict, document, rows};

    fn verdict(counted: u64) -> Verdict {
        rows(&[("a", counted)], "{\"a\": 1000}").unwrap()[0].verdict()
    }

    #[test]
    fn five_percent_more_is_the_limit() {
        assert_eq!(verdict(1050), Verdict::Within);
        assert_eq!(verdict(1051), Verdict::Over);
        assert_eq!(verdict(949), Verdict::Under);
    }

    #[test]
    fn a_count_without_a_committed_number_is_an_error() {
        assert!(rows(&[("b", 1)], "{\"a\": 1000}").unwrap_err().contains("--write"));
    }

    #[test]
    fn what_is_written_can_be_read() {
        let counted = [("a", 12), ("b", 7)];
        assert!(
            rows(&counted, &document(&counted)).unwrap().iter().all(|row| row.verdict() == Verdict::Within)
        );
    }
}

//! What the client sees of an answer, measured frame by frame in the request's own memory: when tokens came
//! and how many.

use std::sync::Arc;
use std::time::{Duration, Instant};

use memchr::memmem;
use prometheus::local::LocalHistogram;

use super::engine::EngineMetrics;
use super::usage::{Usage, UsageScanner};

/// The longest part of an event that is kept to know whether it brings a token.
const CUT_MAX: usize = 4096;

/// Where a stream of events stands after a frame.
#[derive(Clone, Copy, Debug, Default)]
pub struct Events {
    /// Events with data that were complete so far.
    pub data: u64,
    /// Those of them that may bring a token: no end mark, no error, no frame of a typed stream.
    pub tokens: u64,
    /// Whether it stands between two events.
    pub between: bool,
}

/// The measure of one answer.
#[derive(Debug, Default)]
pub struct Meter {
    usage: UsageScanner,
    seen: u64,
    tokens: u64,
    first_event: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    gaps: Option<LocalHistogram>,
    cut: Vec<u8>,
}

impl Meter {
    /// Measures the stream of this engine from now on; what was seen of another one's events is no part of it.
    pub fn begin(&mut self, engine: &Arc<EngineMetrics>) {
        self.gaps = engine.inter_token_seconds.as_ref().map(prometheus::Histogram::local);
        (self.seen, self.first_event) = (0, None);
        self.cut.clear();
    }

    /// Takes a frame of an answer that is no stream.
    pub fn part(&mut self, data: &[u8]) {
        self.usage.feed(data);
    }

    /// Takes a frame of a stream, and where the stream stands behind it.
    pub fn frame(&mut self, data: &[u8], events: Events, now: Instant) {
        let counted = self.usage.feed(data);
        if events.data > 0 && self.first_event.is_none() {
            self.first_event = Some(now);
        }
        let mut fresh = events.tokens.saturating_sub(self.seen);
        self.seen = events.tokens;
        if self.tokens == 0 {
            fresh = fresh.saturating_sub(self.without_content(data, events.between));
        }
        if counted && memmem::find(data, b"\"choices\":[]").is_some() {
            // The event of the token counts alone.
            fresh = fresh.saturating_sub(1);
        }
        if fresh > 0 {
            self.came(fresh, now);
        }
    }

    /// Tokens came: the first after a gap, others of the same frame with it.
    fn came(&mut self, fresh: u64, now: Instant) {
        let gap = self.last_token.replace(now).map(|last| now.saturating_duration_since(last));
        self.first_token.get_or_insert(now);
        self.tokens += fresh;
        if let Some(gaps) = &self.gaps {
            if let Some(gap) = gap {
                gaps.observe(gap.as_secs_f64());
            }
            (1..fresh).for_each(|_| gaps.observe(0.0));
        }
    }

    /// How many of the events that this frame completes say only who speaks. Asked until the first token, so
    /// that an event which comes in parts can be put together.
    fn without_content(&mut self, data: &[u8], between: bool) -> u64 {
        let whole = if self.cut.is_empty() {
            data
        } else {
            self.cut.extend_from_slice(data.get(..CUT_MAX.min(data.len())).unwrap_or_default());
            &self.cut
        };
        let empty = roles_alone(whole);
        if between {
            self.cut.clear();
        } else {
            let open = memmem::rfind(whole, b"\n\n").map_or(0, |end| end + 2);
            let rest = whole.get(open..).unwrap_or_default();
            self.cut = rest.get(..CUT_MAX.min(rest.len())).unwrap_or_default().to_vec();
        }
        empty
    }

    /// Hands the gaps over to their family.
    pub fn flush(&mut self) {
        self.gaps = None;
    }

    /// The counts that the answer says, or those of its events.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let said = self.usage.usage();
        let counted = (self.tokens > 0).then_some(self.tokens);
        Usage { prompt: said.prompt, generated: said.generated.or(counted) }
    }

    /// When the first event came.
    #[must_use]
    pub const fn first_event(&self) -> Option<Instant> {
        self.first_event
    }

    /// When the first event with content came.
    #[must_use]
    pub const fn first_token(&self) -> Option<Instant> {
        self.first_token
    }

    /// The mean time of a token after the first, where two or more were `generated`.
    #[must_use]
    pub fn per_token(&self, generated: Option<u64>) -> Option<Duration> {
        let all = self.last_token?.saturating_duration_since(self.first_token?);
        let after_first = generated?.checked_sub(1).filter(|count| *count > 0)?;
        u32::try_from(after_first).ok().map(|count| all / count)
    }
}

/// How many whole events of this text name a role and bring no content.
fn roles_alone(text: &[u8]) -> u64 {
    let mut rest = text;
    let mut alone = 0;
    while let Some(end) = memmem::find(rest, b"\n\n") {
        let (event, after) = rest.split_at(end);
        alone += u64::from(memmem::find(event, b"\"role\":").is_some() && !has_content(event));
        rest = after.get(2..).unwrap_or_default();
    }
    alone
}

/// Whether a member that carries content is neither empty nor null.
fn has_content(event: &[u8]) -> bool {
    const STRINGS: [&[u8]; 4] = [b"\"content\":", b"\"reasoning_content\":", b"\"reasoning\":", b"\"text\":"];
    let full = |name: &[u8]| {
        let value = memmem::find(event, name).and_then(|at| event.get(at + name.len()..));
        let value = value.map(<[u8]>::trim_ascii_start).and_then(|value| value.strip_prefix(b"\""));
        value.is_some_and(|value| !value.starts_with(b"\""))
    };
    STRINGS.into_iter().any(full) || memmem::find(event, b"\"tool_calls\":[{").is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROLE: &str = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
    const TOKEN: &str = "data: {\"choices\":[{\"delta\":{\"content\":\" a\"}}]}\n\n";
    const COUNTS: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":2}}\n\n";

    /// Feeds text in parts; an event counts with the part that ends it, `ms` after the start.
    fn fed(parts: &[(&str, u64)]) -> (Meter, Instant) {
        let (mut meter, start, mut text) = (Meter::default(), Instant::now(), String::new());
        for (part, ms) in parts {
            text.push_str(part);
            let tokens = text.matches("\n\n").count() as u64;
            let between = text.ends_with("\n\n");
            let events = Events { data: tokens, tokens, between };
            meter.frame(part.as_bytes(), events, start + Duration::from_millis(*ms));
        }
        (meter, start)
    }

    fn first_token(parts: &[(&str, u64)]) -> Option<u64> {
        let (meter, start) = fed(parts);
        meter.first_token().map(|at| (at - start).as_millis().try_into().unwrap())
    }

    #[test]
    fn the_first_token_is_not_the_role() {
        let role_and_token = format!("{ROLE}{TOKEN}");
        let speaks_at_once =
            "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"Hi\"}}]}\n\n";
        assert_eq!(first_token(&[(ROLE, 1)]), None);
        assert_eq!(first_token(&[(ROLE, 1), (TOKEN, 5)]), Some(5));
        assert_eq!(first_token(&[(&role_and_token, 3), (TOKEN, 5)]), Some(3));
        assert_eq!(first_token(&[(speaks_at_once, 1), (TOKEN, 5)]), Some(1));
        for cut in 1..role_and_token.len() - 1 {
            let (a, b) = role_and_token.split_at(cut);
            let expected = if cut < role_and_token.len() { Some(2) } else { Some(1) };
            assert_eq!(first_token(&[(a, 1), (b, 2)]), expected, "cut at {cut}");
        }
    }

    #[test]
    fn tokens_are_the_answers_own_count_or_its_events() {
        let (meter, _) = fed(&[(ROLE, 1), (TOKEN, 2), (TOKEN, 4), (TOKEN, 6)]);
        assert_eq!(meter.usage(), Usage { prompt: None, generated: Some(3) });
        assert_eq!(meter.per_token(meter.usage().generated), Some(Duration::from_millis(2)));
        let (meter, _) = fed(&[(ROLE, 1), (TOKEN, 2), (TOKEN, 4), (COUNTS, 9)]);
        assert_eq!(meter.usage(), Usage { prompt: Some(4), generated: Some(2) });
        assert_eq!(meter.per_token(meter.usage().generated), Some(Duration::from_millis(2)));
    }
}

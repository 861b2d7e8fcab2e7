//! An incremental scanner of Server-Sent Events: it looks at bytes in passing and keeps none but the start
//! of the current line.
//!
//! Line ends are LF, CR LF or CR, and an empty line ends an event (WHATWG HTML, section 9.2.6).

/// As much of a line as is kept to know what it is; the longest event name of the Responses API fits.
const LINE_START: usize = 64;

/// The lines that end a stream: of the OpenAI, Messages and Responses APIs.
const LAST_LINES: [&[u8]; 5] = [
    b"data: [DONE]",
    b"data:[DONE]",
    b"event: message_stop",
    b"event: response.completed",
    b"event: response.incomplete",
];

/// How the lines start with which an engine says in the stream that it failed.
const ERROR_LINES: [&[u8]; 4] =
    [b"data: {\"error\"", b"data:{\"error\"", b"event: error", b"event: response.failed"];

/// The events of typed streams that bring tokens: of the Messages API, and of the Responses API all deltas.
fn is_delta(line: &[u8]) -> bool {
    line == b"event: content_block_delta"
        || (line.starts_with(b"event: response.") && line.ends_with(b".delta"))
}

/// Where a stream of events stands.
#[derive(Clone, Debug)]
pub struct SseScanner {
    line: [u8; LINE_START],
    line_len: usize,
    after_cr: bool,
    in_event: bool,
    has_data: bool,
    no_token: bool,
    data_events: u64,
    token_events: u64,
    done: bool,
    failed: bool,
}

impl Default for SseScanner {
    fn default() -> Self {
        Self {
            line: [0; LINE_START],
            line_len: 0,
            after_cr: false,
            in_event: false,
            has_data: false,
            no_token: false,
            data_events: 0,
            token_events: 0,
            done: false,
            failed: false,
        }
    }
}

impl SseScanner {
    /// Takes the next bytes of the stream, wherever they are cut.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        if self.after_cr && !bytes.is_empty() {
            self.after_cr = false;
            if let Some((b'\n', rest)) = bytes.split_first() {
                bytes = rest;
            }
        }
        while let Some(end) = memchr::memchr2(b'\n', b'\r', bytes) {
            let (line, rest) = bytes.split_at(end);
            self.keep(line);
            self.end_line();
            bytes = match rest {
                [b'\r', b'\n', rest @ ..] => rest,
                [b'\r'] => {
                    self.after_cr = true;
                    &[]
                }
                [_, rest @ ..] => rest,
                [] => &[],
            };
        }
        self.keep(bytes);
    }

    /// Whether the stream stands between two events, or before the first.
    #[must_use]
    pub const fn between_events(&self) -> bool {
        !self.in_event && self.line_len == 0
    }

    /// How many events with a `data` line were complete so far, `[DONE]` included.
    #[must_use]
    pub const fn data_events(&self) -> u64 {
        self.data_events
    }

    /// How many events with data were complete so far that may bring a token: no end mark, no error, and of a
    /// typed stream only its deltas.
    #[must_use]
    pub const fn token_events(&self) -> u64 {
        self.token_events
    }

    /// Whether the line has come that ends a stream.
    #[must_use]
    pub const fn done(&self) -> bool {
        self.done
    }

    /// Whether the engine said in the stream that it failed.
    #[must_use]
    pub const fn failed(&self) -> bool {
        self.failed
    }

    fn keep(&mut self, part: &[u8]) {
        if let Some(room) = self.line.get_mut(self.line_len..) {
            let len = room.len().min(part.len());
            if let (Some(room), Some(part)) = (room.get_mut(..len), part.get(..len)) {
                room.copy_from_slice(part);
            }
        }
        self.line_len = self.line_len.saturating_add(part.len());
    }

    fn end_line(&mut self) {
        let line = self.line.get(..self.line_len.min(LINE_START)).unwrap_or_default();
        if self.line_len == 0 {
            self.data_events += u64::from(self.has_data);
            self.token_events += u64::from(self.has_data && !self.no_token);
            self.in_event = false;
            self.has_data = false;
            self.no_token = false;
        } else {
            let last = LAST_LINES.contains(&line);
            let failed = ERROR_LINES.iter().any(|start| line.starts_with(start));
            self.in_event = true;
            self.has_data |= line.starts_with(b"data:") || line == b"data";
            self.no_token |= last || failed || (line.starts_with(b"event:") && !is_delta(line));
            self.done |= last;
            self.failed |= failed;
        }
        self.line_len = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn scan(parts: &[&[u8]]) -> SseScanner {
        let mut scanner = SseScanner::default();
        for part in parts {
            scanner.feed(part);
        }
        scanner
    }

    #[test]
    fn every_kind_of_line_end_ends_an_event() {
        for stream in ["data: a\n\n", "data: a\r\n\r\n", "data: a\r\r", ": c\ndata: a\ndata: b\r\n\n"] {
            let scanner = scan(&[stream.as_bytes()]);
            assert!(scanner.between_events(), "{stream:?}");
            assert_eq!(scanner.data_events(), 1, "{stream:?}");
        }
    }

    #[test]
    fn inside_an_event_is_not_between() {
        for stream in ["d", "data: a", "data: a\n", "data: a\r\n", "data: a\n\ndata: b\n", ": comment\n"] {
            assert!(!scan(&[stream.as_bytes()]).between_events(), "{stream:?}");
        }
        assert!(scan(&[]).between_events());
    }

    #[test]
    fn the_end_mark_is_seen_across_cuts() {
        assert!(scan(&[b"data: [DO", b"NE]\n\n"]).done());
        assert!(!scan(&[b"data: [DONE]"]).done());
        assert!(!scan(&[b"data: x[DONE]\n\n"]).done());
        assert!(scan(&[b"data: {\"error\": {}}\n\n"]).failed());
        assert!(!scan(&[b"data: {\"id\":1,\"error\":2}\n\n"]).failed());
        assert_eq!(scan(&[b": ping\n\n", b"event: x\n\n"]).data_events(), 0);
    }

    #[test]
    fn tokens_come_in_some_events_only() {
        for (stream, tokens) in [
            ("data: {\"a\":1}\n\ndata: [DONE]\n\n", 1),
            (": ping\n\ndata: {\"error\":{}}\n\n", 0),
            (
                "event: message_start\ndata: {}\n\nevent: content_block_delta\ndata: {}\n\nevent: message_delta\ndata: {}\n\n",
                1,
            ),
            ("event: response.created\ndata: {}\n\nevent: response.output_text.delta\ndata: {}\n\n", 1),
            (
                "event: response.function_call_arguments.delta\ndata: {}\n\nevent: response.output_text.done\ndata: {}\n\n",
                1,
            ),
        ] {
            assert_eq!(scan(&[stream.as_bytes()]).token_events(), tokens, "{stream:?}");
        }
    }

    proptest! {
        #[test]
        fn cuts_change_nothing(stream in "(data: [a-c]{0,3}|: x|\\[DONE\\]|\n|\r|\r\n){0,12}", cuts in proptest::collection::vec(0usize..80, 0..6)) {
            let whole = scan(&[stream.as_bytes()]);
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(stream.len())).collect();
            cuts.sort_unstable();
            let mut scanner = SseScanner::default();
            let mut at = 0;
            for cut in cuts {
                scanner.feed(&stream.as_bytes()[at..cut]);
                at = cut;
            }
            scanner.feed(&stream.as_bytes()[at..]);
            prop_assert_eq!(scanner.between_events(), whole.between_events());
            prop_assert_eq!(scanner.data_events(), whole.data_events());
            prop_assert_eq!(scanner.token_events(), whole.token_events());
            prop_assert_eq!(scanner.done(), whole.done());
        }
    }
}

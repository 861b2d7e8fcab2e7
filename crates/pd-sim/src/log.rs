//! What an engine was asked, in order; the oldest go when there are too many.

use std::collections::VecDeque;
use std::time::Instant;

use bytes::Bytes;
use http::HeaderMap;
use http::request::Parts;

/// One request as it came.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// A number of its own.
    pub id: u64,
    /// Its method.
    pub method: String,
    /// Its path, without the query.
    pub path: String,
    /// Its query.
    pub query: Option<String>,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
    /// When it had come whole.
    pub started: Instant,
    /// When it ended, in whatever way.
    pub finished: Option<Instant>,
    /// Whether its client left before the end.
    pub closed_early: bool,
    /// The status that it was answered with.
    pub status: Option<u16>,
}

/// A bounded list of them.
#[derive(Debug, Default)]
pub(crate) struct Log {
    next: u64,
    kept: VecDeque<Recorded>,
}

impl Log {
    pub(crate) fn begin(&mut self, parts: &Parts, body: &Bytes, most: usize) -> u64 {
        self.next += 1;
        if self.kept.len() >= most {
            self.kept.pop_front();
        }
        self.kept.push_back(Recorded {
            id: self.next,
            method: parts.method.to_string(),
            path: parts.uri.path().to_owned(),
            query: parts.uri.query().map(str::to_owned),
            headers: parts.headers.clone(),
            body: body.clone(),
            started: Instant::now(),
            finished: None,
            closed_early: false,
            status: None,
        });
        self.next
    }

    pub(crate) fn change(&mut self, id: u64, change: impl FnOnce(&mut Recorded)) {
        // GETs are not kept; their number is 0.
        if id == 0 {
            return;
        }
        if let Some(found) = self.kept.iter_mut().rev().find(|recorded| recorded.id == id) {
            change(found);
        }
    }

    pub(crate) fn all(&self) -> Vec<Recorded> {
        self.kept.iter().cloned().collect()
    }

    pub(crate) fn clear(&mut self) {
        self.kept.clear();
    }
}

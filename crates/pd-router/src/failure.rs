//! What can go wrong with a request, as data: decided where it is known, turned into a status in `respond`.

use std::borrow::Cow;

use crate::ids::{Leg, Role};
use crate::request::scan::ScanError;

/// A request that gets no engine's answer, and why.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The body is no JSON object that the router can read.
    Body(ScanError),
    /// The body ended before its announced length, or the client's framing broke.
    BodyCut,
    /// The body is longer than the limit, in bytes.
    BodyTooLarge {
        /// The limit, in bytes.
        limit: usize,
    },
    /// The body is compressed.
    BodyCompressed,
    /// The body did not arrive in time.
    BodySlow {
        /// The limit, in seconds.
        seconds: u64,
    },
    /// All buffered bodies together have reached their limit.
    BuffersFull,
    /// As many requests are in flight and as many wait as may.
    QueueFull,
    /// No slot became free in time.
    QueueSlow {
        /// The limit, in seconds.
        seconds: u64,
    },
    /// As many connections are open as the descriptor limit allows.
    ConnectionsFull,
    /// The router is about to end.
    Draining,
    /// The admin key is set and was not given.
    WrongAdminKey,
    /// No admin key is set and the request is not from this machine.
    NotLocal,
    /// What describes an engine does not.
    WorkerInvalid(String),
    /// An engine cannot be taken in.
    WorkerRefused(String),
    /// No engine of this URL is in the fleet.
    UnknownWorker,
    /// A query parameter that is needed is not there.
    Query {
        /// Its name.
        name: &'static str,
    },
    /// A query parameter has a value that it does not take.
    QueryValue {
        /// Its name.
        name: &'static str,
        /// What it takes.
        values: &'static str,
    },
    /// No such path.
    UnknownPath,
    /// The path exists, the method does not.
    WrongMethod {
        /// The methods that do.
        allow: &'static str,
    },
    /// The pool of this role has no engine that can serve.
    NoEngine(Role),
    /// Every engine of this role that could serve has as many requests as it may.
    EnginesFull(Role),
    /// Every engine of this role that is up is paused or asleep.
    Resting(Role),
    /// A leg failed.
    Leg(Failure),
}

/// A leg that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Which leg.
    pub leg: Leg,
    /// How.
    pub kind: FailureKind,
}

/// How a leg failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// No connection: refused, unreachable, unknown name, TLS. No byte of the request went out.
    Connect(Cow<'static, str>),
    /// No connection in time. No byte of the request went out.
    ConnectSlow,
    /// The connection ended before the answer's head.
    Reset {
        /// Whether it was an idle one, which the engine may have closed by its own timer.
        reused: bool,
    },
    /// The connection ended within the answer.
    Cut,
    /// No answer in time.
    Slow {
        /// The limit, in seconds.
        seconds: u64,
    },
    /// An answer that no engine gives.
    BadAnswer(&'static str),
    /// A good prefill answer without a usable handoff, where `--missing-handoff error` asks for one.
    MissingHandoff,
    /// A handoff in a transfer mode that the router does not speak.
    TransferMode(String),
}

impl FailureKind {
    /// Whether no byte of the request reached the engine, so that the same request may go to another.
    #[must_use]
    pub const fn nothing_sent(&self) -> bool {
        matches!(self, Self::Connect(_) | Self::ConnectSlow)
    }
}

impl FailureKind {
    /// The word in answers' codes.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Connect(_) => "unreachable",
            Self::ConnectSlow => "connect_timeout",
            Self::MissingHandoff => "missing_handoff",
            Self::Reset { .. } => "reset",
            Self::Cut => "cut",
            Self::Slow { .. } => "timeout",
            Self::BadAnswer(_) => "bad_answer",
            Self::TransferMode(_) => "transfer_mode",
        }
    }

    /// What an operator can be told beyond the word.
    #[must_use]
    pub fn detail(&self) -> Option<String> {
        match self {
            Self::Connect(why) => Some(why.to_string()),
            Self::Reset { reused: true } => Some("on an idle connection".to_owned()),
            Self::Slow { seconds } => Some(format!("no answer within {seconds} s")),
            Self::BadAnswer(why) => Some((*why).to_owned()),
            // The engine's own word.
            Self::TransferMode(mode) => Some(mode.chars().take(64).collect()),
            Self::ConnectSlow | Self::Reset { reused: false } | Self::Cut | Self::MissingHandoff => None,
        }
    }
}

impl Failure {
    /// The `code` of the answer to a request that it ends.
    #[must_use]
    pub fn code(&self) -> String {
        format!("{}_{}", code_word(self.leg), self.kind.as_str())
    }
}

/// How a leg is called in answers' codes.
#[must_use]
pub const fn code_word(leg: Leg) -> &'static str {
    match leg {
        Leg::Prefill => "prefill",
        Leg::Decode => "decode",
        Leg::OneHop => "engine",
    }
}

impl Failure {
    /// A failure of this leg.
    #[must_use]
    pub const fn new(leg: Leg, kind: FailureKind) -> Self {
        Self { leg, kind }
    }
}

impl Failure {
    /// No engine was left to try.
    #[must_use]
    pub const fn unreachable(leg: Leg) -> Self {
        Self::new(leg, FailureKind::Connect(Cow::Borrowed("no engine left to try")))
    }
}

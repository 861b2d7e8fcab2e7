//! The words of the field as types: roles, legs and request ids.

use http::{HeaderMap, HeaderName, HeaderValue};

/// What an engine is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Computes the prompt's KV cache.
    Prefill,
    /// Pulls that cache and generates.
    Decode,
    /// Does both: an engine of a router without prefill and decode pools (`--worker-urls`).
    Regular,
}

impl Role {
    /// The word used in flags, labels and messages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Regular => "regular",
        }
    }
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// One HTTP exchange of a request: which of its exchanges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Leg {
    /// The one-token exchange that computes the KV cache.
    Prefill,
    /// The exchange whose answer the client reads.
    Decode,
    /// The only exchange of a path that needs no handoff.
    OneHop,
}

impl Leg {
    /// The word used in labels and messages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::OneHop => "one-hop",
        }
    }
}

/// Why a request goes whole to one decode engine, without a handoff.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WholeReason {
    /// More than one prompt: the engine would use the first prompt's blocks for all.
    SeveralPrompts,
    /// `n` other than 1, or `best_of`.
    SeveralChoices,
    /// Beam search.
    BeamSearch,
    /// `echo`: decode never ran the prompt.
    Echo,
    /// `prompt_logprobs`: decode never ran the prompt.
    PromptLogprobs,
    /// `background` or `previous_response_id`: what one engine keeps.
    Stateful,
    /// No prefill engine can serve and `--prefill-fallback decode-only` says to go on.
    NoPrefill,
    /// Options that the engine refuses; its own 400 comes back and no prefill is stranded.
    Refused,
    /// A prompt shorter than `--min-prefill-tokens`.
    ShortPrompt,
    /// The chosen decode engine was given all but that many tokens of the prompt before.
    CachedPrompt,
    /// The router has one pool, of engines that do both (`--worker-urls`).
    Regular,
}

impl WholeReason {
    /// Every reason, for metrics that exist from the start.
    pub const ALL: [Self; 11] = [
        Self::SeveralPrompts,
        Self::SeveralChoices,
        Self::BeamSearch,
        Self::Echo,
        Self::PromptLogprobs,
        Self::Stateful,
        Self::NoPrefill,
        Self::Refused,
        Self::ShortPrompt,
        Self::CachedPrompt,
        Self::Regular,
    ];

    /// The metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SeveralPrompts => "several_prompts",
            Self::SeveralChoices => "several_choices",
            Self::BeamSearch => "beam_search",
            Self::Echo => "echo",
            Self::PromptLogprobs => "prompt_logprobs",
            Self::Stateful => "stateful",
            Self::NoPrefill => "no_prefill",
            Self::Refused => "refused",
            Self::ShortPrompt => "short_prompt",
            Self::CachedPrompt => "cached_prompt",
            Self::Regular => "regular",
        }
    }
}

/// Why a prefill answer brought no handoff that a decode engine could use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// None because its one token ended the text: some versions of vLLM give none then.
    Ended,
    /// No `kv_transfer_params`, or null.
    Absent,
    /// Not an object with `do_remote_prefill` true.
    NotRemote,
    /// Block ids that are not a list: kills a decode engine.
    NoBlocks,
    /// No host or no port: kills a decode engine.
    NoAddress,
}

impl Missing {
    /// Every reason, for metrics that exist from the start.
    pub const ALL: [Self; 5] = [Self::Ended, Self::Absent, Self::NotRemote, Self::NoBlocks, Self::NoAddress];

    /// The metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ended => "ended",
            Self::Absent => "absent",
            Self::NotRemote => "not_remote",
            Self::NoBlocks => "no_blocks",
            Self::NoAddress => "no_address",
        }
    }
}

/// A step or the end of a handoff's way: issued = fetched + released + stranded, once all have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandoffEnd {
    /// A prefill engine gave it.
    Issued,
    /// A decode engine was sent it.
    Fetched,
    /// It was given back.
    Released,
    /// Left to its lease: no decode engine was up to give it back through.
    StrandedNoDecode,
    /// Left to its lease: no decode engine could be reached.
    StrandedUnreachable,
    /// Left to its lease: too many wait to be given back.
    StrandedQueueFull,
}

impl HandoffEnd {
    /// Every step, for metrics that exist from the start.
    pub const ALL: [Self; 6] = [
        Self::Issued,
        Self::Fetched,
        Self::Released,
        Self::StrandedNoDecode,
        Self::StrandedUnreachable,
        Self::StrandedQueueFull,
    ];

    /// The metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Issued => "issued",
            Self::Fetched => "fetched",
            Self::Released => "released",
            Self::StrandedNoDecode => "stranded_no_decode",
            Self::StrandedUnreachable => "stranded_unreachable",
            Self::StrandedQueueFull => "stranded_queue_full",
        }
    }
}

/// Why a request was tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryReason {
    /// No connection: refused, unreachable, or not in time.
    Connect,
    /// The connection ended before the answer.
    Reset,
    /// The connection ended within the answer.
    Cut,
    /// No answer in time.
    Slow,
    /// An answer that no engine gives.
    BadAnswer,
    /// A prefill answer without a usable handoff, where that is an error.
    MissingHandoff,
    /// A status that says busy: 429 or 503.
    Busy,
    /// Another status that may go better elsewhere: 408 or one from 500.
    Status,
    /// A stream failed before its first event.
    FirstEvent,
    /// The pool has no engine that can serve, but one that may be back at once.
    NoEngine,
}

impl RetryReason {
    /// Every reason, for metrics that exist from the start.
    pub const ALL: [Self; 10] = [
        Self::Connect,
        Self::Reset,
        Self::Cut,
        Self::Slow,
        Self::BadAnswer,
        Self::MissingHandoff,
        Self::Busy,
        Self::Status,
        Self::FirstEvent,
        Self::NoEngine,
    ];

    /// The metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Reset => "reset",
            Self::Cut => "cut",
            Self::Slow => "timeout",
            Self::BadAnswer => "bad_answer",
            Self::MissingHandoff => "missing_handoff",
            Self::Busy => "busy",
            Self::Status => "status",
            Self::FirstEvent => "first_event",
            Self::NoEngine => "no_engine",
        }
    }
}

/// The longest client request id that is kept, in bytes.
pub const REQUEST_ID_BYTES_MAX: usize = 256;

/// The header that names a request on every leg and in the answer.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The headers that may bring a request's id, the default of `--request-id-headers`; the same as vllm-router's.
pub const REQUEST_ID_HEADERS: [HeaderName; 4] = [
    X_REQUEST_ID,
    HeaderName::from_static("x-correlation-id"),
    HeaderName::from_static("x-trace-id"),
    HeaderName::from_static("request-id"),
];

/// The id of a request: the client's, or a new one. It goes to every leg and comes back to the client; engines
/// before vLLM 0.13 match the two legs by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestId {
    own: HeaderValue,
    shared: bool,
}

impl RequestId {
    /// Takes the client's id from the first of these headers in which it is 1 to [`REQUEST_ID_BYTES_MAX`]
    /// visible ASCII characters, else makes one.
    #[must_use]
    pub fn from_client(headers: &HeaderMap, names: &[HeaderName]) -> Self {
        let good = |name: &HeaderName| headers.get(name).filter(|value| is_good(value.as_bytes()));
        let given = names.iter().find_map(|name| Some((name, good(name)?)));
        given.map_or_else(Self::generate, |(name, value)| Self {
            own: value.clone(),
            shared: name != X_REQUEST_ID,
        })
    }

    /// A new id: `req-` and 32 hexadecimal digits.
    #[must_use]
    pub fn generate() -> Self {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut text = *b"req-00000000000000000000000000000000";
        let random = fastrand::u128(..);
        for (place, byte) in text.iter_mut().skip(4).enumerate() {
            let digit = (random >> (place * 4)) & 0xf;
            *byte = HEX.get(usize::try_from(digit).unwrap_or(0)).copied().unwrap_or(b'0');
        }
        let own = HeaderValue::from_bytes(&text).unwrap_or_else(|_| HeaderValue::from_static("req-0"));
        Self { own, shared: false }
    }

    /// The id for the engines, which want one of each request: a client may send the same correlation or trace
    /// id with many, so those get a dash and 8 hexadecimal digits.
    #[must_use]
    pub fn for_engines(&self) -> HeaderValue {
        if !self.shared {
            return self.own.clone();
        }
        let text = format!("{}-{:08x}", self.as_str(), fastrand::u32(..));
        HeaderValue::from_str(&text).unwrap_or_else(|_| self.own.clone())
    }

    /// The id as a header value.
    #[must_use]
    pub const fn as_header(&self) -> &HeaderValue {
        &self.own
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.own.to_str().unwrap_or("")
    }
}

fn is_good(id: &[u8]) -> bool {
    !id.is_empty() && id.len() <= REQUEST_ID_BYTES_MAX && id.iter().all(u8::is_ascii_graphic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clients_good_id_is_kept_and_a_bad_one_is_replaced() {
        let of = |pairs: &[(&'static str, &str)]| {
            let pair = |(name, value): &(&'static str, &str)| {
                (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
            };
            RequestId::from_client(&pairs.iter().map(pair).collect(), &REQUEST_ID_HEADERS)
        };
        let own = of(&[("x-trace-id", "t"), ("x-request-id", "my-id-42")]);
        assert_eq!((own.as_str(), own.for_engines()), ("my-id-42", HeaderValue::from_static("my-id-42")));
        let long = "x".repeat(257);
        for bad in ["", "a b", &long] {
            assert!(of(&[("x-request-id", bad)]).as_str().starts_with("req-"), "{bad:?}");
            assert_eq!(of(&[("x-request-id", bad), ("request-id", "mine")]).as_str(), "mine");
        }
        let shared = of(&[("x-correlation-id", "c")]);
        assert_eq!(shared.as_str(), "c");
        let engines = [shared.for_engines(), shared.for_engines()];
        assert_ne!(engines[0], engines[1]);
        assert!(engines.iter().all(|id| id.len() == 10 && id.as_bytes().starts_with(b"c-")), "{engines:?}");
        assert_eq!(RequestId::generate().as_str().len(), 36);
        assert_ne!(RequestId::generate(), RequestId::generate());
    }
}

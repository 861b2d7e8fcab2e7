//! The one table of inference APIs: where each one's limits sit, how the prefill body is shaped, which
//! requests one handoff cannot serve, and how a broken stream says so.

use crate::ids::WholeReason;

/// An object of the body that the router looks into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The body itself.
    Top,
    /// `sampling_params`.
    Sampling,
    /// `sampling_params.extra_args`, which the engine merges with the top-level `kv_transfer_params`.
    ExtraArgs,
    /// `vllm_xargs`, which the engine merges likewise.
    Xargs,
}

impl Place {
    /// Every place, outer before inner.
    pub const ALL: [Self; 4] = [Self::Top, Self::Sampling, Self::ExtraArgs, Self::Xargs];

    /// The place that holds this one and the name of the member that is it.
    #[must_use]
    pub const fn parent(self) -> Option<(Self, &'static str)> {
        match self {
            Self::Top => None,
            Self::Sampling => Some((Self::Top, "sampling_params")),
            Self::ExtraArgs => Some((Self::Sampling, "extra_args")),
            Self::Xargs => Some((Self::Top, "vllm_xargs")),
        }
    }
}

/// What happens to one member on its way to the prefill engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Set to this JSON text, added where it is absent.
    Set(&'static str),
    /// Set to this JSON text where it is present.
    SetIfPresent(&'static str),
    /// Left out.
    Cut,
}

/// One edit of the prefill body.
#[derive(Clone, Copy, Debug)]
pub struct Edit {
    /// The object.
    pub place: Place,
    /// The member.
    pub field: &'static str,
    /// What happens to it.
    pub change: Change,
}

/// A test on one member; where it holds, the request goes whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// An array of two or more items that are not numbers.
    SeveralItems,
    /// Present beside this other member, neither being null.
    BesideOther(&'static str),
    /// Neither absent, null nor 1.
    NotOne,
    /// Neither absent nor null.
    NotNull,
    /// Neither absent, null nor false.
    NotFalse,
    /// Neither absent nor null nor a positive integer.
    NotPositive,
    /// Not a positive integer, absence included.
    NotPositiveOrAbsent,
    /// Neither absent nor null nor an integer from 0 to the first of these limits that is set.
    NotUpTo(&'static [&'static str]),
    /// Present and not null while `stream` is not true.
    WithoutStream,
    /// Neither absent nor null nor an object.
    NotObject,
}

/// One rule of the whole plan.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The object.
    pub place: Place,
    /// The member.
    pub field: &'static str,
    /// The test on it.
    pub test: Test,
    /// The reason that is counted.
    pub reason: WholeReason,
}

/// How a stream that breaks between two events tells its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamError {
    /// `data: {"error":…}`, then `data: [DONE]`.
    OpenAi,
    /// The typed `error` event of the Responses API.
    Responses,
    /// The typed `error` event of the Messages API.
    Messages,
}

/// One row of the table.
#[derive(Debug)]
pub struct Api {
    /// The metric label and the `SHAPE` of `--pd-path`.
    pub name: &'static str,
    /// The path that vLLM serves it on.
    pub path: &'static str,
    /// How the prefill body is shaped.
    pub prefill: &'static [Edit],
    /// What goes whole.
    pub whole: &'static [Rule],
    /// The members that make up the prompt, in the order in which the chat template has them.
    pub prompt: &'static [&'static str],
    /// The objects in which the engine looks for a handoff.
    pub side_door: Place,
    /// How a broken stream says so.
    pub stream_error: StreamError,
}

/// The two members in which an engine finds a handoff; a client's own never reach it.
pub const HANDOFF_FIELDS: [&str; 2] = ["kv_transfer_params", "ec_transfer_params"];

/// The members in which a client names its session, the first that is there counts;
/// `session_params.session_id` goes before them.
pub const SESSION_FIELDS: [&str; 4] = ["session_id", "user", "user_id", "prompt_cache_key"];

/// The object that holds a `session_id` of its own.
pub const SESSION_PARAMS: &str = "session_params";

/// The members that make equal prompts have different KV caches.
pub const CACHE_FIELDS: [&str; 3] = ["model", "cache_salt", "mm_processor_kwargs"];

/// The inference APIs of vLLM 0.32.
pub static APIS: [Api; 5] = [
    Api {
        name: "completions",
        path: "/v1/completions",
        prefill: TEXT_PREFILL,
        whole: COMPLETIONS_WHOLE,
        prompt: &["prompt"],
        side_door: Place::Xargs,
        stream_error: StreamError::OpenAi,
    },
    Api {
        name: "chat",
        path: "/v1/chat/completions",
        prefill: TEXT_PREFILL,
        whole: COMPLETIONS_WHOLE,
        prompt: &["tools", "messages"],
        side_door: Place::Xargs,
        stream_error: StreamError::OpenAi,
    },
    Api {
        name: "responses",
        path: "/v1/responses",
        prefill: &[set(Place::Top, "max_output_tokens", "1"), set(Place::Top, "stream", "false")],
        whole: &[
            rule(Place::Top, "background", Test::NotFalse, WholeReason::Stateful),
            rule(Place::Top, "previous_response_id", Test::NotNull, WholeReason::Stateful),
            rule(Place::Top, "max_output_tokens", Test::NotPositive, WholeReason::Refused),
        ],
        prompt: &["instructions", "tools", "input"],
        side_door: Place::Xargs,
        stream_error: StreamError::Responses,
    },
    Api {
        name: "generate",
        path: "/inference/v1/generate",
        prefill: &[
            set(Place::Top, "stream", "false"),
            cut(Place::Top, "stream_options"),
            set(Place::Sampling, "max_tokens", "1"),
            set_if_present(Place::Sampling, "n", "1"),
            cut(Place::Sampling, "min_tokens"),
        ],
        whole: &[
            rule(Place::Top, "sampling_params", Test::NotObject, WholeReason::Refused),
            rule(Place::Top, "token_ids", Test::SeveralItems, WholeReason::SeveralPrompts),
            rule(Place::Sampling, "n", Test::NotOne, WholeReason::SeveralChoices),
            rule(Place::Sampling, "best_of", Test::NotOne, WholeReason::SeveralChoices),
            rule(Place::Sampling, "prompt_logprobs", Test::NotNull, WholeReason::PromptLogprobs),
            rule(Place::Sampling, "max_tokens", Test::NotPositive, WholeReason::Refused),
            rule(Place::Sampling, "min_tokens", Test::NotUpTo(&["max_tokens"]), WholeReason::Refused),
        ],
        prompt: &["features", "token_ids"],
        side_door: Place::ExtraArgs,
        stream_error: StreamError::OpenAi,
    },
    Api {
        name: "messages",
        path: "/v1/messages",
        prefill: &[set(Place::Top, "max_tokens", "1"), set(Place::Top, "stream", "false")],
        whole: &[rule(Place::Top, "max_tokens", Test::NotPositiveOrAbsent, WholeReason::Refused)],
        prompt: &["tools", "system", "messages"],
        side_door: Place::Xargs,
        stream_error: StreamError::Messages,
    },
];

const TEXT_PREFILL: &[Edit] = &[
    set(Place::Top, "max_tokens", "1"),
    set(Place::Top, "stream", "false"),
    set_if_present(Place::Top, "n", "1"),
    set_if_present(Place::Top, "max_completion_tokens", "1"),
    cut(Place::Top, "stream_options"),
    cut(Place::Top, "min_tokens"),
    cut(Place::Top, "best_of"),
    cut(Place::Top, "use_beam_search"),
];

const COMPLETIONS_WHOLE: &[Rule] = &[
    rule(Place::Top, "prompt", Test::SeveralItems, WholeReason::SeveralPrompts),
    rule(Place::Top, "prompt_embeds", Test::SeveralItems, WholeReason::SeveralPrompts),
    rule(Place::Top, "prompt_embeds", Test::BesideOther("prompt"), WholeReason::SeveralPrompts),
    rule(Place::Top, "n", Test::NotOne, WholeReason::SeveralChoices),
    rule(Place::Top, "best_of", Test::NotOne, WholeReason::SeveralChoices),
    rule(Place::Top, "use_beam_search", Test::NotFalse, WholeReason::BeamSearch),
    rule(Place::Top, "echo", Test::NotFalse, WholeReason::Echo),
    rule(Place::Top, "prompt_logprobs", Test::NotNull, WholeReason::PromptLogprobs),
    rule(Place::Top, "max_tokens", Test::NotPositive, WholeReason::Refused),
    rule(Place::Top, "max_completion_tokens", Test::NotPositive, WholeReason::Refused),
    rule(
        Place::Top,
        "min_tokens",
        Test::NotUpTo(&["max_completion_tokens", "max_tokens"]),
        WholeReason::Refused,
    ),
    rule(Place::Top, "stream_options", Test::WithoutStream, WholeReason::Refused),
];

const fn set(place: Place, field: &'static str, value: &'static str) -> Edit {
    Edit { place, field, change: Change::Set(value) }
}

const fn set_if_present(place: Place, field: &'static str, value: &'static str) -> Edit {
    Edit { place, field, change: Change::SetIfPresent(value) }
}

const fn cut(place: Place, field: &'static str) -> Edit {
    Edit { place, field, change: Change::Cut }
}

const fn rule(place: Place, field: &'static str, test: Test, reason: WholeReason) -> Rule {
    Rule { place, field, test, reason }
}

impl Api {
    /// The row whose name this is.
    #[must_use]
    pub fn by_name(name: &str) -> Option<&'static Self> {
        APIS.iter().find(|api| api.name == name)
    }

    /// The members of `place` that the router reads or writes for this API; each may stand once only.
    #[must_use]
    pub fn names(&self, place: Place) -> Vec<&'static str> {
        let mut names = Vec::new();
        if place == Place::Top {
            names.push("stream");
        }
        if place == Place::Top || place == self.side_door {
            names.extend(HANDOFF_FIELDS);
        }
        names.extend(self.prefill.iter().filter(|edit| edit.place == place).map(|edit| edit.field));
        names.extend(self.whole.iter().filter(|rule| rule.place == place).map(|rule| rule.field));
        for other in self.whole.iter().filter(|rule| rule.place == place) {
            match other.test {
                Test::BesideOther(field) => names.push(field),
                Test::NotUpTo(fields) => names.extend(fields),
                Test::SeveralItems
                | Test::NotOne
                | Test::NotNull
                | Test::NotFalse
                | Test::NotPositive
                | Test::NotPositiveOrAbsent
                | Test::WithoutStream
                | Test::NotObject => {}
            }
        }
        for inner in Place::ALL {
            if let Some((parent, name)) = inner.parent()
                && parent == place
                && self.looks_into(inner)
            {
                names.push(name);
            }
        }
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The members of the body that tell policies something; the last of a name counts.
    #[must_use]
    pub fn told(&self) -> Vec<&'static str> {
        self.prompt
            .iter()
            .copied()
            .chain(SESSION_FIELDS)
            .chain([SESSION_PARAMS])
            .chain(CACHE_FIELDS)
            .collect()
    }

    /// Whether the router reads or writes anything inside `place`.
    #[must_use]
    pub fn looks_into(&self, place: Place) -> bool {
        let holds_door = self.side_door.parent().is_some_and(|(parent, _)| parent == place);
        place == Place::Top
            || place == self.side_door
            || holds_door
            || self.prefill.iter().any(|edit| edit.place == place)
    }
}

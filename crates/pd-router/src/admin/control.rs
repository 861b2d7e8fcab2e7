//! The paths that go to every engine, and what each means for the router: who rests, and who wakes.

use http::Method;

use crate::fleet::rest::Rest;

/// What a call tells the router of the engines that take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// They stop to compute.
    Pause,
    /// They compute again.
    Resume,
    /// They give memory back.
    Sleep,
    /// They take it again, all of it or the parts that `tags` names.
    Wake,
    /// It asks; this key of the answer is the same for all, or null.
    Ask(&'static str),
    /// Nothing.
    Other,
}

/// A path that goes to every engine.
#[derive(Debug)]
pub struct Control {
    /// GET or POST.
    pub method: Method,
    /// The path here.
    pub path: &'static str,
    /// The path at the engines.
    pub engine_path: &'static str,
    /// What it tells the router.
    pub meaning: Meaning,
}

const fn get(path: &'static str, meaning: Meaning) -> Control {
    Control { method: Method::GET, path, engine_path: path, meaning }
}

const fn post(path: &'static str, meaning: Meaning) -> Control {
    Control { method: Method::POST, path, engine_path: path, meaning }
}

/// All of them, from vLLM's own list of routes.
pub static CONTROLS: [Control; 17] = [
    post("/pause", Meaning::Pause),
    post("/resume", Meaning::Resume),
    get("/is_paused", Meaning::Ask("is_paused")),
    post("/sleep", Meaning::Sleep),
    post("/wake_up", Meaning::Wake),
    get("/is_sleeping", Meaning::Ask("is_sleeping")),
    post("/abort_requests", Meaning::Other),
    post("/reset_prefix_cache", Meaning::Other),
    // vllm-router's name for it, which no vLLM engine knows.
    Control {
        method: Method::POST,
        path: "/flush_cache",
        engine_path: "/reset_prefix_cache",
        meaning: Meaning::Other,
    },
    post("/collective_rpc", Meaning::Other),
    post("/start_weight_update", Meaning::Other),
    post("/update_weights", Meaning::Other),
    post("/finish_weight_update", Meaning::Other),
    post("/update_weight_version", Meaning::Other),
    get("/weight_info", Meaning::Ask("weight_version")),
    post("/v1/load_lora_adapter", Meaning::Other),
    post("/v1/unload_lora_adapter", Meaning::Other),
];

impl Meaning {
    /// Whether prefill engines take it before decode engines do: what they have handed over by then can still
    /// be decoded. Everything else goes to all at once, as collective weight updates need it.
    #[must_use]
    pub const fn prefill_first(self) -> bool {
        matches!(self, Self::Pause | Self::Sleep)
    }

    /// Whether engines rest from the moment in which they are told, not only after they agreed.
    #[must_use]
    pub const fn rests(self) -> bool {
        matches!(self, Self::Pause | Self::Sleep)
    }

    /// What an engine that takes it with this query stops, or does again.
    pub fn change(self, query: &str, rest: &mut Rest) {
        match self {
            Self::Pause => rest.paused = true,
            Self::Resume => rest.paused = false,
            // vLLM's level 0 only stops scheduling.
            Self::Sleep if values(query, "level").any(|level| level == "0") => rest.scheduling = true,
            Self::Sleep => *rest = Rest { weights: true, kv_cache: true, ..*rest },
            Self::Wake if values(query, "tags").next().is_none() => {
                *rest = Rest { paused: rest.paused, ..Rest::default() };
            }
            Self::Wake => {
                for tag in values(query, "tags") {
                    match tag.as_ref() {
                        "scheduling" => rest.scheduling = false,
                        "weights" => rest.weights = false,
                        "kv_cache" => rest.kv_cache = false,
                        _ => {}
                    }
                }
            }
            Self::Ask(_) | Self::Other => {}
        }
    }
}

/// The values of a query's parameter.
pub fn values<'a>(query: &'a str, name: &'a str) -> impl Iterator<Item = std::borrow::Cow<'a, str>> {
    url::form_urlencoded::parse(query.as_bytes()).filter(move |(key, _)| key == name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(calls: &[(Meaning, &str)]) -> Rest {
        let mut rest = Rest::default();
        for (meaning, query) in calls {
            meaning.change(query, &mut rest);
        }
        rest
    }

    #[test]
    fn each_call_ends_what_its_partner_began() {
        for (begin, query, end) in [
            (Meaning::Pause, "mode=keep", Meaning::Resume),
            (Meaning::Sleep, "", Meaning::Wake),
            (Meaning::Sleep, "level=2", Meaning::Wake),
            (Meaning::Sleep, "level=0", Meaning::Wake),
        ] {
            assert_ne!(after(&[(begin, query)]), Rest::default());
            assert_eq!(after(&[(begin, query), (end, "")]), Rest::default());
        }
    }

    #[test]
    fn waking_by_tags_takes_all_tags() {
        let partly = after(&[(Meaning::Sleep, "level=1"), (Meaning::Wake, "tags=weights")]);
        assert!(partly.asleep());
        let both =
            [(Meaning::Sleep, "level=1"), (Meaning::Wake, "tags=weights"), (Meaning::Wake, "tags=kv_cache")];
        assert!(!after(&both).asleep());
        assert!(!after(&[(Meaning::Sleep, ""), (Meaning::Wake, "tags=weights&tags=kv_cache")]).asleep());
        assert!(after(&[(Meaning::Pause, ""), (Meaning::Wake, "")]).paused, "waking does not resume");
    }
}

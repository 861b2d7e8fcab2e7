//! The flags that say how engines are chosen.

use std::time::Duration;

use clap::builder::PossibleValuesParser;
use http::HeaderName;

use super::{UsageError, secs};
use crate::config::Config;
use crate::plan::name::PolicyName;

/// Policies, sessions, data-parallel ranks.
#[derive(Clone, Debug, clap::Args)]
pub struct Choose {
    /// How engines are chosen in both pools [default: power_of_two for decode, round_robin for prefill]
    #[arg(long, value_name = "NAME", value_parser = names(), help_heading = "Routing")]
    pub policy: Option<String>,

    /// How prefill engines are chosen [default: --policy]
    #[arg(long, value_name = "NAME", value_parser = names(), help_heading = "Routing")]
    pub prefill_policy: Option<String>,

    /// How decode engines are chosen [default: --policy]
    #[arg(long, value_name = "NAME", value_parser = names(), help_heading = "Routing")]
    pub decode_policy: Option<String>,

    /// Headers that name a session, the first that is there counts [default: x-session-id x-user-id
    /// x-tenant-id x-correlation-id]
    #[arg(long, value_name = "NAME", num_args = 1.., help_heading = "Routing")]
    pub session_headers: Vec<String>,

    /// How long a session of sticky_least_loaded may be idle before it is forgotten
    #[arg(long, value_name = "SECS", env = "VLLM_ROUTER_SLL_SESSION_EXPIRATION_IN_S", default_value_t = 7200, value_parser = secs, help_heading = "Routing")]
    pub session_idle_secs: u64,

    /// Prompts of fewer tokens skip prefill (estimated from bytes, exact for token ids; 0: none does)
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Routing")]
    pub min_prefill_tokens: u64,

    /// Data-parallel ranks of an engine whose /metrics name none in the label `engine`
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024), help_heading = "Routing")]
    pub intra_node_data_parallel_size: u16,
}

fn names() -> PossibleValuesParser {
    PossibleValuesParser::new(PolicyName::NAMES.map(|(name, _)| name))
}

impl Choose {
    /// Writes what these flags mean into `config`.
    pub(super) fn fill(&self, config: &mut Config) -> Result<(), UsageError> {
        let named =
            |own: &Option<String>| own.as_ref().or(self.policy.as_ref()).and_then(|n| PolicyName::by_name(n));
        if let Some(policy) = named(&self.prefill_policy) {
            config.plan.prefill = policy;
        }
        if let Some(policy) = named(&self.decode_policy) {
            config.plan.decode = policy;
        }
        if !self.session_headers.is_empty() {
            let header = |text: &String| {
                text.parse::<HeaderName>().map_err(|_| UsageError::Header { text: text.clone() })
            };
            config.plan.session_headers =
                self.session_headers.iter().map(header).collect::<Result<_, _>>()?;
        }
        config.plan.session_idle_max = Duration::from_secs(self.session_idle_secs);
        config.plan.min_prefill_tokens = self.min_prefill_tokens;
        config.probe.ranks = self.intra_node_data_parallel_size;
        Ok(())
    }
}

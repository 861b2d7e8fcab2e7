//! The flags that say how engines are chosen.

use std::time::Duration;

use clap::builder::PossibleValuesParser;
use http::HeaderName;

use super::{UsageError, secs};
use crate::config::Config;
use crate::plan::cache_aware;
use crate::plan::name::PolicyName;

/// Far more blocks than any fleet caches.
const TREE_SIZE_MAX: usize = 64 << 30;

/// Policies, sessions, data-parallel ranks.
#[derive(Clone, Debug, clap::Args)]
pub struct Choose {
    /// How engines are chosen in both pools [default: cache_aware, which has a load bound, for prefill;
    /// power_of_two, the less loaded of two, for decode]
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

    /// cache_aware: share of a prompt that an engine must have cached for that to count
    #[arg(long, value_name = "SHARE", default_value_t = 0.3, value_parser = share, help_heading = "Routing")]
    pub cache_threshold: f64,

    /// cache_aware: load alone decides once one engine has this many requests more than another
    #[arg(long, value_name = "N", default_value_t = 64, help_heading = "Routing")]
    pub balance_abs_threshold: u32,

    /// cache_aware: and this many times as many
    #[arg(long, value_name = "FACTOR", default_value_t = 1.5, value_parser = factor, help_heading = "Routing")]
    pub balance_rel_threshold: f64,

    /// cache_aware: time between two sweeps, which forget what was unused for an hour
    #[arg(long, alias = "eviction-interval", value_name = "SECS", default_value_t = 120, value_parser = secs, help_heading = "Routing")]
    pub eviction_interval_secs: u64,

    /// cache_aware: bytes in which prefixes are remembered, for the whole process; 96 KiB at least
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 25, value_parser = tree_size, help_heading = "Routing")]
    pub max_tree_size: usize,

    /// Data-parallel ranks of an engine whose /metrics name none in the label `engine`
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024), help_heading = "Routing")]
    pub intra_node_data_parallel_size: u16,
}

fn share(text: &str) -> Result<f64, String> {
    let inside = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    inside.ok_or_else(|| "give a share from 0 to 1, such as 0.3".to_owned())
}

fn tree_size(text: &str) -> Result<usize, String> {
    let inside = text.parse().ok().filter(|bytes| *bytes <= TREE_SIZE_MAX);
    inside.ok_or_else(|| format!("give a number of bytes up to {TREE_SIZE_MAX} (64 GiB)"))
}

fn factor(text: &str) -> Result<f64, String> {
    let inside = text.parse().ok().filter(|factor: &f64| *factor >= 1.0 && factor.is_finite());
    inside.ok_or_else(|| "give a factor of at least 1, such as 1.5".to_owned())
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
                text.parse::<HeaderName>()
                    .map_err(|_| UsageError::Header { flag: "--session-headers", text: text.clone() })
            };
            config.plan.session_headers =
                self.session_headers.iter().map(header).collect::<Result<_, _>>()?;
        }
        config.plan.cache = cache_aware::Settings {
            threshold: self.cache_threshold,
            balance_abs: i64::from(self.balance_abs_threshold),
            balance_rel: self.balance_rel_threshold,
            eviction_interval: Duration::from_secs(self.eviction_interval_secs),
            bytes_max: self.max_tree_size,
        };
        config.plan.session_idle_max = Duration::from_secs(self.session_idle_secs);
        config.plan.min_prefill_tokens = self.min_prefill_tokens;
        config.probe.ranks = self.intra_node_data_parallel_size;
        Ok(())
    }
}

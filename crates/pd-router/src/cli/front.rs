//! The flags for what stands on both sides of the router: engines without roles behind it, clients' headers
//! before it.

use std::time::Duration;

use http::HeaderName;

use super::{Args, UsageError, urls};
use crate::config::Config;
use crate::fleet::Pools;
use crate::fleet::url::EngineUrl;
use crate::leg::pool::IDLE_MAX;
use crate::plan;
use crate::plan::name::PolicyName;

/// One pool in the place of two.
#[derive(Clone, Debug, clap::Args)]
pub struct Engines {
    /// Engines that serve whole requests, without prefill and decode pools: base URLs, several behind one flag
    /// or one each. Without a URL the pool is empty until POST /workers adds engines
    #[arg(long, value_name = "URL", num_args = 0.., action = clap::ArgAction::Append, conflicts_with = "demo", help_heading = "Engines")]
    pub worker_urls: Option<Vec<String>>,
}

impl Engines {
    /// The engines of the only pool; none where prefill and decode pools are asked for.
    pub(super) fn regular(&self, args: &Args) -> Result<Option<Vec<EngineUrl>>, UsageError> {
        let Some(given) = &self.worker_urls else { return Ok(None) };
        let pools = [("prefill", &args.prefill), ("decode", &args.decode)];
        if let Some((flag, _)) = pools.into_iter().find(|(_, urls)| !urls.is_empty()) {
            return Err(UsageError::Pools(flag));
        }
        if args.vllm_pd_disaggregation {
            return Err(UsageError::Pools("vllm-pd-disaggregation"));
        }
        urls("worker-urls", given).map(Some)
    }

    /// Puts what one pool means into the configuration: `--policy` is its policy.
    pub(super) fn fill(&self, pools: Pools, args: &Args, config: &mut Config) {
        config.pools = pools;
        if pools == Pools::Regular {
            let named = args.choose.policy.as_ref().and_then(|name| PolicyName::by_name(name));
            let default = plan::Settings::default();
            config.plan.prefill = named.unwrap_or(default.prefill);
            // Nobody asks it, so it is to have no memory.
            config.plan.decode = default.decode;
        }
    }

    /// Flags that were given and mean nothing to one pool.
    pub(super) fn without_effect(&self, args: &Args) -> impl Iterator<Item = &'static str> {
        let given = [
            ("--prefill-policy", args.choose.prefill_policy.is_some()),
            ("--decode-policy", args.choose.decode_policy.is_some()),
        ];
        let regular = self.worker_urls.is_some();
        given.into_iter().filter(move |(_, given)| regular && *given).map(|(flag, _)| flag)
    }
}

/// What is taken from clients' requests, and connections to engines.
#[derive(Clone, Debug, clap::Args)]
pub struct Front {
    /// Headers that may bring a request's id, the first that is there counts [default: x-request-id
    /// x-correlation-id x-trace-id request-id]. Answers have it in x-request-id, and so have requests to
    /// engines, with eight digits more where it is from another header than that
    #[arg(long, value_name = "NAME", num_args = 1.., help_heading = "Clients")]
    pub request_id_headers: Vec<String>,

    /// How long an idle connection to an engine is used again; 0: no connection is. uvicorn, which serves vLLM,
    /// closes one after 5 s
    #[arg(long, value_name = "SECS", default_value_t = IDLE_MAX.as_secs(), value_parser = clap::value_parser!(u64).range(..=86_400), help_heading = "Deadlines")]
    pub pool_idle_timeout_secs: u64,
}

impl Front {
    /// Puts what was typed into the configuration.
    pub(super) fn fill(&self, config: &mut Config) -> Result<(), UsageError> {
        if !self.request_id_headers.is_empty() {
            let header = |text: &String| {
                let flag = "--request-id-headers";
                text.parse::<HeaderName>().map_err(|_| UsageError::Header { flag, text: text.clone() })
            };
            config.request_id_headers =
                self.request_id_headers.iter().map(header).collect::<Result<_, _>>()?;
        }
        config.leg.idle_max = Duration::from_secs(self.pool_idle_timeout_secs);
        Ok(())
    }
}

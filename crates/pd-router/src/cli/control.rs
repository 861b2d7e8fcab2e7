//! The flags for who may change the fleet, and for requests while engines rest.

use crate::admin::guard::AdminKey;
use crate::config::Config;
use crate::dispatch::Paused;

/// The admin key, paused engines.
#[derive(Clone, Debug, clap::Args)]
pub struct Control {
    /// Key that changes to the fleet and its engines need, as Authorization: Bearer KEY or X-Admin-Key: KEY;
    /// without it they are taken from this machine only
    #[arg(long, value_name = "KEY", env = "PD_ROUTER_ADMIN_API_KEY", hide_env_values = true, value_parser = AdminKey::parse, help_heading = "Control")]
    pub admin_api_key: Option<AdminKey>,

    /// Answer /health as vllm-router does: 503 as soon as any engine is down
    #[arg(long, help_heading = "Control")]
    pub strict_health: bool,

    /// What requests do while every engine that could serve them is paused or asleep: wait in the queue, or
    /// get 503
    #[arg(long, value_name = "HOW", default_value = "wait", value_parser = ["wait", "reject"], help_heading = "Control")]
    pub paused: String,
}

impl Control {
    /// Puts what was typed into the configuration.
    pub fn fill(&self, config: &mut Config) {
        config.admin_key.clone_from(&self.admin_api_key);
        config.strict_health = self.strict_health;
        config.dispatch.paused = if self.paused == "reject" { Paused::Reject } else { Paused::Wait };
    }
}

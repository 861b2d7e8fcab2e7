//! What a simulated engine is told at start.

use std::time::Duration;

use serde::Serialize;

/// What an engine is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Computes prompts and issues handoffs.
    Prefill,
    /// Fetches handoffs and generates.
    Decode,
    /// Does both, as a `kv_both` engine does.
    Both,
    /// Has no connector: ignores `kv_transfer_params`.
    Plain,
}

impl Role {
    /// Whether this engine issues handoffs and owns a side channel.
    pub(crate) fn prefills(self) -> bool {
        matches!(self, Role::Prefill | Role::Both)
    }
}

/// How long the engine takes for what.
#[derive(Clone, Debug, Default)]
pub struct Latency {
    /// Paid once for each prompt that is computed.
    pub prefill_base: Duration,
    /// Paid for each token of a prompt that is computed.
    pub prefill_per_token: Duration,
    /// Between two output tokens.
    pub itl: Duration,
    /// Paid for each prompt token whose cache is fetched from a prefill engine.
    pub transfer_per_token: Duration,
}

/// One engine: who it is, how big, how fast, how patient.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// What the engine is for.
    pub role: Role,
    /// Address to listen on; the side channel uses it too.
    pub host: String,
    /// Port to listen on; 0 takes any free one.
    pub port: u16,
    /// The served model's name.
    pub model: String,
    /// The latency model.
    pub latency: Latency,
    /// KV blocks of the pool.
    pub blocks: usize,
    /// Tokens a block holds.
    pub block_size: usize,
    /// How long an unfetched handoff stays pinned.
    pub lease: Duration,
    /// Longest prompt plus answer, in tokens.
    pub max_model_len: usize,
    /// Answer length where the request names none (completions always take 16).
    pub default_max_tokens: usize,
    /// What `/version` says.
    pub version: String,
    /// Idle connections are closed after this long (uvicorn's default is 5 s).
    pub keep_alive: Duration,
    /// How long a decode leg waits for a side channel that does not answer (vLLM: 5 s).
    pub load_timeout: Duration,
    /// On a failed load compute the prompt again (`kv_load_failure_policy=recompute`) instead of failing.
    pub recompute: bool,
    /// A handoff that kills a real decode engine stops this one too, until it is restarted.
    pub mortal: bool,
    /// Requests computed at once; the rest waits (vLLM's `max_num_seqs`).
    pub max_running: usize,
    /// How many tokens of each prompt `usage` says were cached (`--enable-prompt-tokens-details`); else null.
    pub cached_tokens: Option<u64>,
    /// How many requests the sim remembers.
    pub record_max: usize,
}

impl SimConfig {
    /// The defaults with another role.
    pub fn new(role: Role) -> SimConfig {
        SimConfig { role, ..SimConfig::default() }
    }
}

impl Default for SimConfig {
    fn default() -> SimConfig {
        SimConfig {
            role: Role::Plain,
            host: "127.0.0.1".into(),
            port: 0,
            model: "sim".into(),
            latency: Latency::default(),
            blocks: 512,
            block_size: 32,
            lease: Duration::from_secs(30),
            max_model_len: 16_384,
            default_max_tokens: 32,
            version: "0.32.0".into(),
            keep_alive: Duration::from_secs(5),
            load_timeout: Duration::from_secs(5),
            recompute: false,
            mortal: false,
            max_running: 1024,
            cached_tokens: None,
            record_max: 10_000,
        }
    }
}

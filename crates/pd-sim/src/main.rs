//! `pd-sim`: one simulated vLLM engine as a program.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use pd_sim::{Latency, Role, Sim, SimConfig};

/// A simulated vLLM engine in prefill/decode mode: no GPU, no model, the same answers.
#[derive(Debug, Parser)]
#[command(name = "pd-sim", version)]
struct Args {
    /// What the engine is for: prefill, decode, both or plain
    #[arg(long, default_value = "both", value_parser = ["prefill", "decode", "both", "plain"])]
    role: String,
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Port to listen on
    #[arg(long, default_value_t = 8000)]
    port: u16,
    /// The served model's name
    #[arg(long, default_value = "sim")]
    model: String,
    /// Time for each prompt, in milliseconds
    #[arg(long, default_value_t = 20)]
    prefill_base_ms: u64,
    /// Time for each prompt token, in microseconds
    #[arg(long, default_value_t = 100)]
    prefill_per_token_us: u64,
    /// Time between output tokens, in milliseconds
    #[arg(long, default_value_t = 10)]
    itl_ms: u64,
    /// Time to fetch the cache of a prompt token, in microseconds
    #[arg(long, default_value_t = 5)]
    transfer_per_token_us: u64,
    /// How long an unfetched handoff stays pinned, in seconds
    #[arg(long, default_value_t = 30)]
    lease_secs: u64,
    /// KV blocks of the pool
    #[arg(long, default_value_t = 512)]
    blocks: usize,
    /// Tokens a block holds
    #[arg(long, default_value_t = 32)]
    block_size: usize,
    /// Requests computed at once; the rest waits
    #[arg(long, default_value_t = 1024)]
    max_running: usize,
    /// Longest prompt plus answer, in tokens
    #[arg(long, default_value_t = 16_384)]
    max_model_len: usize,
    /// Answer length where the request names none
    #[arg(long, default_value_t = 32)]
    default_max_tokens: usize,
    /// How long an idle connection is kept, in seconds
    #[arg(long, default_value_t = 5)]
    keep_alive_secs: u64,
    /// Compute the prompt again when a handoff cannot be loaded, in the place of failing
    #[arg(long)]
    recompute: bool,
    /// Die of a handoff that kills a real decode engine
    #[arg(long)]
    mortal: bool,
    /// What /version says
    #[arg(long, default_value = "0.32.0")]
    vllm_version: String,
}

impl Args {
    fn config(&self) -> SimConfig {
        let role = match self.role.as_str() {
            "prefill" => Role::Prefill,
            "decode" => Role::Decode,
            "plain" => Role::Plain,
            _ => Role::Both,
        };
        SimConfig {
            host: self.host.clone(),
            port: self.port,
            model: self.model.clone(),
            latency: Latency {
                prefill_base: Duration::from_millis(self.prefill_base_ms),
                prefill_per_token: Duration::from_micros(self.prefill_per_token_us),
                itl: Duration::from_millis(self.itl_ms),
                transfer_per_token: Duration::from_micros(self.transfer_per_token_us),
            },
            lease: Duration::from_secs(self.lease_secs),
            version: self.vllm_version.clone(),
            blocks: self.blocks,
            block_size: self.block_size,
            max_running: self.max_running,
            max_model_len: self.max_model_len,
            default_max_tokens: self.default_max_tokens,
            keep_alive: Duration::from_secs(self.keep_alive_secs),
            recompute: self.recompute,
            mortal: self.mortal,
            ..SimConfig::new(role)
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    match Sim::start(args.config()).await {
        Ok(sim) => {
            println!("{} engine on {}", args.role, sim.url());
            // Without a signal handler it serves until it is killed.
            tokio::signal::ctrl_c().await.ok();
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: cannot listen on {}:{}: {error}", args.host, args.port);
            ExitCode::FAILURE
        }
    }
}

//! A simulator of one vLLM engine in prefill/decode mode: demo partner, test double and oracle.
//!
//! A [`Sim`] listens like an engine, answers like one and keeps a ledger of every handoff it issued. What a
//! router did wrong shows as a violation in [`LedgerView`], as an error a real engine would give, or as a
//! text that differs from [`expected`].

mod answer;
mod ask;
mod body;
mod choice;
mod config;
mod control;
mod door;
mod engine;
mod error;
mod events;
mod fault;
mod infer;
mod json;
mod ledger;
mod life;
mod log;
mod logprobs;
mod model;
mod pages;
pub mod perf;
mod prompt;
mod server;
mod side;
mod sim;
mod task;
mod work;

pub use choice::{expected, expected_all, expected_ids};
pub use config::{Latency, Role, SimConfig};
pub use fault::{Fault, FaultKind, Junk, Missing};
pub use ledger::LedgerView;
pub use log::Recorded;
pub use sim::Sim;

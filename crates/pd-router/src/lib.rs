//! Prefill/decode router for vLLM: one OpenAI-compatible door in front of a pool of prefill engines and a
//! pool of decode engines. `docs/ARCHITECTURE.md` tells the life of a request; [`dispatch`] is it.

pub mod admin;
pub mod admit;
pub mod app;
pub mod cli;
pub mod config;
pub mod demo;
pub mod dispatch;
pub mod edge;
pub mod failure;
pub mod fleet;
pub mod handoff;
pub mod ids;
pub mod leg;
pub mod listen;
pub mod logs;
pub mod observe;
pub mod plan;
pub mod probe;
pub mod relay;
pub mod release;
pub mod request;
pub mod respond;
pub mod retry;
pub mod roster;
pub mod sse;
pub mod task;
pub mod top;
pub mod ui;

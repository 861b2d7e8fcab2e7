//! The flags for logs and metrics.

use std::path::PathBuf;

use clap::ValueEnum;

use crate::config::Config;
use crate::observe::otlp;

const LEVELS: [&str; 6] = ["debug", "info", "warn", "warning", "error", "critical"];

/// Logs and metrics.
#[derive(Clone, Debug, clap::Args)]
pub struct Observing {
    /// What is logged
    #[arg(long, value_name = "LEVEL", value_parser = LEVELS, default_value = "info", help_heading = "Logs")]
    pub log_level: String,

    /// How log lines are written
    #[arg(long, value_name = "FORMAT", default_value = "text", help_heading = "Logs")]
    pub log_format: LogFormat,

    /// Log to files in this directory too, one a day, besides standard error; none is ever removed
    #[arg(long, value_name = "DIR", help_heading = "Logs")]
    pub log_dir: Option<PathBuf>,

    /// Log one line a request: id, engines, status, outcome, times, tokens, bytes; at every --log-level
    #[arg(long, help_heading = "Logs")]
    pub access_log: bool,

    /// Send OpenTelemetry spans of requests to this collector: http://HOST:4317 for gRPC,
    /// http://HOST:4318/v1/traces for HTTP
    #[arg(long, value_name = "URL", help_heading = "Traces")]
    pub otlp_traces_endpoint: Option<otlp::Endpoint>,

    /// Trace this part of the requests, 0 to 1; where a client's `traceparent` says whether, that counts
    #[arg(long, value_name = "PART", default_value = "1", value_parser = part, help_heading = "Traces")]
    pub otlp_traces_ratio: f64,

    /// Whose metric names are served besides the router's own
    #[arg(long, value_name = "WHOSE", default_value = "vllm-router", help_heading = "Metrics")]
    pub metrics_compat: Compat,
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object a line
    Json,
}

/// Whose metric names are served besides the router's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Compat {
    /// Nobody's
    None,
    /// Those of vllm-router 0.1.17 that its PD mode has
    VllmRouter,
}

fn part(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(part) if (0.0..=1.0).contains(&part) => Ok(part),
        _ => Err("write a number from 0 to 1".to_owned()),
    }
}

impl Observing {
    /// Puts what was typed into the configuration.
    pub fn fill(&self, config: &mut Config) {
        config.access_log = self.access_log;
        let settings = |endpoint| otlp::Settings { endpoint, ratio: self.otlp_traces_ratio };
        config.traces = self.otlp_traces_endpoint.clone().map(settings);
        config.peer_metrics = matches!(self.metrics_compat, Compat::VllmRouter);
    }
}

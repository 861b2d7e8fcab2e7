//! `pd-router top`: what may be typed behind it.

use std::time::Duration;

/// What else than serving can be asked for.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Command {
    /// Watch a running router in the terminal: the same as its page at /ui
    Top(Top),
}

/// Which router, and how often.
#[derive(Clone, Debug, clap::Args)]
pub struct Top {
    /// The router's base URL; HOST:PORT will do. Its metrics port will do too
    #[arg(value_name = "URL", default_value = "http://127.0.0.1:30000")]
    pub url: String,

    /// Print once and end
    #[arg(long)]
    pub once: bool,

    /// Time between two looks
    #[arg(long, value_name = "SECS", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub interval_secs: u32,

    /// Columns to print in [default: the terminal's, or 100]
    #[arg(long, value_name = "N", env = "COLUMNS", hide_env_values = true)]
    pub columns: Option<String>,

    /// No colours, if it is not empty
    #[arg(long, value_name = "ANY", env = "NO_COLOR", hide = true)]
    pub no_color: Option<String>,

    /// The terminal's kind
    #[arg(long, value_name = "KIND", env = "TERM", hide = true)]
    pub term: Option<String>,
}

impl Top {
    /// The columns that were asked for; what is no number counts as none, since COLUMNS may hold anything.
    #[must_use]
    pub fn columns(&self) -> Option<usize> {
        self.columns.as_ref()?.trim().parse().ok().filter(|columns| *columns > 0)
    }

    /// Time between two looks.
    #[must_use]
    pub fn interval(&self) -> Duration {
        Duration::from_secs(u64::from(self.interval_secs))
    }
}

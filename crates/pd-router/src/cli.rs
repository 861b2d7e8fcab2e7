//! What may be typed, and what it means as a [`Config`].

mod choose;
mod control;
mod front;
pub mod observing;
mod survive;
pub mod top;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use choose::Choose;
use clap::Parser;
use control::Control;
use front::{Engines, Front};
use observing::Observing;
use survive::Survive;
use thiserror::Error;

use crate::admit::budget::Budget;
use crate::config::{BODY_BYTES_MAX, BUFFERED_BYTES_MAX, Config};
use crate::fleet::Pools;
use crate::fleet::url::{EngineUrl, UrlError};
use crate::ids::Role;
use crate::leg::dial::CaFileError;
use crate::request::api::{APIS, Api};
use crate::request::view::Route;

/// The command line.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "pd-router",
    version,
    about = "Prefill/decode router for vLLM",
    long_about = "Prefill/decode router for vLLM: takes OpenAI-style requests, runs each on a prefill engine for \
                  one token, hands its KV cache over to a decode engine, and streams the tokens back.\n\n\
                  Try it without engines: pd-router --demo",
    after_help = "Example: pd-router --prefill http://p1:8000 --prefill http://p2:8000 --decode http://d1:8000\nWatch it: pd-router top http://router:30000",
    args_conflicts_with_subcommands = true
)]
pub struct Args {
    /// What else than serving is asked for
    #[command(subcommand)]
    pub command: Option<top::Command>,

    /// A prefill engine's base URL; repeat for more. A second word, PORT or none, is taken as vllm-router
    /// takes it and has no use with NIXL
    #[arg(long, value_name = "URL", num_args = 1..=2, help_heading = "Engines")]
    pub prefill: Vec<String>,

    /// A decode engine's base URL; repeat for more
    #[arg(long, value_name = "URL", help_heading = "Engines")]
    pub decode: Vec<String>,

    /// One pool in the place of two
    #[command(flatten)]
    pub engines: Engines,

    /// Trust the certificates in this PEM file for https engines, besides the system's
    #[arg(long, value_name = "FILE", help_heading = "Engines")]
    pub engine_ca_file: Option<PathBuf>,

    /// Serve simulated engines in this process, PREFILLxDECODE of them, and show one request
    #[arg(long, value_name = "PxD", num_args = 0..=1, default_missing_value = "1x1", conflicts_with_all = ["prefill", "decode"], help_heading = "Engines")]
    pub demo: Option<String>,

    /// Take vllm-router's switch for this mode; it is the only one here
    #[arg(long, help_heading = "Engines")]
    pub vllm_pd_disaggregation: bool,

    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1", help_heading = "Listening")]
    pub host: String,

    /// Port to listen on
    #[arg(long, default_value_t = 30000, help_heading = "Listening")]
    pub port: u16,

    /// Address of the metrics port
    #[arg(long, default_value = "127.0.0.1", help_heading = "Listening")]
    pub prometheus_host: String,

    /// Serve /metrics on this port as well as on the main one
    #[arg(long, value_name = "PORT", default_value_t = 29000, help_heading = "Listening")]
    pub prometheus_port: u16,

    /// Threads that serve requests [default: one a core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024), help_heading = "Listening")]
    pub threads: Option<u16>,

    /// How engines are chosen
    #[command(flatten)]
    pub choose: Choose,

    /// Serve a further inference path like one of vLLM's: completions, chat, responses, generate, messages
    #[arg(long, value_name = "PATH=SHAPE", help_heading = "Routing")]
    pub pd_path: Vec<String>,

    /// Largest request body, in bytes; larger ones get 413
    #[arg(long, value_name = "BYTES", default_value_t = BODY_BYTES_MAX, help_heading = "Limits")]
    pub max_payload_size: usize,

    /// All request bodies held at once, in bytes; beyond it requests get 503
    #[arg(long, value_name = "BYTES", default_value_t = BUFFERED_BYTES_MAX, help_heading = "Limits")]
    pub max_buffered_bytes: usize,

    /// Time for a request head to arrive, and for an idle client connection to stay open
    #[arg(long, value_name = "SECS", default_value_t = 60, value_parser = secs, help_heading = "Limits")]
    pub header_timeout_secs: u64,

    /// Time for a request body to arrive
    #[arg(long, value_name = "SECS", default_value_t = 300, value_parser = secs, help_heading = "Limits")]
    pub body_timeout_secs: u64,

    /// Time to connect to an engine
    #[arg(long, value_name = "SECS", default_value_t = 5, value_parser = secs, help_heading = "Deadlines")]
    pub connect_timeout_secs: u64,

    /// Time from a prefill request to its whole answer
    #[arg(long, value_name = "SECS", default_value_t = 300, value_parser = secs, help_heading = "Deadlines")]
    pub prefill_timeout_secs: u64,

    /// Time from a streaming decode request to the head of its answer
    #[arg(long, value_name = "SECS", default_value_t = 300, value_parser = secs, help_heading = "Deadlines")]
    pub first_byte_timeout_secs: u64,

    /// Longest silence within a stream
    #[arg(long, value_name = "SECS", default_value_t = 300, value_parser = secs, help_heading = "Deadlines")]
    pub idle_timeout_secs: u64,

    /// Time for the whole of a request; for a stream only up to its first byte, unless this flag is given
    /// [default: 1800]
    #[arg(long, value_name = "SECS", value_parser = secs, help_heading = "Deadlines")]
    pub request_timeout_secs: Option<u64>,

    /// Clients and connections
    #[command(flatten)]
    pub front: Front,

    /// Logs and metrics
    #[command(flatten)]
    pub observing: Observing,

    /// Engines that die, requests that are tried again, overload, the end
    #[command(flatten)]
    pub survive: Survive,

    /// Who may change the fleet, and requests while engines rest
    #[command(flatten)]
    pub control: Control,

    /// Flags whose feature is still to come
    #[command(flatten)]
    pub later: Later,
}

/// Flags whose feature is still to come: taken, with one warning, so that launch scripts run unchanged.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Later {
    /// Not used: an engine that is not up yet is probed in growing steps up to the health interval
    #[arg(long, value_name = "SECS", help_heading = "Accepted, no effect yet")]
    pub worker_startup_check_interval: Option<u64>,
}

/// Why the command line cannot be used.
#[derive(Debug, Error)]
pub enum UsageError {
    /// A pool without an engine.
    #[error(
        "no {0} engine: give at least one `--{0} URL`, `--worker-urls` for engines that serve whole requests, or try `pd-router --demo`"
    )]
    EmptyPool(Role),
    /// A URL that is none.
    #[error("`--{flag}`: {error}")]
    Url {
        /// The flag, without dashes.
        flag: &'static str,
        /// What is wrong with it.
        error: UrlError,
    },
    /// One engine twice.
    #[error("`{url}` is given twice; each engine belongs in one pool, once")]
    Twice {
        /// Its URL.
        url: String,
    },
    /// A word behind a prefill URL that is neither a port nor none.
    #[error("`--prefill`: `{word}` is neither a URL nor a PORT nor `none`")]
    Word {
        /// What was typed.
        word: String,
    },
    /// A `--pd-path` that is none.
    #[error("`--pd-path {text}`: {reason}")]
    Path {
        /// What was typed.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A `--demo` that is none.
    #[error("`--demo {text}`: write PREFILLxDECODE, each from 1 to 16, such as 2x2")]
    Demo {
        /// What was typed.
        text: String,
    },
    /// Engines of one pool and of two.
    #[error(
        "`--worker-urls` names engines that serve whole requests, `--{0}` one of a prefill and a decode pool: a router has the one or the other"
    )]
    Pools(&'static str),
    /// A word that is no header's name.
    #[error("`{flag} {text}`: that is no name of an HTTP header")]
    Header {
        /// The flag.
        flag: &'static str,
        /// What was typed.
        text: String,
    },
    /// A certificate file that is none.
    #[error(transparent)]
    CaFile(#[from] CaFileError),
}

impl Args {
    /// What the command line means, with the engines that it names.
    ///
    /// # Errors
    /// [`UsageError`], which names the flag and what to write.
    pub fn config(&self) -> Result<Config, UsageError> {
        if let Some(urls) = self.engines.regular(self)? {
            return self.with_pools(Pools::Regular, Vec::new(), urls);
        }
        let prefill = urls("prefill", &prefill_words(&self.prefill)?)?;
        let decode = urls("decode", &self.decode)?;
        if prefill.is_empty() {
            return Err(UsageError::EmptyPool(Role::Prefill));
        }
        if decode.is_empty() {
            return Err(UsageError::EmptyPool(Role::Decode));
        }
        self.with_pools(Pools::PrefillDecode, prefill, decode)
    }

    fn with_pools(
        &self,
        pools: Pools,
        prefill: Vec<EngineUrl>,
        decode: Vec<EngineUrl>,
    ) -> Result<Config, UsageError> {
        let mut seen = std::collections::HashSet::new();
        if let Some(twice) = prefill.iter().chain(&decode).find(|url| !seen.insert(url.as_str())) {
            return Err(UsageError::Twice { url: twice.as_str().to_owned() });
        }
        let mut config = self.with_engines(prefill, decode)?;
        self.engines.fill(pools, self, &mut config);
        Ok(config)
    }

    /// What the command line means for these engines.
    ///
    /// # Errors
    /// [`UsageError`], which names the flag and what to write.
    pub fn with_engines(
        &self,
        prefill: Vec<EngineUrl>,
        decode: Vec<EngineUrl>,
    ) -> Result<Config, UsageError> {
        let mut config = Config::new(prefill, decode, self.engine_ca_file.as_ref())?;
        config.host.clone_from(&self.host);
        config.port = self.port;
        config.prometheus = Some((self.prometheus_host.clone(), self.prometheus_port));
        for text in &self.pd_path {
            let route = pd_path(text, &config.routes)?;
            config.routes.push(route);
        }
        if let Some(threads) = self.threads {
            config.threads = usize::from(threads);
        }
        config.listen.header_timeout = Duration::from_secs(self.header_timeout_secs);
        config.admit.body_bytes_max = self.max_payload_size;
        config.admit.body_timeout = Duration::from_secs(self.body_timeout_secs);
        config.admit.budget = Budget::new(self.max_buffered_bytes);
        config.leg.connect_timeout = Duration::from_secs(self.connect_timeout_secs);
        config.dispatch.prefill_timeout = Duration::from_secs(self.prefill_timeout_secs);
        config.dispatch.first_byte_timeout = Duration::from_secs(self.first_byte_timeout_secs);
        config.dispatch.idle_timeout = Duration::from_secs(self.idle_timeout_secs);
        config.dispatch.request_timeout = Duration::from_secs(self.request_timeout_secs.unwrap_or(1800));
        config.dispatch.request_timeout_for_streams = self.request_timeout_secs.is_some();
        self.choose.fill(&mut config)?;
        self.front.fill(&mut config)?;
        self.survive.fill(&mut config);
        self.control.fill(&mut config);
        self.observing.fill(&mut config);
        Ok(config)
    }

    /// How many engines of each role `--demo` asks for.
    ///
    /// # Errors
    /// [`UsageError::Demo`].
    pub fn demo(&self) -> Result<Option<(usize, usize)>, UsageError> {
        let Some(text) = &self.demo else { return Ok(None) };
        let count = |part: &str| part.parse::<usize>().ok().filter(|count| (1..=16).contains(count));
        text.split_once('x')
            .and_then(|(prefill, decode)| Some((count(prefill)?, count(decode)?)))
            .map(Some)
            .ok_or_else(|| UsageError::Demo { text: text.clone() })
    }

    /// One line for each flag that was given and does nothing.
    #[must_use]
    pub fn without_effect(&self) -> Vec<String> {
        let later = [("--worker-startup-check-interval", self.later.worker_startup_check_interval.is_some())];
        let port = self.prefill.iter().any(|word| word.parse::<u16>().is_ok());
        let mut lines: Vec<String> = later
            .into_iter()
            .filter(|(_, given)| *given)
            .map(|(flag, _)| format!("`{flag}` has no effect here"))
            .collect();
        let one_pool =
            |flag| format!("`{flag}` has no effect with `--worker-urls`: `--policy` names its policy");
        lines.extend(self.engines.without_effect(self).map(one_pool));
        if port {
            lines.push("the PORT behind a `--prefill` URL has no use with NIXL".to_owned());
        }
        lines
    }
}

fn secs(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(seconds @ 1..=31_536_000) => Ok(seconds),
        Ok(0_u64..) | Err(_) => Err("give whole seconds, from 1 to 31536000 (a year)".to_owned()),
    }
}

/// The URLs among the words behind `--prefill`; each may be followed by a port or `none`.
fn prefill_words(words: &[String]) -> Result<Vec<String>, UsageError> {
    let mut urls = Vec::new();
    let mut after_url = false;
    for word in words {
        let port = word == "none" || word.parse::<u16>().is_ok();
        if port && !after_url {
            return Err(UsageError::Word { word: word.clone() });
        }
        if !port {
            urls.push(word.clone());
        }
        after_url = !port;
    }
    Ok(urls)
}

fn urls(flag: &'static str, texts: &[String]) -> Result<Vec<EngineUrl>, UsageError> {
    texts.iter().map(|text| EngineUrl::parse(text).map_err(|error| UsageError::Url { flag, error })).collect()
}

fn pd_path(text: &str, routes: &[Arc<Route>]) -> Result<Arc<Route>, UsageError> {
    let wrong = |reason: String| UsageError::Path { text: text.to_owned(), reason };
    let (path, shape) = text.split_once('=').ok_or_else(|| wrong("write PATH=SHAPE".to_owned()))?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte);
    if !path.starts_with('/') || path.ends_with('/') || !path.bytes().all(plain) {
        return Err(wrong(
            "the path must start with / and hold only letters, digits, and / - _ . ~".to_owned(),
        ));
    }
    if crate::edge::is_taken(path) || routes.iter().any(|route| route.path == path) {
        return Err(wrong("this path is served already".to_owned()));
    }
    let api = Api::by_name(shape).ok_or_else(|| {
        let shapes = APIS.each_ref().map(|api| api.name).join(", ");
        wrong(format!("`{shape}` is no shape; choose one of {shapes}"))
    })?;
    Ok(Arc::new(Route::new(api, path)))
}

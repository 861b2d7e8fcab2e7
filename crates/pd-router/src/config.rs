//! What the settings mean: validated and typed, ready for the modules that own them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;

use crate::admin::guard::AdminKey;
use crate::admit::budget::Budget;
use crate::admit::queue::Queue;
use crate::dispatch::MissingHandoff;
use crate::fleet::Pools;
use crate::fleet::breaker;
use crate::fleet::url::EngineUrl;
use crate::ids::REQUEST_ID_HEADERS;
use crate::observe::otlp;
use crate::request::view::Route;
use crate::{admit, app, dispatch, leg, listen, plan, probe, retry};

/// Everything that the router is started with.
#[derive(Debug)]
pub struct Config {
    /// Where it listens.
    pub host: String,
    /// Where it listens; 0 for any free port.
    pub port: u16,
    /// What changes to the fleet need.
    pub admin_key: Option<AdminKey>,
    /// Whether `/health` answers as vllm-router's does.
    pub strict_health: bool,
    /// Which pools there are.
    pub pools: Pools,
    /// The prefill pool.
    pub prefill: Vec<EngineUrl>,
    /// The decode pool, or the only one.
    pub decode: Vec<EngineUrl>,
    /// The headers that may bring a request's id.
    pub request_id_headers: Vec<HeaderName>,
    /// The inference paths.
    pub routes: Vec<Arc<Route>>,
    /// Where `/metrics` is served besides the main port.
    pub prometheus: Option<(String, u16)>,
    /// Whether an access record is logged of every request.
    pub access_log: bool,
    /// Where traces go, if they are wanted.
    pub traces: Option<otlp::Settings>,
    /// Whether vllm-router's metric families are served too.
    pub peer_metrics: bool,
    /// How many threads serve requests.
    pub threads: usize,
    /// Limits on a connection.
    pub listen: listen::Settings,
    /// Limits on bodies.
    pub admit: admit::Settings,
    /// How engines are probed.
    pub probe: probe::Settings,
    /// When breakers open and close.
    pub breaker: breaker::Settings,
    /// How engines are chosen.
    pub plan: plan::Settings,
    /// The most requests in flight at one prefill engine.
    pub prefill_per_engine_max: Option<usize>,
    /// The most requests in flight at one decode engine.
    pub decode_per_engine_max: Option<usize>,
    /// The cap on requests in flight.
    pub queue: Arc<Queue>,
    /// How the router ends.
    pub drain: app::Drain,
    /// Engine connections.
    pub leg: leg::pool::Settings,
    /// Deadlines.
    pub dispatch: dispatch::Settings,
}

/// The default of `--max-payload-size`, in bytes; the same as vllm-router's.
pub const BODY_BYTES_MAX: usize = 512 * 1024 * 1024;

/// The default of `--max-concurrent-requests`; the same as vllm-router's.
pub const CONCURRENT_MAX: usize = 32_768;

/// The default of `--queue-size`; the same as vllm-router's.
pub const QUEUE_MAX: usize = 100;

/// The default of `--max-buffered-bytes`: room for four bodies of the largest size.
pub const BUFFERED_BYTES_MAX: usize = 4 * BODY_BYTES_MAX;

impl Config {
    /// A configuration for these engines with every other setting at its default.
    ///
    /// # Errors
    /// See [`leg::dial::tls_config`].
    pub fn new(
        prefill: Vec<EngineUrl>,
        decode: Vec<EngineUrl>,
        ca_file: Option<&PathBuf>,
    ) -> Result<Self, leg::dial::CaFileError> {
        Ok(Self {
            host: "127.0.0.1".to_owned(),
            port: 0,
            admin_key: None,
            strict_health: false,
            pools: Pools::default(),
            prefill,
            decode,
            request_id_headers: REQUEST_ID_HEADERS.to_vec(),
            routes: crate::request::api::APIS.iter().map(|api| Arc::new(Route::new(api, api.path))).collect(),
            prometheus: None,
            access_log: false,
            traces: None,
            peer_metrics: true,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            listen: listen::Settings { header_timeout: Duration::from_secs(60), connections_max: usize::MAX },
            admit: admit::Settings {
                body_bytes_max: BODY_BYTES_MAX,
                body_timeout: Duration::from_secs(300),
                budget: Budget::new(BUFFERED_BYTES_MAX),
            },
            leg: leg::pool::Settings {
                connect_timeout: Duration::from_secs(5),
                idle_max: leg::pool::IDLE_MAX,
                tls: leg::dial::tls_config(ca_file)?,
            },
            dispatch: dispatch::Settings {
                prefill_timeout: Duration::from_secs(300),
                first_byte_timeout: Duration::from_secs(300),
                idle_timeout: Duration::from_secs(300),
                request_timeout: Duration::from_secs(1800),
                request_timeout_for_streams: false,
                handoff_age_max: Duration::from_secs(20),
                missing_handoff: MissingHandoff::DecodeOnly,
                paused: dispatch::Paused::default(),
                usage_from_prefill: false,
                retry: retry::Settings::default(),
            },
            probe: probe::Settings::default(),
            breaker: breaker::Settings::default(),
            plan: plan::Settings::default(),
            prefill_per_engine_max: None,
            decode_per_engine_max: None,
            queue: Queue::new(CONCURRENT_MAX, QUEUE_MAX, Duration::from_secs(60)),
            drain: app::Drain::default(),
        })
    }
}

//! Where log lines go and what they look like. Writing waits for no disk and no pipe: a thread of its own
//! does it, and says at the end how many lines it had no room for.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use thiserror::Error;
use tracing::Level;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, WorkerGuard};
use tracing_appender::rolling::{Builder, InitError, Rotation};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::writer::{BoxMakeWriter, MakeWriterExt};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

use crate::cli::observing::{LogFormat, Observing};
use crate::observe::access;

/// The directory of `--log-dir` cannot be written to.
#[derive(Debug, Error)]
#[error("`--log-dir {}`: {error}", dir.display())]
pub struct LogDirError {
    dir: PathBuf,
    error: InitError,
}

/// Keeps the writers going; dropping it writes what is left.
#[derive(Debug)]
pub struct Logs {
    writers: Vec<(WorkerGuard, ErrorCounter)>,
}

type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

impl Logs {
    /// Logs from now on.
    ///
    /// # Errors
    /// [`LogDirError`].
    pub fn start(settings: &Observing) -> Result<Self, LogDirError> {
        let mut logs = Self { writers: Vec::new() };
        let stderr = logs.writer(io::stderr());
        let (writer, ansi) = match &settings.log_dir {
            // A line is written down once, so that colours for a person would be in the files too.
            Some(dir) => (BoxMakeWriter::new(stderr.and(logs.writer(files(dir)?))), false),
            None => (BoxMakeWriter::new(stderr), io::stderr().is_terminal()),
        };
        tracing_subscriber::registry()
            .with(layer(settings.log_format, writer, ansi).with_filter(filter(settings)))
            .init();
        Ok(logs)
    }

    fn writer(&mut self, to: impl io::Write + Send + 'static) -> NonBlocking {
        let (writer, guard) = tracing_appender::non_blocking(to);
        self.writers.push((guard, writer.error_counter()));
        writer
    }
}

impl Drop for Logs {
    fn drop(&mut self) {
        for (guard, lost) in self.writers.drain(..) {
            drop(guard);
            if lost.dropped_lines() > 0 {
                eprintln!(
                    "warning: {} log lines were lost: they came faster than they could be written",
                    lost.dropped_lines()
                );
            }
        }
    }
}

fn level(word: &str) -> Level {
    match word {
        "debug" => Level::DEBUG,
        "warn" | "warning" => Level::WARN,
        "error" | "critical" => Level::ERROR,
        _ => Level::INFO,
    }
}

/// Access records are wanted or not, whatever the level. What libraries say at debug is of no use to those
/// who run a router.
fn filter(settings: &Observing) -> Targets {
    let level = level(&settings.log_level);
    let targets = Targets::new().with_default(level.min(Level::INFO)).with_target("pd_router", level);
    if settings.access_log { targets.with_target(access::TARGET, Level::INFO) } else { targets }
}

fn layer(format: LogFormat, writer: BoxMakeWriter, ansi: bool) -> BoxedLayer {
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    match format {
        LogFormat::Text => lines.with_ansi(ansi).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    }
}

fn files(dir: &Path) -> Result<impl io::Write + Send + 'static, LogDirError> {
    let builder =
        Builder::new().rotation(Rotation::DAILY).filename_prefix("pd-router").filename_suffix("log");
    builder.build(dir).map_err(|error| LogDirError { dir: dir.to_owned(), error })
}

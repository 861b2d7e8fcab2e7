//! `pd-router top`: asks a router for its state every few seconds and prints it; reads only.

mod fetch;
mod line;
mod screen;

use std::io::{self, IsTerminal, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use fetch::{FetchError, Source};
use line::Line;
use screen::Lost;
use terminal_size::{Height, Width, terminal_size};
use thiserror::Error;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::top::Top;
use crate::ui::state::State;

/// Columns where neither COLUMNS nor the terminal says.
const WIDTH_DEFAULT: usize = 100;

/// Why watching ended.
#[derive(Debug, Error)]
pub enum TopError {
    /// The state cannot be had.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The terminal or the signals.
    #[error("cannot print: {0}")]
    Print(#[from] io::Error),
}

/// Prints the state once, or again and again until a signal comes or nobody reads.
///
/// # Errors
/// [`TopError`]; of a router that cannot be reached only with `--once`.
pub async fn watch(args: &Top) -> Result<(), TopError> {
    let source = Source::new(&args.url)?;
    let printer = Printer::new(args);
    let printed = if args.once {
        printer.print(&screen::lines(&source.state().await?, source.shown(), None, printer.width()), true)
    } else {
        refresh(&source, &printer, args).await
    };
    match printed {
        // `pd-router top | head` has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

async fn refresh(source: &Source, printer: &Printer, args: &Top) -> io::Result<()> {
    let mut end = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut ticks = tokio::time::interval(args.interval());
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut last, mut since): (Option<State>, Option<f64>) = (None, None);
    loop {
        let look = async {
            ticks.tick().await;
            source.state().await
        };
        let answer = tokio::select! {
            answer = look => answer,
            _ = end.recv() => return printer.end(),
            _ = interrupt.recv() => return printer.end(),
        };
        let lost = match answer {
            Ok(state) => {
                (last, since) = (Some(state), None);
                None
            }
            Err(error) => {
                let now = unix_now();
                let reached = matches!(error, FetchError::Strange { .. });
                Some(Lost { reached, error: error.to_string(), since: *since.get_or_insert(now), now })
            }
        };
        let width = printer.width();
        let lines = match (&last, lost) {
            (Some(state), lost) => screen::lines(state, source.shown(), lost.as_ref(), width),
            (None, Some(lost)) => lost.lines(source.shown()),
            (None, None) => Vec::new(),
        };
        printer.print(&lines, false)?;
    }
}

fn unix_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Where lines go: a terminal, in colours unless NO_COLOR is set, or plain text.
struct Printer {
    columns: Option<usize>,
    terminal: bool,
    colour: bool,
}

impl Printer {
    fn new(args: &Top) -> Self {
        let terminal = io::stdout().is_terminal() && args.term.as_deref() != Some("dumb");
        let plain = args.no_color.as_ref().is_some_and(|value| !value.is_empty());
        Self { columns: args.columns(), terminal, colour: terminal && !plain }
    }

    /// Columns to print in: those asked for come first, since who sets them means it.
    fn width(&self) -> usize {
        let seen = || self.terminal.then(terminal_size).flatten().map(|(Width(width), _)| usize::from(width));
        self.columns.or_else(seen).filter(|width| *width > 0).unwrap_or(WIDTH_DEFAULT)
    }

    /// Rows of the terminal, where there is one.
    fn rows(&self) -> Option<usize> {
        self.terminal.then(terminal_size).flatten().map(|(_, Height(rows))| usize::from(rows))
    }

    /// Prints a screen: in the place of the one before, or behind it where there is no terminal.
    fn print(&self, lines: &[Line], once: bool) -> io::Result<()> {
        let width = self.width();
        let mut out = String::new();
        if once || !self.terminal {
            for line in lines {
                out.push_str(&line.show(width, self.colour));
                out.push('\n');
            }
            if !once {
                out.push('\n');
            }
        } else {
            // Home, each line up to its end cleared, then all below: nothing flickers.
            out.push_str("\x1b[H");
            for line in screen::fit(lines, self.rows().map(|rows| rows.saturating_sub(1))) {
                out.push_str(&line.show(width, self.colour));
                out.push_str("\x1b[K\n");
            }
            out.push_str("\x1b[J");
        }
        let mut stdout = io::stdout().lock();
        stdout.write_all(out.as_bytes())?;
        stdout.flush()
    }

    /// The last screen stays; the shell's prompt comes below what the terminal echoed of the key.
    fn end(&self) -> io::Result<()> {
        if self.terminal { writeln!(io::stdout()) } else { Ok(()) }
    }
}

//! `pd-gate`: how many instructions the router spends on a request, and whether that has grown.
//!
//! The shipped binary runs under `valgrind --tool=callgrind`, which counts user-space instructions and so does
//! not notice what else the machine does. A short and a long run of the same requests differ by the cost of
//! the requests between; start, probes and shutdown cancel out.

mod compare;
mod count;
mod engine;
mod wire;
mod work;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Counts instructions a request and compares them with the committed numbers.
#[derive(Debug, Parser)]
struct Args {
    /// The router's binary, as it is shipped
    #[arg(long)]
    router: PathBuf,
    /// The file of committed numbers
    #[arg(long)]
    baseline: PathBuf,
    /// Write what is counted to that file, in the place of comparing
    #[arg(long)]
    write: bool,
    /// Keep callgrind's files in this directory, for callgrind_annotate; build with --profile profiling for names
    #[arg(long)]
    keep: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("pd-gate: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether every number is within its limit.
fn run(args: &Args) -> Result<bool, Box<dyn Error>> {
    let mut counted = Vec::new();
    for work in work::all() {
        let (few, many) = work.runs;
        let count = |requests| count::instructions(&args.router, &work, requests, args.keep.as_deref());
        let (short, long) = (count(few)?, count(many)?);
        let each = long.checked_sub(short).ok_or("the long run took fewer instructions than the short")?;
        counted.push((work.name, each / (many - few)));
    }
    if args.write {
        std::fs::write(&args.baseline, compare::document(&counted))?;
        println!("{}", compare::document(&counted).trim_end());
        return Ok(true);
    }
    let baseline = std::fs::read_to_string(&args.baseline)
        .map_err(|error| format!("{}: {error}; --write makes it", args.baseline.display()))?;
    let rows = compare::rows(&counted, &baseline)?;
    rows.iter().for_each(|row| println!("{row}"));
    Ok(rows.iter().all(|row| row.verdict() != compare::Verdict::Over))
}

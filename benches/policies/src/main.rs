//! `pd-policy-sim`: all policies against all workloads, as one table.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use pd_policy_sim::{Error, report, suite};

/// Compares the router's policies in a simulation; the same options give the same table
#[derive(Debug, Parser)]
#[command(name = "pd-policy-sim", version)]
struct Args {
    /// Requests a row; the first tenth is not measured
    #[arg(long, default_value_t = 20_000)]
    requests: usize,
    /// Where all that is random begins
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A page in which the table is replaced
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
}

fn main() -> ExitCode {
    match work(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn work(args: &Args) -> Result<(), Error> {
    let rows = suite::all(args.requests, args.seed)?;
    let table = report::table(&rows, args.requests, args.seed);
    print!("{table}");
    args.write.as_ref().map_or(Ok(()), |page| report::write(page, &table))
}

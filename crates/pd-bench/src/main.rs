//! `pd-bench`: the generator, its mock engines and its floor proxy as one program.

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use pd_bench::engines::Engines;
use pd_bench::load::Loop;
use pd_bench::run::{self, Plan};
use pd_bench::subject::Subject;
use pd_bench::works::{self, Work};
use pd_bench::{floor, report, workers};
use serde_json::json;

/// What a prefill/decode router costs, side by side.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Compare routers: engines, subjects and load are started and ended by this command
    Run(Run),
    /// Serve mock engines until killed; prints their addresses as one line of JSON
    Engines(EnginesArgs),
    /// Serve the floor proxy until killed
    Floor(FloorArgs),
    /// List the works
    Works,
}

#[derive(Debug, Args)]
struct Run {
    /// Works to run, by name; all when none is given
    #[arg(long = "work", value_name = "NAME", value_delimiter = ',')]
    works: Vec<String>,
    /// A router: its name and the command that starts it, with {port}, {metrics_port}, {prefill}, {decode}
    #[arg(long = "subject", value_name = "NAME=COMMAND")]
    subjects: Vec<Subject>,
    /// The subject that ratios are to
    #[arg(long, default_value = "floor")]
    baseline: String,
    /// Runs of each subject, in turns
    #[arg(long, default_value_t = 3)]
    repeats: usize,
    /// Length of a window; long streams take a multiple of it
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Load before each window
    #[arg(long, default_value_t = 0.5)]
    warm_up_seconds: f64,
    /// Requests of each run, in the place of a window
    #[arg(long)]
    requests: Option<u64>,
    /// Clients, in the place of the work's
    #[arg(long, conflicts_with = "rate")]
    clients: Option<usize>,
    /// Open loop: requests a second on average, at random times
    #[arg(long)]
    rate: Option<f64>,
    /// Threads of the generator
    #[arg(long, default_value_t = 1)]
    generator_threads: usize,
    /// Threads of the engines
    #[arg(long, default_value_t = 1)]
    engine_threads: usize,
    /// Write everything to this file
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct EnginesArgs {
    /// Engines a pool
    #[arg(long, default_value_t = 2)]
    engines: usize,
    /// Threads of all of them
    #[arg(long, default_value_t = 1)]
    threads: usize,
}

#[derive(Debug, Args)]
struct FloorArgs {
    /// Where to listen
    #[arg(long)]
    port: u16,
    /// A prefill engine, `http://IP:PORT`
    #[arg(long, value_parser = address, required = true)]
    prefill: Vec<SocketAddr>,
    /// A decode engine, `http://IP:PORT`
    #[arg(long, value_parser = address, required = true)]
    decode: Vec<SocketAddr>,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let address = text.strip_prefix("http://").unwrap_or(text);
    address.parse().map_err(|error| format!("{error}: http://IP:PORT is expected"))
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let _limit = workers::raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let result = runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(serve(cli.command)));
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("pd-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(command: Verb) -> Result<bool, Box<dyn Error>> {
    match command {
        Verb::Run(args) => compare(args).await,
        Verb::Engines(args) => {
            let engines = Engines::start(args.engines, args.engines, args.threads).await?;
            println!("{}", json!({"prefill": engines.prefill, "decode": engines.decode}));
            std::future::pending().await
        }
        Verb::Floor(args) => {
            floor::serve(workers::listen(args.port)?, args.prefill, args.decode).await?;
            Ok(true)
        }
        Verb::Works => {
            works::all().iter().for_each(|work| println!("{:<12} {}", work.name, work.title));
            Ok(true)
        }
    }
}

/// Whether nothing failed.
async fn compare(args: Run) -> Result<bool, Box<dyn Error>> {
    let program = std::env::current_exe()?.display().to_string();
    let mut subjects = vec![Subject::direct(), Subject::floor(&program)];
    subjects.extend(args.subjects.iter().cloned());
    let plan = Plan {
        subjects,
        repeats: args.repeats,
        window: Duration::try_from_secs_f64(args.seconds)?,
        warm_up: Duration::try_from_secs_f64(args.warm_up_seconds)?,
        requests: args.requests,
        generator_threads: args.generator_threads,
        engine_threads: args.engine_threads,
    };
    let mut reports = Vec::new();
    for work in chosen(&args)? {
        let report = run::work(&plan, &work).await?;
        print!("{}", report.table(&args.baseline));
        reports.push(report);
        if let Some(file) = &args.json {
            let works: Vec<_> = reports.iter().map(|report| report.document(&args.baseline)).collect();
            let command: Vec<String> = std::env::args().collect();
            let derived = report::derived(&reports);
            let document = json!({"command": command.join(" "), "works": works, "derived": derived});
            std::fs::write(file, format!("{document:#}\n"))?;
        }
    }
    report::derived(&reports).iter().for_each(|line| println!("{line}"));
    Ok(reports.iter().all(|report| report.failed() == 0))
}

fn chosen(args: &Run) -> Result<Vec<Work>, String> {
    let mut works = works::all();
    if let Some(unknown) = args.works.iter().find(|name| !works.iter().any(|work| work.name == *name)) {
        return Err(format!("no work is called `{unknown}`; `pd-bench works` lists them"));
    }
    works.retain(|work| args.works.is_empty() || args.works.iter().any(|name| name == work.name));
    for work in &mut works {
        if let Some(clients) = args.clients {
            work.how = Loop::Closed { clients, ramp: Duration::ZERO };
        }
        if let Some(rate) = args.rate {
            work.how = Loop::Open { rate };
        }
    }
    Ok(works)
}

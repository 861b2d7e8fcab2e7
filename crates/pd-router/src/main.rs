//! Arguments, logs, runtime, exit code.

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use pd_router::app::Router;
use pd_router::cli::Args;
use pd_router::cli::top::{Command, Top};
use pd_router::demo::{self, Engines};
use pd_router::fleet::Pools;
use pd_router::logs::Logs;
use pd_router::top;
use tokio::signal::unix::{SignalKind, signal};

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match &args.command {
        Some(Command::Top(args)) => watch(args),
        None => logs_and_run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn logs_and_run(args: &Args) -> Result<(), Box<dyn Error>> {
    let _logs = Logs::start(&args.observing)?;
    run(args)
}

fn watch(args: &Top) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(top::watch(args))?)
}

fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut end = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        // In a demo the engines live as long as this function.
        let (_engines, router) = start(args).await?;
        tokio::select! {
            _ = end.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping: requests in flight end first; a second signal ends them now");
        tokio::select! {
            () = router.stop() => {}
            _ = end.recv() => {}
            _ = interrupt.recv() => {}
        }
        Ok(())
    })
}

async fn start(args: &Args) -> Result<(Option<Engines>, Router), Box<dyn Error>> {
    if let Some((prefill, decode)) = args.demo()? {
        let engines = Engines::start(prefill, decode).await?;
        let (prefill, decode) = engines.urls(prefill)?;
        let router = Router::start(args.with_engines(prefill, decode)?).await?;
        demo::show(&router).await?;
        return Ok((Some(engines), router));
    }
    let config = args.config()?;
    for line in args.without_effect() {
        tracing::warn!("{line}");
    }
    let (pools, prefill, decode) = (config.pools, config.prefill.len(), config.decode.len());
    let router = Router::start(config).await?;
    let address = router.address();
    match pools {
        Pools::PrefillDecode => tracing::info!(prefill, decode, "listening on http://{address}"),
        Pools::Regular if decode == 0 => {
            tracing::info!(
                "listening on http://{address}, with no engine until one is added by POST /workers"
            );
        }
        Pools::Regular => tracing::info!(engines = decode, "listening on http://{address}"),
    }
    Ok((None, router))
}

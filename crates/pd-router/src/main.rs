//! Arguments, logs, runtime, exit code.

use std::process::ExitCode;

use clap::Parser;
use pd_router::app::Router;
use pd_router::cli::Args;
use tokio::signal::unix::{SignalKind, signal};

fn main() -> ExitCode {
    let args = Args::parse();
    logs(&args.log_level);
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn logs(level: &str) {
    let level = match level {
        "debug" => tracing::Level::DEBUG,
        "warn" | "warning" => tracing::Level::WARN,
        "error" | "critical" => tracing::Level::ERROR,
        _ => tracing::Level::INFO,
    };
    tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).init();
}

fn run(args: &Args) -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut end = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let config = args.config()?;
        for line in args.without_effect() {
            tracing::warn!("{line}");
        }
        let engines = (config.prefill.len(), config.decode.len());
        let router = Router::start(config).await?;
        tracing::info!(prefill = engines.0, decode = engines.1, "listening on http://{}", router.address());
        tokio::select! {
            _ = end.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping: requests in flight end first, a second signal ends them now");
        tokio::select! {
            () = router.stop() => {}
            _ = end.recv() => {}
            _ = interrupt.recv() => {}
        }
        Ok(())
    })
}

//! The lives of an engine: begin, die, begin again; and the faults that are a part of that.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;

use crate::engine::Engine;
use crate::fault::{Fault, FaultKind};
use crate::{server, side};

/// How long a port may take to be free again.
const PORT_FREE_MAX: Duration = Duration::from_secs(2);

/// How long an answer that was just given may take to leave before its engine dies.
const LAST_WORDS: Duration = Duration::from_millis(20);

/// Starts what runs for one life.
pub(crate) async fn begin(engine: &Arc<Engine>) -> io::Result<()> {
    let tasks = engine.tasks();
    if engine.config().role.prefills() {
        let side = TcpListener::bind((engine.door().address().ip(), 0)).await?;
        engine.set_side_port(side.local_addr()?.port());
        tasks.spawn(side::serve(side, Arc::clone(engine)));
    }
    open(engine).await?;
    tasks.spawn(server::serve(Arc::clone(engine)));
    Ok(())
}

/// Dies: the port is closed and every connection reset.
pub(crate) async fn die(engine: &Engine) {
    engine.door().shut();
    engine.tasks().stop().await;
}

/// Dies and begins again on the same port: new id, nothing pinned.
pub(crate) async fn restart(engine: &Arc<Engine>) -> io::Result<()> {
    die(engine).await;
    engine.begin_life();
    begin(engine).await
}

/// Puts a fault in force.
pub(crate) fn arm(engine: &Arc<Engine>, fault: Fault) {
    match fault.kind {
        FaultKind::Refuse => engine.door().shut(),
        FaultKind::RefuseMs(ms) => {
            engine.door().shut();
            later(engine, ms, async |engine| open(&engine).await);
        }
        FaultKind::RestartMs(ms) => later(engine, 0, async move |engine| {
            tokio::time::sleep(LAST_WORDS).await;
            die(&engine).await;
            tokio::time::sleep(Duration::from_millis(ms)).await;
            restart(&engine).await
        }),
        FaultKind::Stall
        | FaultKind::StallAfter(_)
        | FaultKind::Status { .. }
        | FaultKind::Reset
        | FaultKind::Close
        | FaultKind::ResetAfter(_)
        | FaultKind::CloseAfter(_)
        | FaultKind::CutInside(_)
        | FaultKind::DelayMs(_)
        | FaultKind::Missing(_)
        | FaultKind::TransferMode(_)
        | FaultKind::Junk(_)
        | FaultKind::EventStream(_)
        | FaultKind::Health(_)
        | FaultKind::HealthDelayMs(_) => engine.faults().arm(fault),
    }
}

/// Ends every fault; a refused port opens again.
pub(crate) fn heal(engine: &Engine) {
    engine.faults().clear();
    if !engine.tasks().ended() {
        // A port that another process took stays shut.
        engine.door().open(engine.lasting().runtime()).ok();
    }
}

/// The handoff that was given to this engine kills a real one.
pub(crate) fn killed(engine: &Arc<Engine>) {
    if engine.config().mortal {
        later(engine, 0, async |engine| {
            tokio::time::sleep(LAST_WORDS).await;
            die(&engine).await;
            Ok(())
        });
    }
}

fn later<F>(engine: &Arc<Engine>, ms: u64, act: impl FnOnce(Arc<Engine>) -> F + Send + 'static)
where
    F: Future<Output = io::Result<()>> + Send,
{
    let this = Arc::clone(engine);
    engine.lasting().spawn(async move {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        if let Err(error) = act(this).await {
            eprintln!("pd-sim: {error}");
        }
    });
}

async fn open(engine: &Engine) -> io::Result<()> {
    let end = Instant::now() + PORT_FREE_MAX;
    loop {
        match engine.door().open(engine.lasting().runtime()) {
            Err(error) if Instant::now() > end => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            Ok(()) => return Ok(()),
        }
    }
}

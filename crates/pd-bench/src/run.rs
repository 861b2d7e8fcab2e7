//! A comparison: for each work fresh engines and subjects, warmed up, then measured in turns.

use std::io;
use std::time::Duration;

use tokio::time::Instant;

use crate::engines::Engines;
use crate::load::{Load, Loop, Target};
use crate::proc;
use crate::report::WorkReport;
use crate::sample::Sample;
use crate::subject::{Running, Subject};
use crate::workers::Workers;
use crate::works::Work;

/// How a comparison is made.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is compared.
    pub subjects: Vec<Subject>,
    /// How often each subject is measured, in turns.
    pub repeats: usize,
    /// Length of a window.
    pub window: Duration,
    /// Load before a window, besides the ramp.
    pub warm_up: Duration,
    /// At most this many requests a run, in the place of a window.
    pub requests: Option<u64>,
    /// Threads of the generator.
    pub generator_threads: usize,
    /// Threads of the engines.
    pub engine_threads: usize,
}

/// Runs one work with all subjects.
///
/// # Errors
/// The engines or a subject cannot be started.
pub async fn work(plan: &Plan, work: &Work) -> Result<WorkReport, String> {
    let text = |error: io::Error| error.to_string();
    let started = Engines::start(work.engines, work.engines, plan.engine_threads);
    let engines = started.await.map_err(|error| format!("the engines: {error}"))?;
    let mut running = Vec::new();
    for subject in &plan.subjects {
        running.push((subject, subject.start(&engines).await?));
    }
    let mut report = WorkReport::new(work, plan);
    for _ in 0..plan.repeats {
        for (subject, process) in &running {
            let target = match process {
                Some(process) => Target::Router(process.address),
                None => Target::Direct { prefill: engines.prefill.clone(), decode: engines.decode.clone() },
            };
            let sample = measured(plan, work, target, process.as_ref()).await.map_err(text)?;
            report.add(&subject.name, sample);
        }
    }
    for (_, process) in running {
        if let Some(process) = process {
            process.stop().await;
        }
    }
    Ok(report)
}

/// What is read at the edges of a window.
struct Mark {
    at: Instant,
    served: u64,
    events: u64,
    subject: Option<f64>,
    own: f64,
    machine: Option<(f64, f64)>,
}

fn mark(load: &Load, pid: Option<u32>) -> io::Result<Mark> {
    let (served, events) = load.counts();
    Ok(Mark {
        at: Instant::now(),
        served,
        events,
        subject: pid.map(proc::cpu_seconds).transpose()?,
        own: proc::cpu_seconds(std::process::id())?,
        machine: proc::machine_seconds(),
    })
}

/// One run of one subject.
async fn measured(plan: &Plan, work: &Work, target: Target, process: Option<&Running>) -> io::Result<Sample> {
    let pid = process.and_then(Running::pid);
    let workers = Workers::start(plan.generator_threads)?;
    let load = Load::new(&work.ask, target, plan.requests, plan.generator_threads);
    let ramp = match work.how {
        Loop::Closed { ramp, .. } => ramp,
        Loop::Open { .. } => Duration::ZERO,
    };
    let mut running = std::pin::pin!(load.run(&workers, work.how));
    if plan.requests.is_none() {
        let warm_up = tokio::time::timeout(ramp + plan.warm_up, &mut running).await;
        if let Ok(ended) = warm_up {
            ended?;
        }
    }
    load.measure(true);
    if let Some(pid) = pid {
        proc::reset_peak(pid);
    }
    let before = mark(&load, pid)?;
    let window = if plan.requests.is_some() { Duration::MAX } else { plan.window * work.longer };
    let ended = tokio::time::timeout(window, &mut running).await;
    let after = mark(&load, pid)?;
    let memory = pid.map(proc::memory_kib).transpose()?;
    load.measure(false);
    load.end();
    match ended {
        Ok(ended) => ended?,
        Err(_) => running.await?,
    }
    let mut sample = between(&before, &after, plan.generator_threads + plan.engine_threads);
    (sample.rss_kib, sample.peak_kib) = (memory.map(|memory| memory.0), memory.map(|memory| memory.1));
    sample.take(&load.totals());
    Ok(sample)
}

fn between(before: &Mark, after: &Mark, threads: usize) -> Sample {
    let seconds = (after.at - before.at).as_secs_f64();
    let idle =
        before.machine.zip(after.machine).map(|(from, to)| (to.0 - from.0) / (to.1 - from.1).max(1e-9));
    Sample {
        seconds,
        served: after.served - before.served,
        events: after.events - before.events,
        cpu_seconds: before.subject.zip(after.subject).map(|(from, to)| to - from),
        generator_busy: (after.own - before.own) / (seconds * threads as f64),
        machine_idle: idle,
        ..Sample::default()
    }
}

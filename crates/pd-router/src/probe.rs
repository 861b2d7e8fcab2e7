//! The loops that feed health: one an engine, in parallel, each with its own jittered timer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::HeaderMap;
use thiserror::Error;

use crate::fleet::engine::Engine;
use crate::fleet::{Fleet, health};
use crate::leg::aside;
use crate::leg::key::EngineKey;
use crate::task;

/// How engines are probed.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Between two probes of an engine that is up.
    pub interval: Duration,
    /// How long a probe may take.
    pub timeout: Duration,
    /// The path that is asked for.
    pub path: String,
    /// How many probes change the state.
    pub health: health::Settings,
    /// Data-parallel ranks of an engine that reports none itself; 1 for an engine without.
    pub ranks: u16,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(5),
            path: "/health".to_owned(),
            health: health::Settings { failure_threshold: 3, success_threshold: 2 },
            ranks: 1,
        }
    }
}

/// The first wait of an engine that is not known yet, was put out by a live connection, or answers well again.
const QUICK: Duration = Duration::from_millis(100);

/// It doubles from probe to probe up to this,
const QUICK_MAX: Duration = Duration::from_secs(1);

/// for so long; then the interval counts.
const QUICK_FOR: Duration = Duration::from_secs(30);

/// How long an engine may take to say whether it is paused: the next probe waits for it.
const REST_TIMEOUT: Duration = Duration::from_secs(1);

/// The longest page of an engine that is read, in bytes; vLLM's metrics are about 100 KiB a rank.
const PAGE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The probes' HTTP client cannot be built.
#[derive(Debug, Error)]
#[error("cannot build the client of the health probes: {0}")]
pub struct ProbeError(#[from] reqwest::Error);

/// Starts the loops.
#[derive(Clone, Debug)]
pub struct Prober {
    client: reqwest::Client,
    settings: Settings,
}

impl Prober {
    /// No loop yet.
    ///
    /// # Errors
    /// [`ProbeError`].
    pub fn new(
        settings: &Settings,
        tls: &Arc<rustls::ClientConfig>,
        key: Option<&EngineKey>,
    ) -> Result<Self, ProbeError> {
        let mut headers = HeaderMap::new();
        if let Some(key) = key {
            key.put(&mut headers);
        }
        let client = aside::client(tls)
            .default_headers(headers)
            .timeout(settings.timeout)
            .pool_max_idle_per_host(0)
            .build()?;
        Ok(Self { client, settings: settings.clone() })
    }

    /// Starts the loop of an engine on the calling runtime; it ends when the engine is gone.
    pub fn watch(&self, engine: &Arc<Engine>, fleet: &Arc<Fleet>) {
        let gone = engine.gone().clone();
        let watch = watch(Arc::clone(engine), Arc::clone(fleet), self.client.clone(), self.settings.clone());
        task::background(async move {
            gone.run_until_cancelled(watch).await;
        });
    }
}

async fn watch(engine: Arc<Engine>, fleet: Arc<Fleet>, client: reqwest::Client, settings: Settings) {
    let mut quick = QUICK;
    let mut quick_until = Instant::now() + QUICK_FOR;
    let mut complained = false;
    let mut tells = true;
    loop {
        let was_up = engine.up();
        let (good, slow) = probe(&engine, &client, &settings.path, &mut complained).await;
        if good && !was_up {
            // Known before it gets traffic: who it pairs with, and which ranks it has.
            engine.set_version(version(&engine, &client).await);
            fleet.note_versions();
            fleet.set_ranks(&engine, &ranks(&engine, &client, settings.ranks).await);
            tells = true;
        }
        if good && (tells || engine.resting().rests()) {
            tells = look_at_rest(&engine, &client).await;
            fleet.woke();
        }
        engine.probed(good, slow, settings.health);
        if good && !engine.up() {
            // Those that are still wanted before it is up.
            (quick, quick_until) = (QUICK, Instant::now() + QUICK_FOR);
        }
        let in_a_hurry = !engine.up() && Instant::now() < quick_until;
        let wait = jittered(settings.interval);
        let wait = if in_a_hurry { wait.min(quick) } else { wait };
        quick = (quick * 2).min(QUICK_MAX);
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = engine.probe_wanted() => {
                (quick, quick_until) = (QUICK, Instant::now() + QUICK_FOR);
                tokio::time::sleep(QUICK).await;
            }
        }
    }
}

/// Within a tenth of the interval, so that a fleet is not probed in step.
fn jittered(interval: Duration) -> Duration {
    interval.mul_f64(0.9 + 0.2 * fastrand::f64())
}

async fn probe(engine: &Engine, client: &reqwest::Client, path: &str, complained: &mut bool) -> (bool, bool) {
    let answer = client.get(format!("{}{path}", engine.url())).send().await;
    let status = answer.as_ref().map(reqwest::Response::status).ok();
    // An engine that wants a key is alive; requests bring their own.
    let good = status.is_some_and(|status| status.is_success() || matches!(status.as_u16(), 401 | 403));
    if !good && !*complained && engine.health() != health::State::Down {
        let error = answer.as_ref().err().map(ToString::to_string);
        tracing::warn!(engine = %engine.url(), path, status = status.map(|s| s.as_u16()), error, "a health probe failed");
    }
    *complained = !good;
    let slow = answer.as_ref().is_err_and(|error| error.is_timeout() && !error.is_connect());
    (good, slow)
}

async fn version(engine: &Engine, client: &reqwest::Client) -> Option<String> {
    let text = page(engine, client, "/version").await?;
    let document: serde_json::Value = serde_json::from_str(&text).ok()?;
    Some(document.get("version")?.as_str()?.to_owned())
}

/// Asks whether the engine is paused or asleep; whether it is one that tells. vLLM tells in its development
/// mode only, which is also the one in which it can be paused.
async fn look_at_rest(engine: &Engine, client: &reqwest::Client) -> bool {
    let told = engine.resting().told();
    let before = engine.resting().now().as_str();
    let (paused, asleep) =
        tokio::join!(says(engine, client, "/is_paused"), says(engine, client, "/is_sleeping"));
    engine.resting().seen(paused, asleep, told);
    let now = engine.resting().now().as_str();
    if now != before {
        tracing::info!(engine = %engine.url(), "engine is {now}");
    }
    paused.is_some() || asleep.is_some()
}

/// The truth value under a path's own name in its JSON answer.
async fn says(engine: &Engine, client: &reqwest::Client, path: &str) -> Option<bool> {
    let request = client.get(format!("{}{path}", engine.url())).timeout(REST_TIMEOUT);
    let text = text(request).await?;
    let document: serde_json::Value = serde_json::from_str(&text).ok()?;
    document.get(path.trim_start_matches('/'))?.as_bool()
}

/// The numbers of an engine's data-parallel ranks: those that its metrics name in the label `engine` where
/// there are several, else `0..fallback` where that is several.
async fn ranks(engine: &Engine, client: &reqwest::Client, fallback: u16) -> Vec<u16> {
    let named = page(engine, client, "/metrics").await.map(|text| ranks_in(&text)).unwrap_or_default();
    match (named.len(), fallback) {
        (2.., _) => named,
        (_, 2..) => (0..fallback).collect(),
        _ => Vec::new(),
    }
}

/// The values of the label `engine` in the Prometheus text format.
fn ranks_in(metrics: &str) -> Vec<u16> {
    let labels = metrics.lines().filter(|line| line.starts_with("vllm:")).filter_map(|line| {
        let (_, rest) = line.split_once("{engine=\"").or_else(|| line.split_once(",engine=\""))?;
        rest.split('"').next()?.parse().ok()
    });
    let ranks: std::collections::BTreeSet<u16> = labels.collect();
    ranks.into_iter().collect()
}

/// A page of an engine, as far as it is of a sensible length.
async fn page(engine: &Engine, client: &reqwest::Client, path: &str) -> Option<String> {
    text(client.get(format!("{}{path}", engine.url()))).await
}

async fn text(request: reqwest::RequestBuilder) -> Option<String> {
    let mut answer = request.send().await.ok()?;
    let mut whole = Vec::new();
    while let Some(chunk) = answer.chunk().await.ok()? {
        if !answer.status().is_success() || whole.len() + chunk.len() > PAGE_BYTES_MAX {
            return None;
        }
        whole.extend_from_slice(&chunk);
    }
    String::from_utf8(whole).ok()
}

#[cfg(test)]
mod tests {
    use super::ranks_in;

    #[test]
    fn ranks_are_the_values_of_the_engine_label() {
        let text = "# HELP vllm:a b\nvllm:a{engine=\"1\",model_name=\"m\"} 0\nvllm:a{engine=\"0\"} 1\nvllm:b{model_name=\"m\",engine=\"1\"} 0\nother{engine=\"7\"} 1\n";
        assert_eq!(ranks_in(text), [0, 1]);
        assert!(ranks_in("vllm:a 1\nvllm:b{engine=\"x\"} 1\n").is_empty());
    }
}

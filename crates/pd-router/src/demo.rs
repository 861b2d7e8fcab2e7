//! `--demo`: simulated engines in this process, and one streaming request shown as it comes.

use std::error::Error;
use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http::header::{CONTENT_TYPE, HOST};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use pd_sim::{Latency, Role as SimRole, Sim, SimConfig};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::app::Router;
use crate::fleet::url::{EngineUrl, UrlError};
use crate::ids::Role;
use crate::task;

/// The engines of a demo; they end when it is dropped.
#[derive(Debug)]
pub struct Engines {
    sims: Vec<Sim>,
}

const PROMPT: &str = "Tell me in a few words what a prefill/decode router does.";

impl Engines {
    /// Starts this many simulated engines of each role on free loopback ports.
    ///
    /// # Errors
    /// The system's, if a port cannot be had.
    pub async fn start(prefill: usize, decode: usize) -> std::io::Result<Self> {
        let latency = Latency {
            prefill_base: Duration::from_millis(30),
            prefill_per_token: Duration::from_micros(200),
            itl: Duration::from_millis(25),
            transfer_per_token: Duration::from_micros(20),
        };
        let mut sims = Vec::new();
        for role in [SimRole::Prefill].repeat(prefill).into_iter().chain([SimRole::Decode].repeat(decode)) {
            sims.push(Sim::start(SimConfig { latency: latency.clone(), ..SimConfig::new(role) }).await?);
        }
        Ok(Self { sims })
    }

    /// The URLs of the prefill engines and of the decode engines; `prefill` of them are the former.
    ///
    /// # Errors
    /// None in practice: the simulator's URLs are good.
    pub fn urls(&self, prefill: usize) -> Result<(Vec<EngineUrl>, Vec<EngineUrl>), UrlError> {
        let mut urls = self.sims.iter().map(|sim| EngineUrl::parse(&sim.url()));
        let first = urls.by_ref().take(prefill).collect::<Result<_, _>>()?;
        Ok((first, urls.collect::<Result<_, _>>()?))
    }
}

/// Sends one streaming chat request through the router and shows it: tokens, TTFT, both legs' times.
///
/// # Errors
/// Whatever keeps the request from being served.
pub async fn show(router: &Router) -> Result<(), Box<dyn Error>> {
    let address = router.address();
    router.all_up().await;
    for role in [Role::Prefill, Role::Decode] {
        for engine in router.fleet().snapshot().pool(role) {
            println!("{role:<8} {} (simulated)", engine.url());
        }
    }
    println!("router   http://{address}\n\n> {PROMPT}");
    let started = Instant::now();
    let (ttft, tokens) = stream(address, started).await?;
    println!(
        "\n\n{tokens} tokens in {:.0?}; TTFT {:.0?}; prefill leg {:.0?}, decode leg to its first byte {:.0?}\n",
        round(started.elapsed()),
        round(ttft),
        leg(router, Role::Prefill),
        leg(router, Role::Decode),
    );
    println!("Try it, and see what it counts:\n");
    println!(
        "  curl -N http://{address}/v1/chat/completions -H 'content-type: application/json' \\\n    \
         -d '{{\"model\":\"sim\",\"stream\":true,\"messages\":[{{\"role\":\"user\",\"content\":\"hello\"}}]}}'\n  \
         curl http://{address}/metrics\n\nWatch it at http://{address}/ui in a browser, or in another terminal:\n\n  \
         pd-router top {address}     (from a checkout: cargo run --release -p pd-router -- top {address})\n\n\
         Serving until Ctrl-C."
    );
    Ok(())
}

async fn stream(address: SocketAddr, started: Instant) -> Result<(Duration, usize), Box<dyn Error>> {
    let io = TokioIo::new(TcpStream::connect(address).await?);
    let (mut sender, connection) = http1::handshake(io).await?;
    task::background(async move {
        // How the connection ends is seen by the request.
        connection.await.ok();
    });
    let body = json!({
        "model": "sim", "stream": true, "max_tokens": 24,
        "messages": [{"role": "user", "content": PROMPT}],
    });
    let request = Request::post("/v1/chat/completions")
        .header(HOST, address.to_string())
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body.to_string())))?;
    let mut response = sender.send_request(request).await?;
    let (mut ttft, mut tokens, mut text) = (None, 0, String::new());
    while let Some(frame) = response.frame().await {
        text.push_str(&String::from_utf8_lossy(&frame?.into_data().unwrap_or_default()));
        while let Some((event, rest)) = text.split_once("\n\n") {
            if let Some(token) = content(event) {
                ttft.get_or_insert_with(|| started.elapsed());
                tokens += 1;
                print!("{token}");
                std::io::stdout().flush()?;
            }
            text = rest.to_owned();
        }
    }
    let ttft =
        ttft.ok_or_else(|| format!("the stream had no token; the answer's status is {}", response.status()))?;
    Ok((ttft, tokens))
}

/// The text that an event brings.
fn content(event: &str) -> Option<String> {
    let document: Value = serde_json::from_str(event.strip_prefix("data: ")?).ok()?;
    let text = document.pointer("/choices/0/delta/content")?.as_str()?;
    (!text.is_empty()).then(|| text.to_owned())
}

/// What the engines of a role took so far, from the router's own histograms.
fn leg(router: &Router, role: Role) -> Duration {
    let fleet = router.fleet().snapshot();
    let seconds: f64 =
        fleet.pool(role).iter().map(|engine| engine.metrics().answer_seconds.get_sample_sum()).sum();
    round(Duration::from_secs_f64(seconds))
}

fn round(time: Duration) -> Duration {
    Duration::from_millis(u64::try_from(time.as_micros().div_ceil(1000)).unwrap_or(u64::MAX))
}

//! What the tests of pd-router's promises share: a router in front of simulated engines, and a client that
//! keeps every byte.

pub mod exposition;
pub mod promql;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pd_router::app::Router;
use pd_router::cli::Args;
use pd_router::config::Config;
use pd_router::fleet::url::EngineUrl;
use pd_router::observe::Observe;
use pd_router::plan::name::PolicyName;
use pd_sim::{Latency, LedgerView, Role, Sim, SimConfig, expected};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The paths of the five inference APIs.
pub const PATHS: [&str; 5] =
    ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/inference/v1/generate", "/v1/messages"];

/// A router and the engines behind it.
#[derive(Debug)]
pub struct Bed {
    /// The router.
    pub router: Router,
    /// Its prefill engines.
    pub prefill: Vec<Sim>,
    /// Its decode engines.
    pub decode: Vec<Sim>,
    /// Reads its metrics when the test is over.
    pub scraped: Scraped,
}

/// Reads a router's metrics strictly when the test is over: what is no valid exposition fails the test.
#[derive(Debug)]
pub struct Scraped(Arc<Observe>);

impl Scraped {
    /// The metrics of this router.
    #[must_use]
    pub fn of(router: &Router) -> Self {
        Self(Arc::clone(router.observe()))
    }
}

impl Drop for Scraped {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let families = exposition::read(&self.0.render());
            assert!(families.contains_key("pd_router_requests_total"), "families are missing");
        }
    }
}

/// A bed of this many engines, the router's settings changed by `change`.
pub async fn bed(prefill: usize, decode: usize, change: impl FnOnce(&mut Config)) -> Bed {
    bed_of(prefill, decode, Latency::default(), change).await
}

/// 50 ms between two tokens.
#[must_use]
pub fn slow_tokens() -> Latency {
    Latency { itl: Duration::from_millis(50), ..Latency::default() }
}

/// A bed whose engines take their time.
pub async fn bed_of(
    prefill: usize,
    decode: usize,
    latency: Latency,
    change: impl FnOnce(&mut Config),
) -> Bed {
    let start = async |role, count| {
        let mut sims = Vec::new();
        for _ in 0..count {
            let config = SimConfig { latency: latency.clone(), ..SimConfig::new(role) };
            sims.push(Sim::start(config).await.expect("a free port"));
        }
        sims
    };
    let (prefill, decode) = (start(Role::Prefill, prefill).await, start(Role::Decode, decode).await);
    let urls = |sims: &[Sim]| sims.iter().map(|sim| EngineUrl::parse(&sim.url()).expect("a URL")).collect();
    let mut config = Config::new(urls(&prefill), urls(&decode), None).expect("TLS roots");
    config.threads = 2;
    // Exact turns, so that a test knows who gets which request.
    (config.plan.prefill, config.plan.decode) = (PolicyName::RoundRobin, PolicyName::RoundRobin);
    change(&mut config);
    let router = Router::start(config).await.expect("a router");
    let up = tokio::time::timeout(Duration::from_secs(10), router.all_up()).await;
    up.expect("every engine up within 10 s");
    Bed::of(router, prefill, decode)
}

impl Bed {
    /// This router and the engines behind it.
    #[must_use]
    pub fn of(router: Router, prefill: Vec<Sim>, decode: Vec<Sim>) -> Self {
        Self { scraped: Scraped::of(&router), router, prefill, decode }
    }

    /// Where the router listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.router.address()
    }

    /// Sends a JSON body and reads the whole answer.
    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        exchange(self.address(), &request("POST", path, &[], body.to_string().as_bytes())).await
    }

    /// Sends a streaming chat request and leaves its answer to be read.
    pub async fn begin_stream(&self, tokens: usize) -> TcpStream {
        let path = "/v1/chat/completions";
        let mut connection = TcpStream::connect(self.address()).await.expect("the router");
        let body = ask(path, "words", tokens, true).to_string();
        connection.write_all(&request("POST", path, &[], body.as_bytes())).await.expect("sent");
        connection
    }

    /// The ledgers of all prefill engines.
    #[must_use]
    pub fn ledgers(&self) -> Vec<LedgerView> {
        self.prefill.iter().map(Sim::ledger).collect()
    }

    /// Fails if any engine saw what a router must never do, or if a handoff or a request is left.
    pub async fn clean(&self) {
        for sim in self.prefill.iter().chain(&self.decode) {
            assert_eq!(sim.ledger().violations, Vec::<String>::new());
            until("no request runs", || sim.running() == 0).await;
        }
    }

    /// The value of a metric's series, written as in the text format.
    #[must_use]
    pub fn metric(&self, series: &str) -> f64 {
        let text = self.router.observe().render();
        let line =
            text.lines().find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')));
        let value = line.and_then(|line| line.rsplit(' ').next()).and_then(|value| value.parse().ok());
        value.unwrap_or_else(|| panic!("no series {series} in\n{text}"))
    }

    /// The sum of a family's series that have all these labels, written as in the text format.
    #[must_use]
    pub fn sum(&self, family: &str, labels: &[&str]) -> f64 {
        let text = self.router.observe().render();
        let of_family = |line: &&str| line.strip_prefix(family).is_some_and(|rest| rest.starts_with('{'));
        let lines = text.lines().filter(of_family);
        let lines = lines.filter(|line| labels.iter().all(|label| line.contains(label)));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// Sends chat requests and checks that each gives the right text, streamed or not.
    pub async fn all_good(&self, count: usize, what: &str) {
        let path = "/v1/chat/completions";
        for number in 0..count {
            let body = ask(path, &format!("request number {number}"), 6, number % 2 == 0);
            let answer = self.post(path, &body).await;
            assert_eq!((answer.status, answer.whole), (200, true), "{what} #{number}: {}", answer.text());
            assert_eq!(text_of(path, &answer), expected(path, &body, 6), "{what} #{number}");
        }
    }

    /// The router's counters of handoffs close, and no engine saw what a router must never do.
    pub async fn closes(&self) {
        let ended = |state: &str| self.metric(&format!("pd_router_handoffs_total{{state=\"{state}\"}}"));
        until("the counters close", || {
            let stranded =
                ended("stranded_no_decode") + ended("stranded_unreachable") + ended("stranded_queue_full");
            ended("issued") == ended("fetched") + ended("released") + stranded
        })
        .await;
        self.clean().await;
    }

    /// No block is pinned on any prefill engine.
    pub async fn nothing_pinned(&self) {
        until("nothing is pinned", || self.ledgers().iter().all(|ledger| ledger.pinned == 0)).await;
    }
}

/// Waits up to 5 s for something to become true.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(5);
    while !holds() {
        assert!(Instant::now() < end, "not within 5 s: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The bytes of a request.
#[must_use]
pub fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("{method} {path} HTTP/1.1\r\nhost: router\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        bytes.push_str(&format!("{name}: {value}\r\n"));
    }
    bytes.push_str("connection: close\r\n\r\n");
    [bytes.as_bytes(), body].concat()
}

/// An answer as its bytes came.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its head, lower case.
    pub head: String,
    /// Its body, chunks joined.
    pub body: Vec<u8>,
    /// Whether its framing says that it is whole.
    pub whole: bool,
}

impl Answer {
    /// The value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("UTF-8")
    }

    /// The body as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {}", self.text()))
    }

    /// The `code` of an error object.
    #[must_use]
    pub fn code(&self) -> Value {
        self.json()["error"]["code"].clone()
    }
}

/// Sends bytes on a new connection and reads to its end.
pub async fn exchange(address: SocketAddr, bytes: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(address).await.expect("the router");
    stream.write_all(bytes).await.expect("sent");
    read(stream).await
}

/// Reads an answer to the end of its connection, 30 s at most.
pub async fn read(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    let all = stream.read_to_end(&mut bytes);
    let ended = tokio::time::timeout(Duration::from_secs(30), all).await.expect("an end within 30 s");
    parse(&bytes, ended.is_ok())
}

/// Reads an answer from the bytes that came so far; `whole`: whether its connection ended well.
#[must_use]
pub fn parse(bytes: &[u8], mut whole: bool) -> Answer {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or(bytes.len());
    let (head, rest) = bytes.split_at(end);
    let head = String::from_utf8_lossy(head).to_lowercase();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    let mut rest = rest.get(4..).unwrap_or_default();
    let mut body = Vec::new();
    if head.contains("transfer-encoding: chunked") {
        let mut last = false;
        while let Some(line) = rest.windows(2).position(|two| two == b"\r\n") {
            let (size, after) = rest.split_at(line);
            let size = usize::from_str_radix(&String::from_utf8_lossy(size), 16).unwrap_or(0);
            last = size == 0;
            body.extend_from_slice(after.get(2..2 + size).unwrap_or_default());
            rest = after.get(4 + size..).unwrap_or_default();
        }
        whole &= last;
    } else {
        body.extend_from_slice(rest);
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        whole &= length.is_some_and(|length| length.parse() == Ok(body.len()));
    }
    Answer { status, head, body, whole }
}

/// A body for each API that asks for `tokens` tokens.
#[must_use]
pub fn ask(path: &str, prompt: &str, tokens: usize, stream: bool) -> Value {
    let message = json!([{"role": "user", "content": prompt}]);
    match path {
        "/v1/completions" => {
            json!({"model": "sim", "prompt": prompt, "max_tokens": tokens, "stream": stream})
        }
        "/v1/responses" => {
            json!({"model": "sim", "input": prompt, "max_output_tokens": tokens, "stream": stream})
        }
        "/inference/v1/generate" => {
            let ids: Vec<u32> = prompt.bytes().map(u32::from).collect();
            json!({"model": "sim", "token_ids": ids, "sampling_params": {"max_tokens": tokens}, "stream": stream})
        }
        _ => json!({"model": "sim", "messages": message, "max_tokens": tokens, "stream": stream}),
    }
}

/// The text that an answer brings, streamed or not; token ids as numbers for the generate API.
#[must_use]
pub fn text_of(path: &str, answer: &Answer) -> String {
    let documents: Vec<Value> = if answer.text().starts_with('{') {
        vec![answer.json()]
    } else {
        let lines = answer.text().lines().filter_map(|line| line.strip_prefix("data: "));
        lines.filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    let pick = |document: &Value| -> String {
        let pointers: &[&str] = match path {
            "/v1/completions" => &["/choices/0/text"],
            "/v1/responses" => &["/delta", "/output/0/content/0/text"],
            "/v1/messages" => &["/delta/text", "/content/0/text"],
            _ => &["/choices/0/delta/content", "/choices/0/message/content"],
        };
        if path == "/inference/v1/generate" {
            let ids =
                document.pointer("/choices/0/token_ids").and_then(Value::as_array).into_iter().flatten();
            return ids.map(|id| format!("{id} ")).collect();
        }
        pointers.iter().find_map(|at| document.pointer(at)?.as_str()).unwrap_or_default().to_owned()
    };
    documents.iter().map(pick).collect()
}

/// What this command line means.
#[must_use]
pub fn args(words: &[&str]) -> Args {
    use clap::Parser;
    Args::parse_from(std::iter::once("pd-router").chain(words.iter().copied()))
}

//! KV blocks are given back: a handoff that decode never got pins blocks on its prefill engine until a lease
//! ends (30 s; 480 s before vLLM 0.21). A decode engine that refuses a request with that handoff tells the
//! prefill engine, which frees them; so such a request is sent, naming a model that nobody serves, and with
//! one token asked for in case an engine does not look. Seen to work on vLLM 0.24 and 0.32.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, Uri};
use tokio::sync::{Semaphore, mpsc};

use crate::fleet::Fleet;
use crate::handoff::{Handoff, nixl};
use crate::ids::{HandoffEnd, Leg, RequestId};
use crate::leg::decode::{Call, decode};
use crate::leg::head::Head;
use crate::leg::pool::{LegClient, Resend, Sent};
use crate::observe::Observe;
use crate::observe::phases::Phases;
use crate::request::edit::Chain;
use crate::task;

/// Handoffs that wait to be released; more are left to their lease.
const QUEUE_MAX: usize = 4096;

/// Releases under way at once.
const AT_ONCE_MAX: usize = 16;

/// How long a release may take. An engine that got the request and then sees it closed frees the blocks too.
const LIMIT: Duration = Duration::from_secs(1);

/// The way to the releaser.
#[derive(Clone, Debug)]
pub struct Releaser {
    queue: mpsc::Sender<Release>,
    observe: Arc<Observe>,
}

#[derive(Debug)]
struct Release {
    raw: Bytes,
    authorization: Option<HeaderValue>,
}

/// A handoff on its way from prefill's answer to decode's request. Dropped before any byte of that left, it
/// is released.
#[derive(Debug)]
pub struct Pinned {
    handoff: Handoff,
    prefill: u64,
    since: Instant,
    sent: Sent,
    authorization: Option<HeaderValue>,
    releaser: Releaser,
}

impl Releaser {
    /// Starts the releaser on the calling runtime.
    #[must_use]
    pub fn start(fleet: Arc<Fleet>, client: Arc<LegClient>, observe: Arc<Observe>) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE_MAX);
        let releaser = Self { queue, observe: Arc::clone(&observe) };
        task::background(run(waiting, fleet, client, observe));
        releaser
    }

    /// Takes charge of a handoff that the prefill engine of this id gave just now.
    #[must_use]
    pub fn pin(&self, handoff: Handoff, prefill: u64, headers: &HeaderMap) -> Pinned {
        self.observe.handoff(HandoffEnd::Issued);
        Pinned {
            handoff,
            prefill,
            since: Instant::now(),
            sent: Sent::default(),
            authorization: headers.get(AUTHORIZATION).cloned(),
            releaser: self.clone(),
        }
    }
}

impl Pinned {
    /// The handoff.
    #[must_use]
    pub const fn handoff(&self) -> &Handoff {
        &self.handoff
    }

    /// The id of the prefill engine that gave it.
    #[must_use]
    pub const fn prefill(&self) -> u64 {
        self.prefill
    }

    /// Whether its lease could have run out: a real engine would then answer 200 with wrong text.
    #[must_use]
    pub fn too_old(&self, age_max: Duration) -> bool {
        self.since.elapsed() >= age_max
    }

    /// Whether any byte of a decode request with it may have left.
    #[must_use]
    pub const fn sent(&self) -> &Sent {
        &self.sent
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let observe = &self.releaser.observe;
        if self.sent.any() {
            observe.handoff(HandoffEnd::Fetched);
            return;
        }
        let release = Release { raw: self.handoff.raw().clone(), authorization: self.authorization.take() };
        if self.releaser.queue.try_send(release).is_err() {
            observe.handoff(HandoffEnd::StrandedQueueFull);
        }
    }
}

async fn run(
    mut waiting: mpsc::Receiver<Release>,
    fleet: Arc<Fleet>,
    client: Arc<LegClient>,
    observe: Arc<Observe>,
) {
    let slots = Arc::new(Semaphore::new(AT_ONCE_MAX));
    while let Some(release) = waiting.recv().await {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        let (fleet, client, observe) = (Arc::clone(&fleet), Arc::clone(&client), Arc::clone(&observe));
        task::background(async move {
            observe.handoff(give_back(&release, &fleet, &client).await);
            drop(slot);
        });
    }
}

async fn give_back(release: &Release, fleet: &Fleet, client: &Arc<LegClient>) -> HandoffEnd {
    let id = RequestId::generate();
    let mut headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
    headers.extend(release.authorization.clone().map(|key| (AUTHORIZATION, key)));
    let head = Head::new(Method::POST, &Uri::from_static("/v1/completions"), headers, &id);
    let body = Chain::from_iter([
        Bytes::from(format!(
            "{{\"model\":\"released-by-{}\",\"prompt\":\"x\",\"max_tokens\":1,\"",
            id.as_str()
        )),
        Bytes::from_static(nixl::FIELD.as_bytes()),
        Bytes::from_static(b"\":"),
        release.raw.clone(),
        Bytes::from_static(b"}"),
    ]);
    let mut end = HandoffEnd::StrandedNoDecode;
    for engine in fleet.snapshot().decode.iter().filter(|engine| engine.up() && !engine.resting().rests()) {
        let Some(in_flight) = engine.begin(true) else { continue };
        let sent = Sent::default();
        let call = Call {
            leg: Leg::Decode,
            head: &head,
            body: &body,
            resend: Resend::Once,
            limit: LIMIT,
            sent: &sent,
            phases: &Phases::default(),
        };
        match decode(client, in_flight, call).await {
            Ok(_) => return HandoffEnd::Released,
            Err(_) if sent.any() => return HandoffEnd::Released,
            Err(_) => end = HandoffEnd::StrandedUnreachable,
        }
    }
    end
}

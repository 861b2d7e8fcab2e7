//! Two thousand requests through a seeded random schedule of every fault that the simulator knows: each has
//! exactly one outcome, no wrong token reaches a client, no handoff is used twice, every gauge is back at
//! zero and the ledger closes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use pd_sim::{Fault, FaultKind, Junk, Latency, Missing, Sim, expected};
use pd_tests::{Bed, PATHS, ask, bed_of, request, text_of, until};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

const REQUESTS: usize = 2000;
const AT_ONCE: usize = 32;
const SEED: u64 = 20_261_201;

/// A small generator, so that a seed gives the same schedule on every machine.
struct Dice(AtomicU64);

impl Dice {
    fn roll(&self, sides: usize) -> usize {
        let value = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        usize::try_from((value ^ (value >> 27)) >> 33).unwrap() % sides
    }
}

fn any_fault(dice: &Dice, prefill: bool) -> FaultKind {
    let body = r#"{"error":{"message":"boom"}}"#.to_owned();
    let status = |status, retry_after| FaultKind::Status { status, body: body.clone(), retry_after };
    let error = "data: {\"error\": {\"message\": \"Internal server error\"}}\n\ndata: [DONE]\n\n".to_owned();
    // What a decode engine says under 200 passes on as it is, so that only a prefill engine talks junk.
    match dice.roll(if prefill { 21 } else { 18 }) {
        0 => FaultKind::Stall,
        1 => FaultKind::StallAfter(dice.roll(4)),
        2 => status(500, None),
        3 => status(503, Some(1)),
        4 => status(429, None),
        5 => status(400, None),
        6 => FaultKind::Reset,
        7 => FaultKind::Close,
        8 => FaultKind::ResetAfter(dice.roll(4)),
        9 => FaultKind::CloseAfter(dice.roll(4)),
        10 => FaultKind::CutInside(dice.roll(4)),
        11 => FaultKind::DelayMs(20),
        12 => FaultKind::Missing(Missing::Absent),
        13 => FaultKind::Missing(Missing::Null),
        14 => FaultKind::Missing(Missing::NoPort),
        15 => FaultKind::Missing(Missing::NullBlocks),
        16 => FaultKind::TransferMode("push".into()),
        17 => FaultKind::EventStream(error),
        18 => FaultKind::Junk(Junk::Html),
        19 => FaultKind::Junk(Junk::Half),
        _ => FaultKind::Junk(Junk::Empty),
    }
}

async fn one(bed: &Bed, dice: &Dice, number: usize) -> &'static str {
    let path = PATHS[dice.roll(PATHS.len())];
    let stream = dice.roll(2) == 0;
    let body = ask(path, &format!("prompt number {number} of many"), 6, stream);
    let bytes = request("POST", path, &[], body.to_string().as_bytes());
    let mut connection = TcpStream::connect(bed.address()).await.unwrap();
    connection.write_all(&bytes).await.unwrap();
    if dice.roll(10) == 0 {
        tokio::time::sleep(Duration::from_millis(dice.roll(30) as u64)).await;
        return "left";
    }
    let answer = pd_tests::read(connection).await;
    if answer.status == 200 && !stream && !answer.whole {
        return "broken";
    }
    let (text, right) = (text_of(path, &answer), expected(path, &body, 6));
    if answer.status != 200 {
        assert!(answer.whole && answer.json()["error"].is_object(), "{path}: {}", answer.text());
        return "refused";
    }
    if path != "/inference/v1/generate" {
        // A Responses stream brings its text twice: in deltas, and whole at the end.
        assert!(right.starts_with(&text) || text.starts_with(&right), "wrong text {text:?}, right {right:?}");
    }
    let error = answer.text().contains("\"error\"");
    if !answer.whole || error {
        return "broken";
    }
    if path != "/inference/v1/generate" {
        assert!(
            text.starts_with(&right),
            "{path}: an answer that looks whole is not: {text:?}, right {right:?}"
        );
    }
    "ok"
}

/// Breaks and mends engines until dropped.
async fn chaos(bed: &Bed, dice: &Dice) {
    let engines: Vec<&Sim> = bed.prefill.iter().chain(&bed.decode).collect();
    loop {
        let number = dice.roll(engines.len());
        let engine = engines[number];
        if dice.roll(12) == 0 {
            engine.restart().await.unwrap();
        } else {
            engine.set_fault(Fault {
                kind: any_fault(dice, number < bed.prefill.len()),
                times: Some(1 + dice.roll(3)),
            });
        }
        tokio::time::sleep(Duration::from_millis(15)).await;
    }
}

#[tokio::test]
async fn two_thousand_requests_through_every_fault() {
    let latency = Latency { itl: Duration::from_millis(1), ..Latency::default() };
    let bed = bed_of(3, 3, latency, |config| {
        config.dispatch.prefill_timeout = Duration::from_millis(400);
        config.dispatch.first_byte_timeout = Duration::from_millis(400);
        config.dispatch.idle_timeout = Duration::from_millis(400);
        config.dispatch.request_timeout = Duration::from_secs(4);
        config.probe.interval = Duration::from_millis(500);
    })
    .await;
    let (bed, dice, next) =
        (Arc::new(bed), Arc::new(Dice(AtomicU64::new(SEED))), Arc::new(AtomicUsize::new(0)));
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..AT_ONCE {
        let (bed, dice, next) = (Arc::clone(&bed), Arc::clone(&dice), Arc::clone(&next));
        clients.spawn(async move {
            let mut outcomes: HashMap<&str, usize> = HashMap::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= REQUESTS {
                    return outcomes;
                }
                *outcomes.entry(one(&bed, &dice, number).await).or_default() += 1;
            }
        });
    }
    let mut outcomes: HashMap<&str, usize> = HashMap::new();
    let all = async {
        while let Some(some) = clients.join_next().await {
            for (outcome, count) in some.unwrap() {
                *outcomes.entry(outcome).or_default() += count;
            }
        }
    };
    tokio::select! {
        () = chaos(&bed, &dice) => {}
        () = all => {}
    }
    println!("{outcomes:?}");
    assert_eq!(outcomes.values().sum::<usize>(), REQUESTS);
    assert!(outcomes["ok"] > REQUESTS / 2, "{outcomes:?}");
    closes(&bed, outcomes["left"]).await;
}

async fn closes(bed: &Bed, left: usize) {
    for sim in bed.prefill.iter().chain(&bed.decode) {
        sim.clear_faults();
        until("no request runs", || sim.running() == 0).await;
    }
    until("nothing is in flight", || bed.metric("pd_router_requests_in_flight") == 0.0).await;
    let text = bed.router.observe().render();
    let sum = |family: &str| -> f64 {
        let lines = text.lines().filter(|line| line.starts_with(family));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    };
    assert_eq!(sum("pd_router_in_flight{"), 0.0);
    // One that left before its head was read may never have been a request.
    let counted = sum("pd_router_requests_total{");
    assert!(
        counted <= REQUESTS as f64 && counted >= (REQUESTS - left) as f64,
        "{counted} of {REQUESTS}, {left} left"
    );
    let handoff = |state: &str| bed.metric(&format!("pd_router_handoffs_total{{state=\"{state}\"}}"));
    until("the handoffs' counters close", || {
        let stranded =
            ["no_decode", "unreachable", "queue_full"].map(|why| handoff(&format!("stranded_{why}")));
        handoff("issued") == handoff("fetched") + handoff("released") + stranded.iter().sum::<f64>()
    })
    .await;
    for sim in bed.prefill.iter().chain(&bed.decode) {
        let ledger = sim.ledger();
        assert_eq!(ledger.violations, Vec::<String>::new(), "seed {SEED}");
        let ended = ledger.fetched + ledger.released + ledger.expired + ledger.pinned;
        assert_eq!(ledger.issued, ended, "the ledger closes");
    }
}

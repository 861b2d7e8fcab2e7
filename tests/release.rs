//! KV blocks are given back: a handoff that decode never got does not wait for its lease, and one whose
//! lease could have run out is never used.

use std::time::Duration;

use pd_sim::{Fault, FaultKind};
use pd_tests::{ask, bed, request, until};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn a_handoff_that_decode_never_got_is_given_back() {
    let bed = bed(1, 2, |config| config.dispatch.retry.max_retries = 0).await;
    // The chosen decode engine dies while prefill works; the other one gives the blocks back or serves.
    bed.prefill[0].set_fault(Fault { kind: FaultKind::DelayMs(300), times: Some(1) });
    let mut connection = TcpStream::connect(bed.address()).await.unwrap();
    let body = ask(CHAT, "words", 4, false).to_string();
    connection.write_all(&request("POST", CHAT, &[], body.as_bytes())).await.unwrap();
    until("prefill works", || bed.prefill[0].running() == 1).await;
    bed.decode[0].stop().await;
    assert_eq!(pd_tests::read(connection).await.status, 200);
    until("nothing is pinned", || bed.prefill[0].ledger().pinned == 0).await;
    let ledger = bed.prefill[0].ledger();
    assert_eq!((ledger.issued, ledger.fetched + ledger.released), (1, 1));
}

#[tokio::test]
async fn an_old_handoff_is_given_back_and_prefill_runs_again() {
    let bed = bed(1, 1, |config| config.dispatch.handoff_age_max = Duration::ZERO).await;
    let answer = bed.post(CHAT, &ask(CHAT, "words", 4, false)).await;
    assert_eq!(answer.status, 503, "{}", answer.text());
    until("all were released", || {
        let ledger = bed.prefill[0].ledger();
        ledger.issued == 6 && ledger.released == 6 && ledger.pinned == 0
    })
    .await;
    bed.closes().await;
}

#[tokio::test]
async fn with_no_decode_engine_up_prefill_is_not_asked_in_vain() {
    let bed = bed(1, 1, |_| {}).await;
    bed.decode[0].stop().await;
    for _ in 0..4 {
        let answer = bed.post(CHAT, &ask(CHAT, "a", 4, false)).await;
        assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{}", answer.text());
    }
    // Only the first request could not know; its handoff is left to the lease, and counted.
    assert!(bed.prefill[0].requests().len() <= 1);
    bed.closes().await;
}

#[tokio::test]
async fn a_client_that_leaves_while_decode_is_dialled_leaves_nothing_pinned() {
    // A decode engine that takes no connection: its backlog is full, so that dialling hangs.
    let hole = tokio::net::TcpSocket::new_v4().unwrap();
    hole.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = hole.local_addr().unwrap();
    let bed = bed(1, 1, |_| {}).await;
    let hole = hole.listen(1).unwrap();
    let mut filled = Vec::new();
    while let Ok(Ok(stream)) =
        tokio::time::timeout(Duration::from_millis(100), TcpStream::connect(address)).await
    {
        filled.push(stream);
    }
    let metrics = bed.router.observe().engines().engine(pd_router::ids::Role::Decode, "hole");
    let url = pd_router::fleet::url::EngineUrl::parse(&format!("http://{address}")).unwrap();
    let engine = pd_router::fleet::engine::Engine::new(
        pd_router::ids::Role::Decode,
        url,
        metrics,
        pd_router::fleet::engine::Settings::default(),
    );
    engine.probed(
        true,
        false,
        pd_router::fleet::health::Settings { failure_threshold: 3, success_threshold: 1 },
    );
    let fleet = bed.router.fleet().snapshot();
    let prefill = fleet.prefill.clone();
    bed.router.fleet().swap(pd_router::fleet::Snapshot::new(prefill.clone(), vec![engine]));
    let mut connection = TcpStream::connect(bed.address()).await.unwrap();
    let body = ask(CHAT, "words", 4, false).to_string();
    connection.write_all(&request("POST", CHAT, &[], body.as_bytes())).await.unwrap();
    until("prefill has answered", || bed.prefill[0].ledger().issued == 1).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    bed.router.fleet().swap(pd_router::fleet::Snapshot::new(prefill, fleet.decode.clone()));
    drop(connection);
    bed.nothing_pinned().await;
    let ledger = bed.prefill[0].ledger();
    assert_eq!((ledger.released, ledger.fetched), (1, 0));
    assert_eq!(bed.metric("pd_router_handoffs_total{state=\"released\"}"), 1.0);
    drop((hole, filled));
}

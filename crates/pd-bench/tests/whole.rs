//! Engines, floor, router and generator together: every answer is right, and a missing handoff is noticed.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests fail by panicking")]

use std::net::SocketAddr;
use std::time::Duration;

use pd_bench::api::{Api, Ask, Prompt};
use pd_bench::engines::Engines;
use pd_bench::load::{Load, Loop, Target, Totals};
use pd_bench::workers::Workers;
use pd_bench::{floor, workers};
use pd_router::app::Router;
use pd_router::config::Config;
use pd_router::fleet::url::EngineUrl;

const REQUESTS: u64 = 30;

fn asks() -> Vec<Ask> {
    let ask = |api, prompt, stream| Ask { api, prompt, tokens: 16, stream, interval_ms: 0 };
    vec![
        ask(Api::Completions, Prompt::Text(100), false),
        ask(Api::Completions, Prompt::Text(100), true),
        ask(Api::Chat, Prompt::Text(20_000), true),
        ask(Api::Generate, Prompt::Ids(16_384), false),
        ask(Api::Generate, Prompt::Ids(300), true),
    ]
}

async fn loaded(ask: &Ask, target: Target, how: Loop) -> Totals {
    let generator = Workers::start(1).unwrap();
    let load = Load::new(ask, target, Some(REQUESTS), 1);
    load.measure(true);
    load.run(&generator, how).await.unwrap();
    load.totals()
}

async fn all_right(target: Target) {
    let closed = Loop::Closed { clients: 4, ramp: Duration::ZERO };
    for ask in asks() {
        for how in [closed, Loop::Open { rate: 500.0 }] {
            let totals = loaded(&ask, target.clone(), how).await;
            assert!(totals.failures.is_empty(), "{ask:?} {:?}", totals.failures);
            assert_eq!(totals.served, REQUESTS, "{ask:?}");
            let events = if ask.stream { REQUESTS * 16 } else { 0 };
            assert_eq!((totals.events, totals.e2e.count()), (events, REQUESTS));
        }
    }
}

#[tokio::test]
async fn the_two_legs_in_sequence_are_right() {
    let engines = Engines::start(2, 2, 1).await.unwrap();
    all_right(Target::Direct { prefill: engines.prefill.clone(), decode: engines.decode.clone() }).await;
}

#[tokio::test]
async fn the_floor_serves_every_work() {
    let engines = Engines::start(2, 2, 1).await.unwrap();
    let listener = workers::listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let serving = floor::serve(listener, engines.prefill.clone(), engines.decode.clone());
    tokio::select! {
        ended = serving => panic!("the floor ended: {ended:?}"),
        () = all_right(Target::Router(address)) => {}
    }
}

#[tokio::test]
async fn the_router_serves_every_work() {
    let engines = Engines::start(2, 2, 1).await.unwrap();
    let urls = |pool: &[SocketAddr]| {
        pool.iter().map(|address| EngineUrl::parse(&format!("http://{address}")).unwrap()).collect()
    };
    let config = Config::new(urls(&engines.prefill), urls(&engines.decode), None).unwrap();
    let router = Router::start(config).await.unwrap();
    router.all_up().await;
    all_right(Target::Router(router.address())).await;
    router.stop().await;
}

#[tokio::test]
async fn a_leg_without_the_handoff_fails() {
    let engines = Engines::start(1, 1, 1).await.unwrap();
    let decode = *engines.decode.first().unwrap();
    let ask = asks().remove(0);
    let totals =
        loaded(&ask, Target::Router(decode), Loop::Closed { clients: 1, ramp: Duration::ZERO }).await;
    assert_eq!((totals.served, totals.failed), (0, REQUESTS));
    assert!(totals.failures["status"].1.contains("handoff"), "{:?}", totals.failures);
}

//! What the benchmarks share: a pool of engines without sockets, and prompts.

use std::sync::Arc;

use bytes::Bytes;
use pd_router::fleet::candidate::Candidate;
use pd_router::fleet::engine::{Engine, Settings};
use pd_router::fleet::health;
use pd_router::fleet::url::EngineUrl;
use pd_router::ids::Role;
use pd_router::observe::Observe;
use pd_router::plan::ask::{self, Ask};
use pd_router::request::api::Api;
use pd_router::request::view::{Route, View};

/// Prefill engines that are up.
#[must_use]
pub fn pool(count: usize) -> Vec<Candidate> {
    let observe = Observe::new(&[]).expect("fresh families");
    let engine = |number| {
        let url = EngineUrl::parse(&format!("http://10.0.0.{number}:8000")).expect("a URL");
        let metrics = observe.engines().engine(Role::Prefill, url.as_str());
        let engine = Engine::new(Role::Prefill, url, metrics, Settings::default());
        engine.probed(true, false, health::Settings { failure_threshold: 1, success_threshold: 1 });
        engine
    };
    let engines: Vec<Arc<Engine>> = (0..count).map(engine).collect();
    engines.iter().flat_map(Engine::candidates).collect()
}

/// A generate request of this many token ids; `seed` makes them differ from the first on.
#[must_use]
pub fn token_ids(tokens: usize, seed: usize) -> View {
    let ids: Vec<String> =
        (0..tokens).map(|at| ((at * 7919 + seed * 104_729) % 128_000).to_string()).collect();
    view("generate", &format!("{{\"model\":\"m\",\"token_ids\":[{}]}}", ids.join(",")))
}

/// A completion of about this many tokens of text.
#[must_use]
pub fn text(tokens: usize, seed: usize) -> View {
    let words: String = (0..tokens).map(|at| format!("w{:02} ", (at * 31 + seed * 17) % 100)).collect();
    view("completions", &format!("{{\"model\":\"m\",\"prompt\":\"{words}\"}}"))
}

/// What a policy sees of it.
#[must_use]
pub fn ask_of(api: &str, view: &View) -> Ask {
    let api = Api::by_name(api).expect("an API");
    Ask { session: None, one_off: false, prefix: ask::prefix(api, view), tokens: ask::tokens(api, view) }
}

fn view(api: &str, body: &str) -> View {
    let api = Api::by_name(api).expect("an API");
    View::read(&Route::new(api, api.path), Bytes::copy_from_slice(body.as_bytes())).expect("a body")
}

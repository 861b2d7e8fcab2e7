//! What the benchmarks share: pools of engines without sockets, bodies and prompts.

use std::sync::Arc;

use bytes::Bytes;
use pd_router::fleet::candidate::Candidate;

use pd_router::fleet::engine::{Engine, Settings};
use pd_router::fleet::health;
use pd_router::fleet::url::EngineUrl;
use pd_router::fleet::{Fleet, Snapshot};
use pd_router::handoff::Handoff;
use pd_router::handoff::nixl::{self, Found};
use pd_router::ids::Role;
use pd_router::observe::Observe;
use pd_router::plan::ask::{self, Ask};
use pd_router::request::api::Api;
use pd_router::request::view::{Route, View};

/// An engine that is up.
#[must_use]
pub fn engine_at(observe: &Observe, role: Role, url: &str) -> Arc<Engine> {
    let url = EngineUrl::parse(url).expect("a URL");
    let metrics = observe.engines().engine(role, url.as_str());
    let engine = Engine::new(role, url, metrics, Settings::default());
    engine.probed(true, false, health::Settings { failure_threshold: 1, success_threshold: 1 });
    engine
}

fn engines(observe: &Observe, role: Role, count: usize) -> Vec<Arc<Engine>> {
    (0..count).map(|number| engine_at(observe, role, &format!("http://10.0.0.{number}:8000"))).collect()
}

/// Prefill engines that are up.
#[must_use]
pub fn pool(count: usize) -> Vec<Candidate> {
    let observe = Observe::new(&[]).expect("fresh families");
    engines(&observe, Role::Prefill, count).iter().flat_map(Engine::candidates).collect()
}

/// So many engines of each role, all up.
#[must_use]
pub fn fleet(count: usize) -> Fleet {
    let observe = Observe::new(&[]).expect("fresh families");
    let [prefill, decode] = [Role::Prefill, Role::Decode].map(|role| engines(&observe, role, count));
    Fleet::new(Snapshot::new(prefill, decode))
}

/// A handoff as vLLM gives it.
///
/// # Panics
/// Never: the answer is good.
#[must_use]
pub fn handoff() -> Handoff {
    let answer = br#"{"id":"p","kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3,4]],"remote_engine_id":"4f1c","remote_request_id":"cmpl-1","remote_host":"10.0.0.1","remote_port":5600,"tp_size":1}}"#;
    match nixl::find(&Bytes::from_static(answer)) {
        Found::Usable(handoff) => handoff,
        other => panic!("{other:?}"),
    }
}

/// The body of a generate request of so many token ids; `seed` makes them differ from the first on.
#[must_use]
pub fn generate(tokens: usize, seed: usize) -> String {
    let ids: Vec<String> =
        (0..tokens).map(|at| ((at * 7919 + seed * 104_729) % 128_000).to_string()).collect();
    format!("{{\"model\":\"m\",\"token_ids\":[{}],\"sampling_params\":{{\"max_tokens\":16}}}}", ids.join(","))
}

/// The body of a completion with a prompt of so many bytes.
#[must_use]
pub fn completion(bytes: usize) -> String {
    let words = "the quick brown fox ".repeat(bytes / 20);
    format!("{{\"model\":\"m\",\"prompt\":\"{words}\",\"max_tokens\":16}}")
}

/// A generate request of this many token ids.
#[must_use]
pub fn token_ids(tokens: usize, seed: usize) -> View {
    view("generate", &generate(tokens, seed))
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

/// The route of an API, on its usual path.
#[must_use]
pub fn route(api: &str) -> Route {
    let api = Api::by_name(api).expect("an API");
    Route::new(api, api.path)
}

fn view(api: &str, body: &str) -> View {
    View::read(&route(api), Bytes::copy_from_slice(body.as_bytes())).expect("a body")
}

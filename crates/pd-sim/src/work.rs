//! The engine's work for one request: compute the prompt, issue a handoff, or fetch one.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::answer::{Computed, Params};
use crate::ask::{Api, Ask};
use crate::choice;
use crate::config::Role;
use crate::engine::Engine;
use crate::error::ApiError;
use crate::fault::{FaultKind, Missing};
use crate::json::Doc;
use crate::ledger::Issued;
use crate::life;
use crate::model;
use crate::side::{self, Op, Reply};

/// One request that passed the checks.
pub(crate) struct Leg {
    pub(crate) engine: Arc<Engine>,
    pub(crate) ask: Ask,
    pub(crate) id: String,
    pub(crate) faults: Vec<FaultKind>,
}

impl Leg {
    /// Does the work. Dropping it stops it, frees the blocks and releases a handoff not yet fetched.
    pub(crate) async fn work(self) -> Result<Computed, ApiError> {
        let (engine, ask) = (&self.engine, &self.ask);
        let mut digests: Vec<_> = ask.prompts.iter().map(|prompt| model::digest(&prompt.ids)).collect();
        let mut params = if ask.api == Api::Messages { Params::Absent } else { Params::Null };
        let role = engine.config().role;
        match (ask.remote_decode(), ask.remote_prefill()) {
            (true, _) if role.prefills() => {
                self.judge_prefill();
                params = self.prefill(&digests).await;
            }
            (_, true) if role != Role::Plain => {
                if role == Role::Prefill {
                    engine.violation("a decode leg came to a prefill engine");
                }
                digests = self.fetch(digests).await?;
            }
            (remote_decode, _) => {
                if remote_decode && role == Role::Decode {
                    engine.violation("a prefill leg came to a decode engine");
                }
                self.compute().await;
            }
        }
        let computed = Computed {
            choices: choice::choices(ask, &digests),
            id: self.id,
            model: engine.config().model.clone(),
            fingerprint: engine.fingerprint(),
            created: SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs()),
            cached: engine.config().cached_tokens,
            ask: self.ask,
            params,
        };
        self.engine.succeeded.fetch_add(1, Ordering::Relaxed);
        self.engine.generated_tokens.fetch_add(computed.generated() as u64, Ordering::Relaxed);
        Ok(computed)
    }

    fn judge_prefill(&self) {
        let ask = &self.ask;
        for (wrong, what) in [
            (ask.stream, "a prefill leg streams"),
            (ask.max_tokens != 1, "a prefill leg asks for more than one token"),
            (ask.n != 1, "a prefill leg asks for several choices"),
            (ask.prompts.len() != 1, "a prefill leg has several prompts"),
        ] {
            if wrong {
                self.engine.violation(what);
            }
        }
    }

    async fn compute(&self) {
        let latency = &self.engine.config().latency;
        let tokens = self.ask.prompt_tokens();
        let _slot = self.engine.slot().await;
        self.engine.prompt_tokens.fetch_add(tokens as u64, Ordering::Relaxed);
        pause(latency.prefill_base + times(latency.prefill_per_token, tokens)).await;
    }

    /// Computes the prompts and pins them. As on a real engine each choice of each prompt pins its own blocks,
    /// and only the first handoff is shown.
    async fn prefill(&self, digests: &[u64]) -> Params {
        let mut children = Vec::new();
        for (prompt, digest) in self.ask.prompts.iter().zip(digests) {
            for _ in 0..self.ask.n {
                let blocks = self.engine.blocks(prompt.ids.len()).await;
                children.push((Blocks { engine: &self.engine, blocks }, prompt.ids.len(), *digest));
            }
        }
        self.compute().await;
        let missing = self
            .faults
            .iter()
            .find_map(|fault| if let FaultKind::Missing(how) = fault { Some(*how) } else { None });
        match missing {
            Some(Missing::Absent) => return Params::Absent,
            Some(Missing::Null) => return Params::Null,
            Some(Missing::Empty) => return Params::Some(Box::new(Doc::new())),
            Some(Missing::NoPort | Missing::NullBlocks) | None => {}
        }
        let mut shown = None;
        for (index, (mut blocks, tokens, digest)) in children.into_iter().enumerate() {
            // From here on the ledger holds them.
            let blocks = std::mem::take(&mut blocks.blocks);
            let remote = self.remote_id(index / self.ask.n.max(1));
            let doc = self.handoff(&remote, &blocks, tokens, missing);
            let params = serde_json::from_str(&doc.text()).unwrap_or_default();
            self.engine.ledger().issue(remote, Issued { digest, blocks, params });
            shown.get_or_insert(doc);
        }
        shown.map_or(Params::Null, |doc| Params::Some(Box::new(doc)))
    }

    /// The id that a handoff goes by.
    fn remote_id(&self, prompt: usize) -> String {
        let middle = match self.ask.api {
            Api::Completions => format!("-{prompt}"),
            Api::Responses => "_0".to_owned(),
            Api::Chat | Api::Messages | Api::Generate => String::new(),
        };
        format!("{}{middle}-{:08x}", self.id, fastrand::u32(..))
    }

    fn handoff(&self, remote: &str, blocks: &[usize], tokens: usize, missing: Option<Missing>) -> Doc {
        let mode = self.faults.iter().find_map(|fault| {
            if let FaultKind::TransferMode(mode) = fault { Some(mode.as_str()) } else { None }
        });
        let ids = if missing == Some(Missing::NullBlocks) { Value::Null } else { json!([blocks]) };
        let doc = Doc::new()
            .put("do_remote_prefill", true)
            .put("do_remote_decode", false)
            .put("remote_block_ids", ids)
            .put("remote_engine_id", self.engine.id())
            .put("remote_request_id", remote)
            .put("remote_host", &self.engine.config().host)
            .put("remote_port", self.engine.side_port())
            .put("tp_size", 1)
            .put("dcp_size", 1)
            .put("pp_size", 1)
            .put("remote_num_tokens", tokens)
            .put("remote_blocks_expiry_time", ())
            .put("transfer_mode", mode.unwrap_or("pull"))
            .put("remote_prefill_cached_tokens", 0);
        if missing == Some(Missing::NoPort) { doc.without("remote_port") } else { doc }
    }

    /// Pulls a handoff and compares it with the prompt that came with it. Gives the digest that the engine
    /// goes on from.
    async fn fetch(&self, own: Vec<u64>) -> Result<Vec<u64>, ApiError> {
        let (engine, ask) = (&self.engine, &self.ask);
        if let Some(why) = deadly(ask) {
            engine.violation(format!("a handoff {why}, which kills a decode engine"));
            life::killed(engine);
            return Err(ApiError::dead_core());
        }
        for (wrong, what) in [
            (ask.n != 1, "a handoff for several choices: their reads race with the end of its blocks"),
            (ask.echo, "a handoff for a request with echo"),
            (ask.prompt_logprobs.is_some(), "a handoff for a request with prompt_logprobs"),
            (
                ask.params.get("transfer_mode").is_some_and(|mode| mode != "pull"),
                "a handoff that is not for pull",
            ),
        ] {
            if wrong {
                engine.violation(what);
            }
        }
        let first = own.first().copied().unwrap_or_default();
        let limit = engine.config().load_timeout;
        let mut unfetched = Unfetched { engine, params: Some(&ask.params) };
        let tokens = ask.prompt_tokens();
        pause(times(engine.config().latency.transfer_per_token, tokens)).await;
        let reply = side::call(Op::Fetch, &ask.params, limit).await;
        unfetched.params = None;
        match reply {
            Ok(Reply::Done { digest, altered }) => {
                engine.external_tokens.fetch_add(tokens as u64, Ordering::Relaxed);
                engine.prompt_tokens.fetch_add(tokens as u64, Ordering::Relaxed);
                if altered {
                    engine.violation("a handoff was changed on its way");
                }
                if digest != first {
                    engine.violation("a handoff of another prompt");
                    return Err(ApiError::failed_load());
                }
                Ok(vec![digest])
            }
            Ok(Reply::Expired) => {
                engine.violation("a handoff was used after its lease");
                // A real engine reads blocks that hold another prompt by now, and says nothing.
                Ok(vec![first.rotate_left(7) ^ 1])
            }
            Ok(other @ (Reply::Served | Reply::Released | Reply::Unknown | Reply::OtherEngine)) => {
                engine.violation(format!("a handoff that cannot be fetched: {other:?}"));
                Err(ApiError::failed_load())
            }
            Ok(Reply::PastLife) => self.failed_load("its engine has restarted", own).await,
            Err(error) => self.failed_load(&format!("its engine cannot be reached: {error}"), own).await,
        }
    }

    /// Nobody's fault: fail, or compute the prompt here, as the policy says.
    async fn failed_load(&self, why: &str, own: Vec<u64>) -> Result<Vec<u64>, ApiError> {
        self.engine.failure(format!("a handoff was not loaded: {why}"));
        if !self.engine.config().recompute {
            return Err(ApiError::failed_load());
        }
        self.compute().await;
        Ok(own)
    }
}

/// Why a handoff kills a real decode engine, if it does.
fn deadly(ask: &Ask) -> Option<&'static str> {
    let has = |name: &str| ask.params.get(name).is_some_and(|value| !value.is_null());
    if ask.prompts.len() != 1 {
        return Some("for several prompts");
    }
    let needed = ["remote_engine_id", "remote_request_id", "remote_host", "remote_port"];
    if !ask.params.get("remote_block_ids").is_some_and(Value::is_array) {
        return Some("without block ids");
    }
    needed.iter().any(|name| !has(name)).then_some("without an address")
}

/// Blocks of a prompt that is being computed; given back when its client leaves.
struct Blocks<'a> {
    engine: &'a Engine,
    blocks: Vec<usize>,
}

impl Drop for Blocks<'_> {
    fn drop(&mut self) {
        if !self.blocks.is_empty() {
            self.engine.ledger().give(std::mem::take(&mut self.blocks));
            self.engine.freed();
        }
    }
}

/// A handoff that was not asked for yet: when the client leaves now, its prefill engine is told.
struct Unfetched<'a> {
    engine: &'a Arc<Engine>,
    params: Option<&'a Value>,
}

impl Drop for Unfetched<'_> {
    fn drop(&mut self) {
        if let Some(params) = self.params.take().cloned() {
            let limit = self.engine.config().load_timeout;
            self.engine.tasks().spawn(async move { release(&params, limit).await });
        }
    }
}

/// Tells the prefill engine of a handoff that nobody will fetch it.
pub(crate) async fn release(params: &Value, limit: Duration) {
    // Where it cannot be reached the lease does the same.
    side::call(Op::Release, params, limit).await.ok();
}

fn times(each: Duration, count: usize) -> Duration {
    each.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX))
}

async fn pause(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}

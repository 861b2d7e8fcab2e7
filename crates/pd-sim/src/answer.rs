//! Whole answers: the documents of each API, member for member as vLLM 0.32 orders them.

use serde_json::{Value, json};

use crate::ask::{self, Api, Ask};
use crate::config::SimConfig;
use crate::json::Doc;
use crate::model;
use crate::prompt::Prompt;

/// One choice of an answer.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    pub(crate) index: usize,
    pub(crate) prompt: Prompt,
    pub(crate) ids: Vec<u32>,
}

/// A computed answer, before it is written down.
#[derive(Clone, Debug)]
pub(crate) struct Computed {
    pub(crate) ask: Ask,
    pub(crate) id: String,
    pub(crate) model: String,
    pub(crate) created: u64,
    pub(crate) choices: Vec<Choice>,
    /// The handoff that a prefill answer carries; `None` is null.
    pub(crate) params: Params,
}

/// What an answer carries as `kv_transfer_params`.
#[derive(Clone, Debug)]
pub(crate) enum Params {
    Null,
    Absent,
    Some(Box<Doc>),
}

/// The tokens that an engine gives for these digests, one a prompt.
pub(crate) fn choices(ask: &Ask, digests: &[u64]) -> Vec<Choice> {
    let mut all = Vec::new();
    for (prompt, digest) in ask.prompts.iter().zip(digests) {
        for choice in 0..ask.n {
            let ids = (0..ask.max_tokens).map(|position| model::next(*digest, choice, position)).collect();
            all.push(Choice { index: all.len(), prompt: prompt.clone(), ids });
        }
    }
    all
}

/// The text that any engine, and any pair of engines, must give as first choice for this request; empty for
/// a request that is refused. `max_tokens` stands for the request's own limit where that is absent.
#[must_use]
pub fn expected(path: &str, body: &Value, max_tokens: usize) -> String {
    let model = body.get("model").and_then(Value::as_str).unwrap_or("sim").to_owned();
    let config = SimConfig { model, default_max_tokens: max_tokens, ..SimConfig::default() };
    let Some(Ok(ask)) = Api::on(path).map(|api| ask::read(&config, api, body)) else { return String::new() };
    let digests: Vec<_> = ask.prompts.iter().map(|prompt| model::digest(&prompt.ids)).collect();
    choices(&ask, &digests).first().map(Choice::text).unwrap_or_default()
}

impl Choice {
    /// What was generated.
    pub(crate) fn text(&self) -> String {
        self.ids.iter().copied().map(model::piece).collect()
    }
}

impl Computed {
    /// The document of a whole answer.
    pub(crate) fn document(&self) -> Doc {
        match self.ask.api {
            Api::Completions => self.completions(),
            Api::Chat => self.chat(),
            Api::Responses => self.response(true),
            Api::Messages => self.messages(),
            Api::Generate => self.generate(),
        }
    }

    /// The usage of the answer as far as `generated` tokens.
    pub(crate) fn usage(&self, generated: usize) -> Doc {
        let prompt = self.ask.prompt_tokens();
        Doc::new()
            .put("prompt_tokens", prompt)
            .put("total_tokens", prompt + generated)
            .put("completion_tokens", generated)
    }

    pub(crate) fn generated(&self) -> usize {
        self.choices.iter().map(|choice| choice.ids.len()).sum()
    }

    fn whole_usage(&self) -> Doc {
        self.usage(self.generated()).nulls(&["prompt_tokens_details", "completion_tokens_details"])
    }

    fn with_params(&self, doc: Doc) -> Doc {
        match &self.params {
            Params::Null => doc.put("kv_transfer_params", ()),
            Params::Absent => doc,
            Params::Some(params) => doc.put("kv_transfer_params", params),
        }
    }

    fn completions(&self) -> Doc {
        let choice = |choice: &Choice| {
            let echoed = if self.ask.echo { choice.prompt.text.as_str() } else { "" };
            Doc::new()
                .put("index", choice.index)
                .put("text", format!("{echoed}{}", choice.text()))
                .put("logprobs", self.ask.logprobs.then(|| completion_logprobs(&choice.ids)))
                .put("finish_reason", "length")
                .put("stop_reason", ())
                .put("token_ids", self.ask.token_ids.then_some(&choice.ids))
                .put("prompt_logprobs", self.prompt_logprobs(choice))
                .put("prompt_token_ids", self.ask.token_ids.then_some(&choice.prompt.ids))
                .put("routed_experts", ())
        };
        let doc = Doc::new()
            .put("id", &self.id)
            .put("object", "text_completion")
            .put("created", self.created)
            .put("model", &self.model)
            .put("choices", self.choices.iter().map(choice).collect::<Vec<_>>())
            .put("service_tier", ())
            .put("system_fingerprint", "vllm-0.32.0-sim")
            .put("usage", self.whole_usage());
        self.with_params(doc).nulls(&["ec_transfer_params", "metrics"])
    }

    fn chat(&self) -> Doc {
        let choice = |choice: &Choice| {
            let message = Doc::new().put("role", "assistant").put("content", choice.text()).nulls(&[
                "refusal",
                "annotations",
                "audio",
                "function_call",
                "reasoning",
            ]);
            Doc::new()
                .put("index", choice.index)
                .put("message", message)
                .put("logprobs", self.ask.logprobs.then(|| chat_logprobs(&choice.ids)))
                .put("finish_reason", "length")
                .put("stop_reason", ())
                .put("token_ids", self.ask.token_ids.then_some(&choice.ids))
                .put("routed_experts", ())
        };
        let first = self.choices.first();
        let doc = Doc::new()
            .put("id", &self.id)
            .put("object", "chat.completion")
            .put("created", self.created)
            .put("model", &self.model)
            .put("choices", self.choices.iter().map(choice).collect::<Vec<_>>())
            .put("service_tier", ())
            .put("system_fingerprint", "vllm-0.32.0-sim")
            .put("usage", self.whole_usage())
            .put("prompt_logprobs", first.and_then(|choice| self.prompt_logprobs(choice)))
            .put(
                "prompt_token_ids",
                first.filter(|_| self.ask.token_ids).map(|choice| choice.prompt.ids.clone()),
            )
            .put("prompt_text", ());
        self.with_params(doc).nulls(&["ec_transfer_params", "metrics"])
    }

    fn messages(&self) -> Doc {
        let text = self.choices.first().map(Choice::text).unwrap_or_default();
        let doc = Doc::new()
            .put("id", &self.id)
            .put("type", "message")
            .put("role", "assistant")
            .put("content", json!([{"type": "text", "text": text}]))
            .put("model", &self.model)
            .put("stop_reason", "max_tokens")
            .put("usage", self.message_usage(self.generated()));
        if matches!(self.params, Params::Some(_)) { self.with_params(doc) } else { doc }
    }

    pub(crate) fn message_usage(&self, generated: usize) -> Doc {
        Doc::new().put("input_tokens", self.ask.prompt_tokens()).put("output_tokens", generated)
    }

    fn generate(&self) -> Doc {
        let choice = |choice: &Choice| {
            let end = choice.ids.len();
            generate_choice(choice.index, &choice.ids, Some(end))
        };
        let doc = Doc::new()
            .put("request_id", &self.id)
            .put("model", &self.model)
            .put("created", self.created)
            .put("usage", self.whole_usage())
            .put("prompt_logprobs", self.choices.first().and_then(|choice| self.prompt_logprobs(choice)))
            .nulls(&["prompt_token_id_logprobs", "prompt_token_ids", "mm_placeholders", "metrics"]);
        self.with_params(doc)
            .put("ec_transfer_params", ())
            .put("output_mode", "tokens")
            .put("choices", self.choices.iter().map(choice).collect::<Vec<_>>())
    }

    /// The Responses document, as it starts or as it ends.
    pub(crate) fn response(&self, ended: bool) -> Doc {
        let output = if ended { vec![self.output_item(true)] } else { Vec::new() };
        let status = if ended { "incomplete" } else { "in_progress" };
        let details = ended.then(|| json!({"reason": "max_output_tokens"}));
        let doc = Doc::new()
            .put("id", &self.id)
            .put("created_at", self.created)
            .put("incomplete_details", details)
            .nulls(&["instructions", "metadata"])
            .put("model", &self.model)
            .put("object", "response")
            .put("output", output)
            .put("parallel_tool_calls", true)
            .put("temperature", 0.0)
            .put("tool_choice", "none")
            .put("tools", json!([]))
            .put("top_p", 1.0)
            .put("background", false)
            .put("max_output_tokens", self.ask.max_tokens)
            .nulls(&["max_tool_calls", "previous_response_id", "prompt", "reasoning"])
            .put("service_tier", "auto")
            .put("status", status)
            .nulls(&["text", "top_logprobs"])
            .put("truncation", "disabled")
            .put("usage", ended.then(|| self.response_usage()))
            .put("user", ())
            .put("presence_penalty", 0.0)
            .put("frequency_penalty", 0.0);
        self.with_params(doc).nulls(&["ec_transfer_params", "input_messages", "output_messages"])
    }

    fn response_usage(&self) -> Doc {
        let (input, output) = (self.ask.prompt_tokens(), self.generated());
        let of_input = Doc::new()
            .put("cached_tokens", 0)
            .put("cache_write_tokens", 0)
            .put("input_tokens_per_turn", json!([]))
            .put("cached_tokens_per_turn", json!([]));
        let of_output = Doc::new()
            .put("reasoning_tokens", 0)
            .put("tool_output_tokens", 0)
            .put("output_tokens_per_turn", json!([]))
            .put("tool_output_tokens_per_turn", json!([]));
        Doc::new()
            .put("input_tokens", input)
            .put("input_tokens_details", of_input)
            .put("output_tokens", output)
            .put("output_tokens_details", of_output)
            .put("total_tokens", input + output)
    }

    /// The one message of a Responses answer.
    pub(crate) fn output_item(&self, ended: bool) -> Doc {
        let text = self.choices.first().map(Choice::text).unwrap_or_default();
        let content = if ended { vec![output_text(&text, Value::Null)] } else { Vec::new() };
        Doc::new()
            .put("id", self.id.replacen("resp_", "msg_", 1))
            .put("content", content)
            .put("role", "assistant")
            .put("status", if ended { "completed" } else { "in_progress" })
            .put("type", "message")
            .put("phase", ())
    }

    fn prompt_logprobs(&self, choice: &Choice) -> Option<Value> {
        let one = |(at, id): (usize, &u32)| {
            if at == 0 {
                return Value::Null;
            }
            json!({ id.to_string(): {"logprob": model::logprob(*id, 0), "rank": 1, "decoded_token": model::piece(*id)} })
        };
        (self.ask.prompt_logprobs || (self.ask.echo && self.ask.logprobs))
            .then(|| choice.prompt.ids.iter().enumerate().map(one).collect())
    }
}

/// A text part of a Responses message.
pub(crate) fn output_text(text: &str, logprobs: Value) -> Doc {
    Doc::new()
        .put("annotations", json!([]))
        .put("text", text)
        .put("type", "output_text")
        .put("logprobs", logprobs)
}

/// One choice of a generate answer or chunk; `end` where it ends.
pub(crate) fn generate_choice(index: usize, ids: &[u32], end: Option<usize>) -> Doc {
    Doc::new()
        .put("index", index)
        .put("finish_reason", end.map(|_| "length"))
        .put("stop_reason", ())
        .put("token_ids", ids)
        .nulls(&["routed_experts", "sampling_mask"])
        .put("weight_versions", end.map(|end| json!([{"version": "default", "start": 0, "end": end}])))
        .put("logprobs", ())
}

/// Log-probabilities in the form of the completions API.
pub(crate) fn completion_logprobs(ids: &[u32]) -> Value {
    let tokens: Vec<_> = ids.iter().map(|id| model::piece(*id)).collect();
    let chances: Vec<_> = ids.iter().map(|id| model::logprob(*id, 0)).collect();
    let top: Vec<_> = ids.iter().map(|id| json!({ model::piece(*id): model::logprob(*id, 0) })).collect();
    json!({"text_offset": vec![0; ids.len()], "token_logprobs": chances, "tokens": tokens, "top_logprobs": top})
}

/// Log-probabilities in the form of the chat API.
pub(crate) fn chat_logprobs(ids: &[u32]) -> Value {
    let one = |id: &u32| {
        let token = model::piece(*id);
        let bytes = token.as_bytes().to_vec();
        json!({"token": token, "logprob": model::logprob(*id, 0), "bytes": bytes, "top_logprobs": []})
    };
    json!({ "content": ids.iter().map(one).collect::<Vec<_>>() })
}

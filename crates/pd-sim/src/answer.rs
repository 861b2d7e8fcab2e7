//! Whole answers: the documents of each API, member for member as vLLM 0.32 orders them.

use serde_json::{Value, json};

use crate::ask::{Api, Ask};
use crate::choice::Choice;
use crate::json::Doc;
use crate::logprobs::{self, Part};

/// A computed answer, before it is written down.
#[derive(Clone, Debug)]
pub(crate) struct Computed {
    pub(crate) ask: Ask,
    pub(crate) id: String,
    pub(crate) model: String,
    pub(crate) fingerprint: String,
    pub(crate) created: u64,
    /// What `usage` says of the prefix cache; `None` is null.
    pub(crate) cached: Option<u64>,
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
        let usage = Doc::new()
            .put("prompt_tokens", prompt)
            .put("total_tokens", prompt + generated)
            .put("completion_tokens", generated);
        match self.cached {
            Some(cached) => usage.put("prompt_tokens_details", Doc::new().put("cached_tokens", cached)),
            None => usage,
        }
    }

    pub(crate) fn generated(&self) -> usize {
        self.choices.iter().map(|choice| choice.ids.len()).sum()
    }

    fn whole_usage(&self) -> Doc {
        let usage = self.usage(self.generated());
        let usage = if self.cached.is_none() { usage.put("prompt_tokens_details", ()) } else { usage };
        usage.put("completion_tokens_details", ())
    }

    fn with_params(&self, doc: Doc) -> Doc {
        match &self.params {
            Params::Null => doc.put("kv_transfer_params", ()),
            Params::Absent => doc,
            Params::Some(params) => doc.put("kv_transfer_params", params),
        }
    }

    fn completions(&self) -> Doc {
        let whole = |choice: &Choice| Part { prompt: self.ask.echo, tokens: 0..choice.ids.len() };
        let choice = |choice: &Choice| {
            let echoed = if self.ask.echo { choice.prompt.text.as_str() } else { "" };
            Doc::new()
                .put("index", choice.index)
                .put("text", format!("{echoed}{}", choice.text()))
                .put("logprobs", logprobs::completion(&self.ask, choice, whole(choice)))
                .put("finish_reason", choice.finish())
                .put("stop_reason", &choice.stop)
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
            .put("system_fingerprint", &self.fingerprint)
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
                .put(
                    "logprobs",
                    self.ask.logprobs.map(|_| logprobs::chat(&choice.ids, self.ask.top_logprobs)),
                )
                .put("finish_reason", choice.finish())
                .put("stop_reason", &choice.stop)
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
            .put("system_fingerprint", &self.fingerprint)
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
            .put("stop_reason", self.message_stop())
            .put("usage", self.message_usage(self.generated()));
        if matches!(self.params, Params::Some(_)) { self.with_params(doc) } else { doc }
    }

    /// Why it ended, in the words of the messages API.
    pub(crate) fn message_stop(&self) -> &'static str {
        if self.stopped() { "stop_sequence" } else { "max_tokens" }
    }

    /// Whether the first choice ended before its limit.
    fn stopped(&self) -> bool {
        self.choices.first().is_some_and(|choice| !choice.stop.is_null())
    }

    pub(crate) fn message_usage(&self, generated: usize) -> Doc {
        Doc::new().put("input_tokens", self.ask.prompt_tokens()).put("output_tokens", generated)
    }

    fn generate(&self) -> Doc {
        let choice = |choice: &Choice| generate_choice(choice, &choice.ids, Some(choice.ids.len()));
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
        let cut = ended && !self.stopped();
        let status = match (ended, cut) {
            (false, _) => "in_progress",
            (true, true) => "incomplete",
            (true, false) => "completed",
        };
        let details = cut.then(|| json!({"reason": "max_output_tokens"}));
        let doc = Doc::new()
            .put("id", &self.id)
            .put("created_at", self.created)
            .put("incomplete_details", details)
            .nulls(&["instructions", "metadata"])
            .put("model", &self.model)
            .put("object", "response")
            .put("output", output)
            .put("parallel_tool_calls", true)
            .put("temperature", self.ask.temperature.unwrap_or(1.0))
            .put("tool_choice", "none")
            .put("tools", json!([]))
            .put("top_p", self.ask.top_p.unwrap_or(1.0))
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
            .put("cached_tokens", self.cached.unwrap_or(0))
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

    fn prompt_logprobs(&self, choice: &Choice) -> Option<Vec<Value>> {
        let echoed = self.ask.logprobs.filter(|_| self.ask.echo);
        let top = self.ask.prompt_logprobs.or(echoed)?;
        Some(logprobs::prompt(&choice.prompt.ids, top))
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
pub(crate) fn generate_choice(choice: &Choice, ids: &[u32], end: Option<usize>) -> Doc {
    Doc::new()
        .put("index", choice.index)
        .put("finish_reason", end.map(|_| choice.finish()))
        .put("stop_reason", end.map(|_| &choice.stop))
        .put("token_ids", ids)
        .nulls(&["routed_experts", "sampling_mask"])
        .put("weight_versions", end.map(|end| json!([{"version": "default", "start": 0, "end": end}])))
        .put("logprobs", ())
}

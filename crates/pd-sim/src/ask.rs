//! What a request asks for, with vLLM's checks in vLLM's order of refusal.

use serde_json::Value;

use crate::config::SimConfig;
use crate::error::ApiError;
use crate::prompt::{self, Prompt};

/// An inference API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    Completions,
    Chat,
    Responses,
    Messages,
    Generate,
}

impl Api {
    /// The API on this path.
    pub(crate) fn on(path: &str) -> Option<Api> {
        match path {
            "/v1/completions" => Some(Api::Completions),
            "/v1/chat/completions" => Some(Api::Chat),
            "/v1/responses" => Some(Api::Responses),
            "/v1/messages" => Some(Api::Messages),
            "/inference/v1/generate" => Some(Api::Generate),
            _ => None,
        }
    }

    /// What stands in front of the request id in the answer's id.
    pub(crate) fn id_prefix(self) -> &'static str {
        match self {
            Api::Completions => "cmpl-",
            Api::Chat | Api::Messages => "chatcmpl-",
            Api::Responses => "resp_",
            Api::Generate => "generate-tokens-",
        }
    }

    fn limit_field(self) -> &'static str {
        match self {
            Api::Responses => "max_output_tokens",
            Api::Completions | Api::Chat | Api::Messages | Api::Generate => "max_tokens",
        }
    }
}

/// A request that passed the checks.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) api: Api,
    pub(crate) prompts: Vec<Prompt>,
    pub(crate) n: usize,
    pub(crate) max_tokens: usize,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) continuous_usage: bool,
    pub(crate) echo: bool,
    pub(crate) prompt_logprobs: bool,
    pub(crate) logprobs: bool,
    pub(crate) token_ids: bool,
    pub(crate) params: Value,
}

impl Ask {
    /// Tokens of all prompts.
    pub(crate) fn prompt_tokens(&self) -> usize {
        self.prompts.iter().map(|prompt| prompt.ids.len()).sum()
    }

    /// Whether this is a prefill leg.
    pub(crate) fn remote_decode(&self) -> bool {
        truthy(self.params.get("do_remote_decode"))
    }

    /// Whether this is a decode leg with a handoff.
    pub(crate) fn remote_prefill(&self) -> bool {
        truthy(self.params.get("do_remote_prefill"))
    }
}

fn truthy(value: Option<&Value>) -> bool {
    !matches!(value, None | Some(Value::Null | Value::Bool(false)))
}

/// Reads a body; the refusals are those of vLLM 0.32.
pub(crate) fn read(config: &SimConfig, api: Api, body: &Value) -> Result<Ask, ApiError> {
    let sampling =
        if api == Api::Generate { body.get("sampling_params").unwrap_or(&Value::Null) } else { body };
    let stream = body.get("stream").and_then(Value::as_bool).unwrap_or(false);
    let options = body.get("stream_options").filter(|options| !options.is_null());
    if options.is_some() && !stream {
        let message = "Stream options can only be defined when `stream=True`. (parameter=stream_options)";
        return Err(ApiError::bad(message, Some("stream_options")));
    }
    if let Some(model) = body.get("model").and_then(Value::as_str)
        && model != config.model
    {
        return Err(ApiError::no_model(model, &config.model));
    }
    let prompts = prompt::read(api, body)?;
    let max_tokens = limit(config, api, sampling)?;
    let n = choices(sampling)?;
    let longest = prompts.iter().map(|prompt| prompt.ids.len()).max().unwrap_or(0);
    if longest > config.max_model_len {
        return Err(too_long(config.max_model_len, longest));
    }
    Ok(Ask {
        api,
        prompts,
        n,
        max_tokens: max_tokens.min(config.max_model_len.saturating_sub(longest)).max(1),
        stream,
        include_usage: options.is_some_and(|options| truthy(options.get("include_usage"))),
        continuous_usage: options.is_some_and(|options| truthy(options.get("continuous_usage_stats"))),
        echo: truthy(body.get("echo")),
        prompt_logprobs: sampling.get("prompt_logprobs").is_some_and(|value| !value.is_null()),
        logprobs: truthy(sampling.get("logprobs")),
        token_ids: truthy(body.get("return_token_ids")),
        params: body.get("kv_transfer_params").cloned().unwrap_or(Value::Null),
    })
}

fn limit(config: &SimConfig, api: Api, sampling: &Value) -> Result<usize, ApiError> {
    let field = api.limit_field();
    let completion = sampling.get("max_completion_tokens").and_then(Value::as_i64);
    let given =
        completion.filter(|_| api == Api::Chat).or_else(|| sampling.get(field).and_then(Value::as_i64));
    if given.is_none() && sampling.get(field).is_some_and(|value| !value.is_null()) {
        let message = "Input should be a valid integer";
        return Err(ApiError::schema(
            "int_type",
            &format!("body.{field}"),
            message,
            sampling.get(field).unwrap_or(&Value::Null),
        ));
    }
    let default = if api == Api::Completions { 16 } else { config.default_max_tokens };
    let limit = given.unwrap_or(i64::try_from(default).unwrap_or(16));
    if limit < 1 {
        return Err(ApiError::value(format!("{field} must be at least 1, got {limit}."), field, limit));
    }
    if let Some(least) = sampling.get("min_tokens").and_then(Value::as_i64)
        && least > limit
    {
        let message = format!("min_tokens must be less than or equal to max_tokens={limit}, got {least}.");
        return Err(ApiError::bad(message, None));
    }
    Ok(usize::try_from(limit).unwrap_or(usize::MAX))
}

fn choices(sampling: &Value) -> Result<usize, ApiError> {
    let n = sampling.get("n").and_then(Value::as_i64).unwrap_or(1);
    if n < 1 {
        return Err(ApiError::bad(format!("n must be at least 1, got {n}."), None));
    }
    let temperature = sampling.get("temperature").and_then(Value::as_f64);
    if let Some(wrong) = temperature.filter(|temperature| *temperature < 0.0) {
        return Err(ApiError::value(
            format!("temperature must be non-negative, got {wrong:?}."),
            "temperature",
            format!("{wrong:?}"),
        ));
    }
    if n > 1 && temperature == Some(0.0) {
        return Err(ApiError::bad(format!("n must be 1 when using greedy sampling, got {n}."), None));
    }
    Ok(usize::try_from(n).unwrap_or(1).min(128))
}

fn too_long(most: usize, length: usize) -> ApiError {
    ApiError::value(
        format!(
            "This model's maximum context length is {most} tokens. However, your prompt contains {length} input \
             tokens, which exceeds this limit even without any output tokens. Please reduce the length of the \
             input prompt."
        ),
        "input_tokens",
        length,
    )
}

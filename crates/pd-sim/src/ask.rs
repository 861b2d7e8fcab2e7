//! What a request asks for, with vLLM's checks in vLLM's order of refusal.

use serde_json::Value;

use crate::config::{Role, SimConfig};
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
    /// How many alternatives of each prompt token are asked for, if any.
    pub(crate) prompt_logprobs: Option<usize>,
    /// Likewise of each generated token; 1 where chat only says `true`.
    pub(crate) logprobs: Option<usize>,
    pub(crate) top_logprobs: usize,
    pub(crate) token_ids: bool,
    pub(crate) stop: Vec<String>,
    pub(crate) stop_ids: Vec<u32>,
    pub(crate) min_tokens: usize,
    /// `echo` with `max_tokens` 0: one token is computed and not shown.
    pub(crate) silent: bool,
    pub(crate) temperature: Option<f64>,
    pub(crate) top_p: Option<f64>,
    /// The transfer parameters that the engine acts on, from whichever place.
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
        return Err(ApiError::bad(message, Some("stream_options")).early());
    }
    if let Some(model) = body.get("model").and_then(Value::as_str)
        && model != config.model
    {
        return Err(ApiError::no_model(model, &config.model));
    }
    let params = params(config.role, api, body)?;
    let prompts = match prompt::given(&params).filter(|_| api == Api::Chat) {
        Some(given) => vec![given],
        None => prompt::read(api, body)?,
    };
    let echo = truthy(body.get("echo"));
    let silent = echo && sampling.get("max_tokens").and_then(Value::as_i64) == Some(0);
    let max_tokens = if silent { 1 } else { limit(config, api, sampling)? };
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
        echo,
        prompt_logprobs: count(sampling.get("prompt_logprobs")),
        logprobs: count(sampling.get("logprobs")),
        top_logprobs: count(sampling.get("top_logprobs")).unwrap_or(0),
        token_ids: truthy(body.get("return_token_ids")),
        stop: list(sampling.get("stop"), |stop| {
            stop.as_str().filter(|stop| !stop.is_empty()).map(str::to_owned)
        }),
        stop_ids: list(sampling.get("stop_token_ids"), |id| {
            id.as_u64().and_then(|id| u32::try_from(id).ok())
        }),
        min_tokens: count(sampling.get("min_tokens")).unwrap_or(0),
        silent,
        temperature: sampling.get("temperature").and_then(Value::as_f64),
        top_p: sampling.get("top_p").and_then(Value::as_f64),
        params,
    })
}

/// A number, or 1 for `true`.
fn count(value: Option<&Value>) -> Option<usize> {
    let value = value?;
    let number = value.as_u64().and_then(|count| usize::try_from(count).ok());
    number.or_else(|| (value == &Value::Bool(true)).then_some(1))
}

/// The items of a list, or a lone item.
fn list<T>(value: Option<&Value>, item: impl Fn(&Value) -> Option<T>) -> Vec<T> {
    match value {
        Some(Value::Array(items)) => items.iter().filter_map(item).collect(),
        Some(other) => item(other).into_iter().collect(),
        None => Vec::new(),
    }
}

/// Where a client's own transfer parameters would reach the engine.
pub(crate) fn side_door(api: Api, body: &Value) -> Option<&Value> {
    match api {
        Api::Generate => body.pointer("/sampling_params/extra_args"),
        Api::Completions | Api::Chat | Api::Responses | Api::Messages => body.get("vllm_xargs"),
    }
}

/// The transfer parameters: those of the body, else those of the side door.
fn params(role: Role, api: Api, body: &Value) -> Result<Value, ApiError> {
    let top = body.get("kv_transfer_params").filter(|params| !params.is_null());
    if let Some(params) = top {
        let bad = || {
            let message = "Input should be a valid dictionary";
            ApiError::schema("dict_type", "body.kv_transfer_params", message, params)
        };
        return if params.is_object() { Ok(params.clone()) } else { Err(bad()) };
    }
    match side_door(api, body).and_then(|door| door.get("kv_transfer_params")) {
        Some(params) if params.is_object() => Ok(params.clone()),
        Some(other) if !other.is_null() && role != Role::Plain => Err(ApiError::mute()),
        Some(_) | None => Ok(Value::Null),
    }
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

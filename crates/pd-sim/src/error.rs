//! Refusals in vLLM's words and shapes.

use http::{HeaderMap, HeaderValue, StatusCode, header};

use crate::json::Doc;

/// An answer other than 200, as vLLM words it.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    message: String,
    kind: &'static str,
    param: Option<String>,
    /// Whether vLLM had parsed the body by then: only such a refusal releases a handoff.
    pub(crate) parsed: bool,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: String, param: Option<&str>) -> ApiError {
        ApiError { status, message, kind, param: param.map(Into::into), parsed: true }
    }

    /// 400 from the engine's own checks.
    pub(crate) fn bad(message: impl Into<String>, param: Option<&str>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "BadRequestError", message.into(), param)
    }

    /// 400 from the engine's own checks, naming the parameter and its value as vLLM does.
    pub(crate) fn value(
        message: impl std::fmt::Display,
        param: &str,
        value: impl std::fmt::Display,
    ) -> ApiError {
        ApiError::bad(format!("{message} (parameter={param}, value={value})"), Some(param))
    }

    /// 400 from the schema: one validation error at `loc`.
    pub(crate) fn schema(kind: &str, loc: &str, msg: &str, input: &serde_json::Value) -> ApiError {
        let input = python(input);
        let message = format!(
            "1 validation error:\n  {{'type': '{kind}', 'loc': '{loc}', 'msg': '{msg}', 'input': {input}}}"
        );
        ApiError::new(StatusCode::BAD_REQUEST, "Bad Request", message, Some(loc)).early()
    }

    /// 400 for a body that is no JSON, or not said to be.
    pub(crate) fn unreadable(message: &str) -> ApiError {
        ApiError::new(
            StatusCode::BAD_REQUEST,
            "Bad Request",
            format!("1 validation error:\n  {message}"),
            None,
        )
        .early()
    }

    /// 404 for a model that is not served.
    pub(crate) fn no_model(asked: &str, served: &str) -> ApiError {
        let message = format!("The model `{asked}` does not exist. Valid aliases: {served}.");
        ApiError::new(StatusCode::NOT_FOUND, "NotFoundError", message, Some("model"))
    }

    /// 500: the KV cache could not be loaded.
    pub(crate) fn failed_load() -> ApiError {
        ApiError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalServerError",
            "Internal server error".into(),
            None,
        )
    }

    /// 500 with an empty message, as for a string where the engine wants an object.
    pub(crate) fn mute() -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalServerError", String::new(), None)
    }

    /// 500: the engine's core died of this request.
    pub(crate) fn dead_core() -> ApiError {
        let message = "EngineCore encountered an issue. See stack trace (above) for the root cause.";
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalServerError", message.into(), None)
    }

    /// The same refusal, given before the body was parsed.
    pub(crate) fn early(self) -> ApiError {
        ApiError { parsed: false, ..self }
    }

    /// Status, headers and JSON text of the answer.
    pub(crate) fn parts(&self) -> (StatusCode, HeaderMap, String) {
        let error = Doc::new()
            .put("message", &self.message)
            .put("type", self.kind)
            .put("param", &self.param)
            .put("code", self.status.as_u16());
        let headers =
            HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        (self.status, headers, Doc::new().put("error", error).text())
    }

    /// The first event of a stream whose 200 was already sent, in Python's spacing.
    pub(crate) fn event(&self) -> String {
        let message = serde_json::to_string(&self.message).unwrap_or_default();
        let param = serde_json::to_string(&self.param).unwrap_or_default();
        format!(
            "data: {{\"error\": {{\"message\": {message}, \"type\": \"{}\", \"param\": {param}, \"code\": {}}}}}\n\n",
            self.kind,
            self.status.as_u16()
        )
    }
}

/// How Python prints a JSON value.
fn python(value: &serde_json::Value) -> String {
    use serde_json::Value;
    match value {
        Value::Null => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'")),
        Value::Array(items) => format!("[{}]", items.iter().map(python).collect::<Vec<_>>().join(", ")),
        Value::Object(map) => {
            let members: Vec<_> =
                map.iter().map(|(name, value)| format!("'{name}': {}", python(value))).collect();
            format!("{{{}}}", members.join(", "))
        }
    }
}

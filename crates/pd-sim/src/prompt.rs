//! From a request body to prompt tokens: template and tokenizer.
//!
//! A token is a run of white space with the word after it, so the tokens of a text hold every byte of it.

use serde_json::Value;

use crate::ask::Api;
use crate::error::ApiError;
use crate::model;

/// One prompt, as tokens and as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prompt {
    pub(crate) ids: Vec<u32>,
    pub(crate) text: String,
}

impl Prompt {
    /// The prompt of a text.
    pub(crate) fn of_text(text: &str) -> Prompt {
        Prompt { ids: pieces(text).map(model::id_of).collect(), text: text.into() }
    }

    /// The prompt of token ids.
    pub(crate) fn of_ids(ids: Vec<u32>) -> Prompt {
        Prompt { text: ids.iter().copied().map(model::piece).collect(), ids }
    }

    /// The text of each token.
    pub(crate) fn pieces(&self) -> Vec<String> {
        let own: Vec<_> = pieces(&self.text).map(str::to_owned).collect();
        if own.len() == self.ids.len() { own } else { self.ids.iter().copied().map(model::piece).collect() }
    }
}

/// Cuts before each run of white space that follows a word.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let word = rest.find(|c: char| !c.is_whitespace()).unwrap_or(rest.len());
        let end = rest.get(word..)?.find(char::is_whitespace).map_or(rest.len(), |at| word + at);
        let (piece, after) = rest.split_at_checked(end)?;
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

/// The prompts that a body asks for.
pub(crate) fn read(api: Api, body: &Value) -> Result<Vec<Prompt>, ApiError> {
    match api {
        Api::Completions => completions(body.get("prompt").unwrap_or(&Value::Null)),
        Api::Chat | Api::Messages => Ok(vec![chat(body)?]),
        Api::Responses => Ok(vec![responses(body)?]),
        Api::Generate => {
            let value = body.get("token_ids").unwrap_or(&Value::Null);
            let bad =
                || ApiError::schema("list_type", "body.token_ids", "Input should be a valid list", value);
            Ok(vec![Prompt::of_ids(ids(value).ok_or_else(bad)?)])
        }
    }
}

/// The prompt that a chat decode leg takes in the place of its own (`kv_transfer_params.prompt_token_ids`).
pub(crate) fn given(params: &Value) -> Option<Prompt> {
    params.get("prompt_token_ids").and_then(ids).map(Prompt::of_ids)
}

fn completions(prompt: &Value) -> Result<Vec<Prompt>, ApiError> {
    let none = "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)";
    let bad = || ApiError::schema("string_type", "body.prompt", "Input should be a valid string", prompt);
    match prompt {
        Value::String(text) if !text.is_empty() => Ok(vec![Prompt::of_text(text)]),
        Value::Array(items) if !items.is_empty() => {
            if let Some(ids) = ids(prompt) {
                return Ok(vec![Prompt::of_ids(ids)]);
            }
            let one = |item: &Value| match item.as_str() {
                Some(text) => Some(Prompt::of_text(text)),
                None => ids(item).map(Prompt::of_ids),
            };
            items.iter().map(one).collect::<Option<Vec<_>>>().ok_or_else(bad)
        }
        Value::Null | Value::String(_) | Value::Array(_) => Err(ApiError::bad(none, Some("prompt")).early()),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => Err(bad()),
    }
}

fn ids(value: &Value) -> Option<Vec<u32>> {
    let one = |item: &Value| item.as_u64().and_then(|id| u32::try_from(id).ok());
    value.as_array()?.iter().map(one).collect()
}

fn chat(body: &Value) -> Result<Prompt, ApiError> {
    let messages = body.get("messages").unwrap_or(&Value::Null);
    let Some(list) = messages.as_array() else {
        return Err(ApiError::schema("list_type", "body.messages", "Input should be a valid list", messages));
    };
    let mut text = extras(body, &["system", "tools", "chat_template_kwargs", "documents"]);
    list.iter().for_each(|message| turn(&mut text, message));
    text.push_str(" <|assistant|>");
    Ok(Prompt::of_text(&text))
}

fn responses(body: &Value) -> Result<Prompt, ApiError> {
    let mut text = extras(body, &["instructions", "tools"]);
    match body.get("input").unwrap_or(&Value::Null) {
        Value::String(input) => turn(&mut text, &serde_json::json!({ "role": "user", "content": input })),
        Value::Array(items) => items.iter().for_each(|item| turn(&mut text, item)),
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) => {
            return Err(ApiError::schema(
                "string_type",
                "body.input",
                "Input should be a valid string",
                other,
            ));
        }
    }
    text.push_str(" <|assistant|>");
    Ok(Prompt::of_text(&text))
}

/// Members beside the conversation that a template would show to the model.
fn extras(body: &Value, names: &[&str]) -> String {
    let shown =
        names.iter().filter_map(|name| Some((name, body.get(*name).filter(|value| !value.is_null())?)));
    shown.fold(String::new(), |text, (name, value)| match value.as_str() {
        Some(value) => format!("{text} <|{name}|> {value}"),
        None => format!("{text} <|{name}|> {value}"),
    })
}

/// One message: role, content, and whatever else it holds.
fn turn(text: &mut String, message: &Value) {
    let role = message.get("role").and_then(Value::as_str).unwrap_or("user");
    text.push_str(&format!(" <|{role}|> "));
    match message.get("content") {
        Some(Value::String(content)) => text.push_str(content),
        Some(Value::Array(parts)) => {
            parts.iter().for_each(|part| match part.get("text").and_then(Value::as_str) {
                Some(content) => text.push_str(content),
                None => text.push_str(&part.to_string()),
            })
        }
        None | Some(Value::Null) => {}
        Some(other) => text.push_str(&other.to_string()),
    }
    let others = message.as_object().into_iter().flatten();
    for (name, value) in
        others.filter(|(name, value)| !value.is_null() && !["role", "content"].contains(&name.as_str()))
    {
        text.push_str(&format!(" {name}={value}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_hold_every_byte() {
        for text in ["", " ", "a", " a b", "a  b\n\nc ", "é 日本\u{3000}x"] {
            assert_eq!(pieces(text).collect::<String>(), text);
        }
        assert_eq!(pieces(" a  b ").collect::<Vec<_>>(), [" a", "  b", " "]);
        assert_ne!(Prompt::of_text("a b").ids, Prompt::of_text("a  b").ids);
    }

    #[test]
    fn parts_and_string_are_the_same_prompt() {
        let string = serde_json::json!({ "messages": [{ "role": "user", "content": "hi there" }] });
        let parts = serde_json::json!({ "messages": [{ "role": "user", "content": [{ "type": "text", "text": "hi there" }] }] });
        assert_eq!(read(Api::Chat, &string).unwrap(), read(Api::Chat, &parts).unwrap());
    }

    #[test]
    fn lists_of_strings_and_of_ids() {
        let count = |prompt| completions(&prompt).unwrap().len();
        assert_eq!(count(serde_json::json!(["a", "b"])), 2);
        assert_eq!(count(serde_json::json!([1, 2, 3])), 1);
        assert_eq!(count(serde_json::json!([[1], [2, 3]])), 2);
        assert!(completions(&serde_json::json!([])).is_err());
        assert!(completions(&serde_json::json!([-1])).is_err());
        assert!(completions(&serde_json::json!({})).is_err());
    }
}

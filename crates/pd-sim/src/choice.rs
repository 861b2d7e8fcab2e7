//! What is generated: the tokens of each choice, up to the limit or a stop.

use serde_json::Value;

use crate::ask::{self, Api, Ask};
use crate::config::SimConfig;
use crate::model;
use crate::prompt::Prompt;

/// One choice of an answer.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    pub(crate) index: usize,
    pub(crate) prompt: Prompt,
    pub(crate) ids: Vec<u32>,
    /// The text that each token adds; a stop string and what follows it is cut off.
    pub(crate) pieces: Vec<String>,
    /// The stop string or token that ended it; null where the limit did.
    pub(crate) stop: Value,
}

impl Choice {
    fn new(ask: &Ask, index: usize, prompt: &Prompt, digest: u64, choice: usize) -> Choice {
        let mut new =
            Choice { index, prompt: prompt.clone(), ids: Vec::new(), pieces: Vec::new(), stop: Value::Null };
        let mut text = String::new();
        while new.ids.len() < ask.max_tokens && new.stop.is_null() {
            let id = model::next(digest, choice, new.ids.len());
            new.ids.push(id);
            let may_stop = new.ids.len() > ask.min_tokens;
            if may_stop && ask.stop_ids.contains(&id) {
                new.stop = id.into();
                new.pieces.push(String::new());
                break;
            }
            let piece = if ask.silent { String::new() } else { model::piece(id) };
            text.push_str(&piece);
            new.pieces.push(piece);
            let found = ask.stop.iter().filter_map(|stop| Some((text.find(stop)?, stop))).min();
            if let Some((at, stop)) = found.filter(|_| may_stop) {
                new.stop = stop.as_str().into();
                new.cut(at);
            }
        }
        new
    }

    /// Keeps this many bytes of the text.
    fn cut(&mut self, mut left: usize) {
        for piece in &mut self.pieces {
            let keep = left.min(piece.len());
            piece.truncate(keep);
            left -= keep;
        }
    }

    /// What was generated.
    pub(crate) fn text(&self) -> String {
        self.pieces.concat()
    }

    /// The text of one token.
    pub(crate) fn piece(&self, position: usize) -> &str {
        self.pieces.get(position).map(String::as_str).unwrap_or_default()
    }

    /// Why it ended, in the words of the OpenAI APIs.
    pub(crate) fn finish(&self) -> &'static str {
        if self.stop.is_null() { "length" } else { "stop" }
    }

    /// Whether this is the last token.
    pub(crate) fn ends_at(&self, position: usize) -> bool {
        position + 1 == self.ids.len()
    }
}

/// The choices that an engine gives for these digests, one a prompt.
pub(crate) fn choices(ask: &Ask, digests: &[u64]) -> Vec<Choice> {
    let mut all = Vec::new();
    for (prompt, digest) in ask.prompts.iter().zip(digests) {
        for choice in 0..ask.n {
            all.push(Choice::new(ask, all.len(), prompt, *digest, choice));
        }
    }
    all
}

/// The text that any engine, and any pair of engines, must generate as first choice for this request; empty
/// for a request that is refused. `max_tokens` stands for the request's own limit where that is absent.
#[must_use]
pub fn expected(path: &str, body: &Value, max_tokens: usize) -> String {
    expected_choice(path, body, max_tokens, 0).map(|choice| choice.text()).unwrap_or_default()
}

/// Like [`expected`], as token ids.
#[must_use]
pub fn expected_ids(path: &str, body: &Value, max_tokens: usize) -> Vec<u32> {
    expected_choice(path, body, max_tokens, 0).map(|choice| choice.ids).unwrap_or_default()
}

/// Like [`expected`], for each choice of each prompt, in the order of their indices.
#[must_use]
pub fn expected_all(path: &str, body: &Value, max_tokens: usize) -> Vec<String> {
    (0..)
        .map_while(|index| expected_choice(path, body, max_tokens, index))
        .map(|choice| choice.text())
        .collect()
}

fn expected_choice(path: &str, body: &Value, max_tokens: usize, index: usize) -> Option<Choice> {
    let model = body.get("model").and_then(Value::as_str).unwrap_or("sim").to_owned();
    let config = SimConfig { model, default_max_tokens: max_tokens, ..SimConfig::default() };
    let ask = ask::read(&config, Api::on(path)?, body).ok()?;
    let digests: Vec<_> = ask.prompts.iter().map(|prompt| model::digest(&prompt.ids)).collect();
    choices(&ask, &digests).into_iter().nth(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_string_ends_and_cuts_the_text() {
        let body = |stop: Value| serde_json::json!({"prompt": "a b c", "max_tokens": 12, "stop": stop});
        let whole = expected("/v1/completions", &body(Value::Null), 0);
        let stop: String = whole.chars().skip(8).take(3).collect();
        let cut = expected("/v1/completions", &body(stop.as_str().into()), 0);
        assert_eq!(cut, whole.split(stop.as_str()).next().unwrap());
    }

    #[test]
    fn a_stop_token_is_counted_but_not_shown() {
        let free = serde_json::json!({"prompt": "a b c", "max_tokens": 12});
        let ids = expected_ids("/v1/completions", &free, 0);
        let stopped = serde_json::json!({"prompt": "a b c", "max_tokens": 12, "stop_token_ids": [ids[4]]});
        let got = expected_ids("/v1/completions", &stopped, 0);
        assert_eq!(got, ids[..got.len()]);
        assert_eq!(got.last(), Some(&ids[4]));
        assert!(!expected("/v1/completions", &stopped, 0).ends_with(&model::piece(ids[4])));
    }

    #[test]
    fn n_choices_of_several_prompts() {
        let body = serde_json::json!({"prompt": ["a", "b"], "n": 2, "temperature": 1, "max_tokens": 4});
        let all = expected_all("/v1/completions", &body, 0);
        assert_eq!(all.len(), 4);
        assert_eq!(
            all[2],
            expected("/v1/completions", &serde_json::json!({"prompt": "b", "max_tokens": 4}), 0)
        );
    }
}

//! Log-probabilities: invented, but in the recorded forms.

use std::ops::Range;

use serde_json::{Value, json};

use crate::ask::Ask;
use crate::choice::Choice;
use crate::json::Doc;
use crate::model;

/// The token itself, then other words in its place.
fn ranked(id: u32, count: usize) -> impl Iterator<Item = (u32, f64)> {
    let other = move |rank: u32| if rank == 0 { id } else { (id % model::WORDS + rank) % model::WORDS };
    let ranks = 0..u32::try_from(count.clamp(1, 20)).unwrap_or(1);
    ranks.map(move |rank| (other(rank), model::logprob(id, rank)))
}

/// Which tokens of an answer: the prompt's or not, and these of the generated ones.
pub(crate) struct Part {
    pub(crate) prompt: bool,
    pub(crate) tokens: Range<usize>,
}

/// In the form of the completions API.
pub(crate) fn completion(ask: &Ask, choice: &Choice, part: Part) -> Option<Doc> {
    let top = ask.logprobs?;
    let (mut texts, mut ids, mut offset) = (Vec::new(), Vec::new(), 0);
    if part.prompt {
        texts = choice.prompt.pieces();
        ids.clone_from(&choice.prompt.ids);
    } else {
        let echoed = if ask.echo { choice.prompt.text.chars().count() } else { 0 };
        let before = choice.pieces.iter().take(part.tokens.start);
        offset = echoed + before.map(|piece| piece.chars().count()).sum::<usize>();
    }
    texts.extend(part.tokens.clone().map(|at| choice.piece(at).to_owned()));
    ids.extend(choice.ids.iter().skip(part.tokens.start).take(part.tokens.len()));
    let offsets: Vec<_> = texts
        .iter()
        .map(|text| {
            let at = offset;
            offset += text.chars().count();
            at
        })
        .collect();
    // Nothing comes before a prompt's first token, so it has no probability.
    let known = |at: usize| at > 0 || !part.prompt;
    let chances: Vec<_> =
        ids.iter().enumerate().map(|(at, id)| known(at).then(|| model::logprob(*id, 0))).collect();
    let tops: Vec<_> =
        ids.iter().enumerate().map(|(at, id)| known(at).then(|| alternatives(*id, top))).collect();
    let doc = Doc::new().put("text_offset", offsets).put("token_logprobs", chances);
    Some(doc.put("tokens", texts).put("top_logprobs", tops))
}

fn alternatives(id: u32, top: usize) -> Doc {
    ranked(id, top).fold(Doc::new(), |doc, (id, chance)| doc.put(model::piece(id), chance))
}

/// In the form of the chat API.
pub(crate) fn chat(ids: &[u32], top: usize) -> Doc {
    let one = |id: u32, chance: f64| {
        let token = model::piece(id);
        Doc::new().put("token", &token).put("logprob", chance).put("bytes", token.as_bytes())
    };
    let token = |id: &u32| {
        let tops = ranked(*id, top).filter(|_| top > 0);
        one(*id, model::logprob(*id, 0))
            .put("top_logprobs", tops.map(|(id, chance)| one(id, chance)).collect::<Vec<_>>())
    };
    Doc::new().put("content", ids.iter().map(token).collect::<Vec<_>>())
}

/// Of a prompt: nothing for its first token.
pub(crate) fn prompt(ids: &[u32], top: usize) -> Vec<Value> {
    let one = |(at, id): (usize, &u32)| {
        if at == 0 {
            return Value::Null;
        }
        let entry = |(rank, (id, chance)): (usize, (u32, f64))| {
            (id.to_string(), json!({"logprob": chance, "rank": rank + 1, "decoded_token": model::piece(id)}))
        };
        Value::Object(ranked(*id, top).enumerate().map(entry).collect())
    };
    ids.iter().enumerate().map(one).collect()
}

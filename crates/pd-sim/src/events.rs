//! Streamed answers: the events of each API, one a token, as vLLM 0.32 sends them.

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Value, json};

use crate::answer::{self, Computed, output_text};
use crate::ask::Api;
use crate::choice::Choice;
use crate::json::Doc;
use crate::logprobs::{self, Part};

/// One event; `token` marks those that bring one, between which the engine computes.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) token: bool,
    pub(crate) text: Bytes,
}

/// Every event of a stream, in order.
pub(crate) fn all(computed: &Computed) -> Vec<Event> {
    match computed.ask.api {
        Api::Completions | Api::Chat | Api::Generate => chunks(computed),
        Api::Responses => responses(computed),
        Api::Messages => messages(computed),
    }
}

fn data(token: bool, document: &impl Serialize) -> Event {
    let text = serde_json::to_string(document).unwrap_or_default();
    Event { token, text: Bytes::from(format!("data: {text}\n\n")) }
}

fn named(token: bool, name: &str, document: &Doc) -> Event {
    Event { token, text: Bytes::from(format!("event: {name}\ndata: {}\n\n", document.text())) }
}

fn chunks(computed: &Computed) -> Vec<Event> {
    let mut events = Vec::new();
    let counted = |chunk: Doc, generated: usize| {
        let usage = || computed.usage(generated).put("completion_tokens_details", ());
        if computed.ask.continuous_usage { chunk.put("usage", usage()) } else { chunk }
    };
    if computed.ask.api == Api::Chat {
        let start = |choice: &Choice| {
            let prompt = computed.ask.token_ids.then_some(&choice.prompt.ids);
            let chunk = counted(chat_start(computed, choice), 0);
            data(false, &chunk.put("prompt_token_ids", prompt).put("prompt_text", ()))
        };
        events.extend(computed.choices.iter().map(start));
    }
    if computed.ask.api == Api::Completions && computed.ask.echo {
        events.extend(computed.choices.iter().map(|choice| data(false, &echo_chunk(computed, choice))));
    }
    let longest = computed.choices.iter().map(|choice| choice.ids.len()).max().unwrap_or(0);
    for position in 0..longest {
        for choice in computed.choices.iter().filter(|choice| position < choice.ids.len()) {
            let chunk = match computed.ask.api {
                Api::Completions => completion_chunk(computed, choice, position),
                Api::Generate => generate_chunk(computed, choice, position),
                Api::Chat | Api::Responses | Api::Messages => chat_chunk(computed, choice, position),
            };
            let signed = choice.ends_at(position) && !computed.ask.include_usage;
            let chunk = match computed.ask.api {
                Api::Completions | Api::Chat if signed => {
                    chunk.put("system_fingerprint", &computed.fingerprint)
                }
                Api::Completions | Api::Chat => counted(chunk, position + 1),
                Api::Generate | Api::Responses | Api::Messages => chunk,
            };
            events.push(data(true, &chunk));
        }
    }
    if computed.ask.include_usage {
        let usage = base(computed)
            .put("choices", json!([]))
            .put("usage", computed.usage(computed.generated()))
            .put("system_fingerprint", &computed.fingerprint);
        events.push(data(false, &usage));
    }
    events.push(Event { token: false, text: Bytes::from_static(b"data: [DONE]\n\n") });
    events
}

fn base(computed: &Computed) -> Doc {
    let object = if computed.ask.api == Api::Chat { "chat.completion.chunk" } else { "text_completion" };
    Doc::new()
        .put("id", &computed.id)
        .put("object", object)
        .put("created", computed.created)
        .put("model", &computed.model)
}

fn token(choice: &Choice, position: usize) -> u32 {
    choice.ids.get(position).copied().unwrap_or_default()
}

/// The prompt, in a chunk of its own before the first token.
fn echo_chunk(computed: &Computed, choice: &Choice) -> Doc {
    let choice = Doc::new()
        .put("index", choice.index)
        .put("text", &choice.prompt.text)
        .put("logprobs", logprobs::completion(&computed.ask, choice, Part { prompt: true, tokens: 0..0 }))
        .nulls(&["finish_reason", "stop_reason"])
        .put("prompt_token_ids", &choice.prompt.ids)
        .put("token_ids", ());
    base(computed).put("choices", [choice])
}

fn completion_chunk(computed: &Computed, choice: &Choice, position: usize) -> Doc {
    let first = computed.ask.token_ids && !computed.ask.echo && position == 0;
    let end = choice.ends_at(position);
    let part = Part { prompt: false, tokens: position..position + 1 };
    let choice = Doc::new()
        .put("index", choice.index)
        .put("text", choice.piece(position))
        .put("logprobs", logprobs::completion(&computed.ask, choice, part))
        .put("finish_reason", end.then(|| choice.finish()))
        .put("stop_reason", end.then_some(&choice.stop))
        .put("prompt_token_ids", first.then_some(&choice.prompt.ids))
        .put("token_ids", computed.ask.token_ids.then(|| vec![token(choice, position)]));
    base(computed).put("choices", [choice])
}

fn chat_start(computed: &Computed, choice: &Choice) -> Doc {
    let delta = json!({"role": "assistant", "content": ""});
    let choice =
        Doc::new().put("index", choice.index).put("delta", delta).nulls(&["logprobs", "finish_reason"]);
    base(computed).put("choices", [choice])
}

fn chat_chunk(computed: &Computed, choice: &Choice, position: usize) -> Doc {
    let (id, end) = (token(choice, position), choice.ends_at(position));
    let chunk = Doc::new()
        .put("index", choice.index)
        .put("delta", json!({"content": choice.piece(position)}))
        .put("logprobs", computed.ask.logprobs.map(|_| logprobs::chat(&[id], computed.ask.top_logprobs)))
        .put("finish_reason", end.then(|| choice.finish()));
    let chunk = if end { chunk.put("stop_reason", &choice.stop) } else { chunk };
    let chunk = chunk.put("token_ids", computed.ask.token_ids.then(|| vec![id]));
    base(computed).put("choices", [chunk])
}

fn generate_chunk(computed: &Computed, choice: &Choice, position: usize) -> Doc {
    let end = choice.ends_at(position).then_some(choice.ids.len());
    Doc::new()
        .put("request_id", &computed.id)
        .put("usage", ())
        .put("output_mode", "tokens")
        .put("choices", [answer::generate_choice(choice, &[token(choice, position)], end)])
}

fn responses(computed: &Computed) -> Vec<Event> {
    let item = computed.id.replacen("resp_", "msg_", 1);
    let text = computed.choices.first().map(Choice::text).unwrap_or_default();
    let pieces = computed.choices.first().map(|choice| choice.pieces.clone()).unwrap_or_default();
    let part = |name: &'static str, part: Doc| {
        (
            name,
            Doc::new().put("content_index", 0).put("item_id", &item).put("output_index", 0).put("part", part),
        )
    };
    let mut all = vec![
        ("response.created", Doc::new().put("response", computed.response(false))),
        ("response.in_progress", Doc::new().put("response", computed.response(false))),
        (
            "response.output_item.added",
            Doc::new().put("item", computed.output_item(false)).put("output_index", 0),
        ),
        part("response.content_part.added", output_text("", json!([]))),
    ];
    for piece in pieces {
        let delta = Doc::new()
            .put("content_index", 0)
            .put("delta", piece)
            .put("item_id", &item)
            .put("logprobs", json!([]))
            .put("output_index", 0);
        all.push(("response.output_text.delta", delta));
    }
    let done = Doc::new()
        .put("content_index", 0)
        .put("item_id", &item)
        .put("logprobs", json!([]))
        .put("output_index", 0);
    all.push(("response.output_text.done", done));
    all.push(part("response.content_part.done", output_text(&text, Value::Null)));
    let item_done = Doc::new().put("item", computed.output_item(true)).put("output_index", 0);
    all.push(("response.output_item.done", item_done));
    all.push(("response.completed", Doc::new().put("response", computed.response(true))));
    let numbered = all.into_iter().enumerate().map(|(number, (name, document))| {
        let document = document.put("sequence_number", number);
        let document =
            if name == "response.output_text.done" { document.put("text", &text) } else { document };
        named(name == "response.output_text.delta", name, &document.put("type", name))
    });
    numbered.collect()
}

fn messages(computed: &Computed) -> Vec<Event> {
    let typed = |name: &'static str| Doc::new().put("type", name);
    let message = Doc::new()
        .put("id", &computed.id)
        .put("type", "message")
        .put("role", "assistant")
        .put("content", json!([]))
        .put("model", &computed.model)
        .nulls(&["stop_reason", "stop_sequence"])
        .put("usage", computed.message_usage(0));
    let block = Doc::new().put("type", "text").put("text", "");
    let mut events = vec![
        named(false, "message_start", &typed("message_start").put("message", message)),
        named(
            false,
            "content_block_start",
            &typed("content_block_start").put("content_block", block).put("index", 0),
        ),
    ];
    for piece in computed.choices.first().map(|choice| choice.pieces.clone()).unwrap_or_default() {
        let delta = Doc::new().put("type", "text_delta").put("text", piece);
        let document = typed("content_block_delta").put("delta", delta).put("index", 0);
        events.push(named(true, "content_block_delta", &document));
    }
    let delta = Doc::new().put("stop_reason", computed.message_stop()).put("stop_sequence", ());
    let usage = computed.message_usage(computed.generated());
    events.push(named(false, "content_block_stop", &typed("content_block_stop").put("index", 0)));
    events.push(named(
        false,
        "message_delta",
        &typed("message_delta").put("delta", delta).put("usage", usage),
    ));
    events.push(named(false, "message_stop", &typed("message_stop")));
    events
}

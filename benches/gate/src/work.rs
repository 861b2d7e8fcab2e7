//! What is counted: one kind of request, and what the engines say to it.

use crate::engine::Answer;

/// Output tokens, and events of a stream.
const TOKENS: usize = 16;

/// One kind of request.
#[derive(Debug)]
pub(crate) struct Work {
    /// Its name in the table and in the file of numbers.
    pub(crate) name: &'static str,
    pub(crate) path: &'static str,
    pub(crate) body: String,
    /// The decode engine's answer.
    pub(crate) decode: Answer,
    /// Requests of the short run and of the long one; what they differ by is what requests cost.
    pub(crate) runs: (u64, u64),
}

/// What the prefill engine says: a token, and where the KV cache of the prompt is.
pub(crate) fn prefill() -> Answer {
    let params = r#"{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2,3,4]],"remote_engine_id":"4f1c","remote_request_id":"cmpl-1","remote_host":"10.0.0.1","remote_port":5600,"tp_size":1}"#;
    Answer::Json(format!(
        r#"{{"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{{"index":0,"text":" a","logprobs":null,"finish_reason":"length"}}],"usage":{{"prompt_tokens":40,"total_tokens":41,"completion_tokens":1}},"kv_transfer_params":{params}}}"#
    ))
}

/// Everything the gate counts.
pub(crate) fn all() -> Vec<Work> {
    vec![small(), stream(), long()]
}

fn small() -> Work {
    let text = " a".repeat(TOKENS);
    let prompt = "word ".repeat(28);
    Work {
        name: "small completion, 16 tokens",
        path: "/v1/completions",
        body: format!(r#"{{"model":"m","prompt":"{prompt}","max_tokens":{TOKENS},"temperature":0.7}}"#),
        decode: Answer::Json(format!(
            r#"{{"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{{"index":0,"text":"{text}","logprobs":null,"finish_reason":"length"}}],"usage":{{"prompt_tokens":40,"total_tokens":56,"completion_tokens":{TOKENS}}}}}"#
        )),
        runs: (50, 550),
    }
}

fn stream() -> Work {
    let event = |text: &str| {
        format!(
            r#"{{"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{{"index":0,"text":"{text}","logprobs":null,"finish_reason":null}}]}}"#
        )
    };
    let mut events: Vec<String> = (0..TOKENS).map(|_| event(" a")).collect();
    events.push("[DONE]".to_owned());
    Work {
        name: "streamed completion, 16 events",
        path: "/v1/completions",
        body: format!(
            r#"{{"model":"m","prompt":"{}","max_tokens":{TOKENS},"stream":true}}"#,
            "word ".repeat(28)
        ),
        decode: Answer::Events(events),
        runs: (20, 120),
    }
}

fn long() -> Work {
    let ids: Vec<String> = (0..16_384_u64).map(|at| (at * 7919 % 128_000).to_string()).collect();
    let given: Vec<String> = (0..TOKENS).map(|id| id.to_string()).collect();
    Work {
        name: "generate, 16,384 token ids",
        path: "/inference/v1/generate",
        body: format!(
            r#"{{"model":"m","token_ids":[{}],"sampling_params":{{"max_tokens":{TOKENS}}},"stream":false}}"#,
            ids.join(",")
        ),
        decode: Answer::Json(format!(
            r#"{{"request_id":"g-1","choices":[{{"index":0,"token_ids":[{}],"finish_reason":"length"}}]}}"#,
            given.join(",")
        )),
        runs: (10, 60),
    }
}

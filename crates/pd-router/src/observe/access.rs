//! The access record: one line a request, for those who ask for it. It says which engines, how it ended and
//! how long each phase took; never a prompt, a token or a header but the request id.

use std::time::Duration;

/// The target of the lines, by which logs are filtered.
pub const TARGET: &str = "access";

/// What one line says. Times in seconds; a phase that did not happen is left out.
#[derive(Debug)]
pub(super) struct Line<'a> {
    pub(super) id: &'a str,
    pub(super) api: &'static str,
    pub(super) prefill: Option<&'a str>,
    pub(super) decode: Option<&'a str>,
    pub(super) status: Option<u16>,
    pub(super) outcome: &'static str,
    pub(super) legs: u32,
    pub(super) total: Duration,
    pub(super) body: Option<Duration>,
    pub(super) queue: Option<Duration>,
    pub(super) prefill_took: Option<Duration>,
    pub(super) handoff_gap: Option<Duration>,
    pub(super) decode_took: Option<Duration>,
    pub(super) first_token: Option<Duration>,
    pub(super) added: Option<Duration>,
    pub(super) prompt_tokens: Option<u64>,
    pub(super) generated_tokens: Option<u64>,
    pub(super) request_bytes: Option<u64>,
    pub(super) response_bytes: u64,
}

/// To the microsecond: more digits are noise.
fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e6
}

impl Line<'_> {
    pub(super) fn write(&self) {
        tracing::info!(
            target: TARGET,
            id = self.id,
            api = self.api,
            prefill = self.prefill,
            decode = self.decode,
            status = self.status,
            outcome = self.outcome,
            legs = self.legs,
            total_seconds = seconds(self.total),
            body_seconds = self.body.map(seconds),
            queue_seconds = self.queue.map(seconds),
            prefill_seconds = self.prefill_took.map(seconds),
            handoff_gap_seconds = self.handoff_gap.map(seconds),
            decode_answer_seconds = self.decode_took.map(seconds),
            time_to_first_token_seconds = self.first_token.map(seconds),
            added_seconds = self.added.map(seconds),
            prompt_tokens = self.prompt_tokens,
            generated_tokens = self.generated_tokens,
            request_bytes = self.request_bytes,
            response_bytes = self.response_bytes,
        );
    }
}

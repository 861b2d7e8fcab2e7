//! The side channel: how a decode engine pulls a handoff from the prefill engine that issued it. One line of
//! JSON each way over TCP, in the place of NIXL's own protocol.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::engine::Engine;
use crate::ledger::Refusal;

/// A handoff lists its blocks, some digits each.
const LINE_MAX: u64 = 1024 * 1024;

/// What is to become of a handoff.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Op {
    Fetch,
    Release,
}

#[derive(Debug, Serialize, Deserialize)]
struct Call {
    op: Op,
    engine: String,
    request: String,
    /// The whole handoff, as it came.
    params: Value,
}

/// What the prefill engine says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// The blocks are the caller's.
    Done {
        /// The digest of the prompt.
        digest: u64,
        /// Whether the handoff came back other than it was issued.
        altered: bool,
    },
    Unknown,
    Served,
    Released,
    Expired,
    /// An earlier life of this engine issued it.
    PastLife,
    /// This engine never had that id.
    OtherEngine,
}

/// Answers decode engines until dropped.
pub(crate) async fn serve(listener: TcpListener, engine: Arc<Engine>) {
    while let Ok((stream, _)) = listener.accept().await {
        let engine_ = Arc::clone(&engine);
        engine.tasks().spawn(async move {
            // A decode engine that hangs up learns nothing, and that is its loss.
            answer(stream, &engine_).await.ok();
        });
    }
}

async fn answer(mut stream: TcpStream, engine: &Engine) -> io::Result<()> {
    let mut line = String::new();
    let (read, mut write) = stream.split();
    BufReader::new(read.take(LINE_MAX)).read_line(&mut line).await?;
    let call: Call = serde_json::from_str(&line)?;
    let mut reply = serde_json::to_string(&decide(engine, &call))?;
    reply.push('\n');
    write.write_all(reply.as_bytes()).await
}

fn decide(engine: &Engine, call: &Call) -> Reply {
    if call.engine != engine.id() {
        return if engine.lived_as(&call.engine) { Reply::PastLife } else { Reply::OtherEngine };
    }
    let mut ledger = engine.ledger();
    ledger.expire(engine.config().lease);
    let done = match call.op {
        Op::Fetch => ledger.fetch(&call.request),
        Op::Release => ledger.release(&call.request),
    };
    drop(ledger);
    engine.freed();
    match done {
        Ok(issued) => Reply::Done { digest: issued.digest, altered: issued.params != call.params },
        Err(Refusal::Unknown) => Reply::Unknown,
        Err(Refusal::Served) => Reply::Served,
        Err(Refusal::Released) => Reply::Released,
        Err(Refusal::Expired) => Reply::Expired,
    }
}

/// Asks the prefill engine that a handoff names. An error means that it cannot be reached in `limit`.
pub(crate) async fn call(op: Op, params: &Value, limit: Duration) -> io::Result<Reply> {
    let text = |name: &str| params.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let port = params.get("remote_port").and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok());
    let mut as_issued = params.clone();
    if let Some(members) = as_issued.as_object_mut() {
        // The one member that a router may add.
        members.remove("prompt_token_ids");
    }
    let call =
        Call { op, engine: text("remote_engine_id"), request: text("remote_request_id"), params: as_issued };
    let exchange = async {
        let mut stream = TcpStream::connect((text("remote_host").as_str(), port.unwrap_or(0))).await?;
        let mut line = serde_json::to_string(&call)?;
        line.push('\n');
        stream.write_all(line.as_bytes()).await?;
        let mut reply = String::new();
        BufReader::new(stream.take(LINE_MAX)).read_line(&mut reply).await?;
        Ok(serde_json::from_str(&reply)?)
    };
    tokio::time::timeout(limit, exchange).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

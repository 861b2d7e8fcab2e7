//! Engines that answer with fixed bytes, a write an answer or a write an event, so that the router does the
//! same work each time.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use crate::wire::{Message, Reader};

/// Between two events. The router under valgrind needs a tenth of it, so that no two events are read at once.
const GAP: Duration = Duration::from_millis(3);

/// What an engine says to any POST.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// One JSON document.
    Json(String),
    /// Server-sent events.
    Events(Vec<String>),
}

/// Starts an engine on a free loopback port; it ends with the process.
pub(crate) fn start(answer: Answer) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = answer.clone();
            thread::spawn(move || serve(stream, &answer));
        }
    });
    Ok(address)
}

/// Answers on one connection until the router closes it.
fn serve(stream: TcpStream, answer: &Answer) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = Reader::new(stream.try_clone()?);
    loop {
        let Some(request) = reader.message()? else { return Ok(()) };
        say(&stream, &request, answer)?;
    }
}

fn say(mut stream: &TcpStream, request: &Message, answer: &Answer) -> io::Result<()> {
    match answer {
        _ if request.head.starts_with("GET") => stream.write_all(&json("{}")),
        Answer::Json(body) => stream.write_all(&json(body)),
        Answer::Events(events) => {
            stream.write_all(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
            )?;
            for event in events {
                thread::sleep(GAP);
                stream.write_all(chunk(event).as_bytes())?;
            }
            stream.write_all(b"0\r\n\r\n")
        }
    }
}

fn json(body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}")
        .into_bytes()
}

fn chunk(event: &str) -> String {
    format!("{:x}\r\ndata: {event}\n\n\r\n", event.len() + 8)
}

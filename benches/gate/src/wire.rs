//! As much HTTP/1.1 as the gate needs: whole messages off a blocking socket.

use std::io::{self, Read};
use std::net::TcpStream;

/// A request or an answer.
#[derive(Debug)]
pub(crate) struct Message {
    /// Everything before the empty line.
    pub(crate) head: String,
    /// What followed, chunk marks included.
    pub(crate) body: Vec<u8>,
}

/// Reads message after message of one connection.
#[derive(Debug)]
pub(crate) struct Reader {
    stream: TcpStream,
    held: Vec<u8>,
}

impl Reader {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream, held: Vec::new() }
    }

    /// The next message, or none when the other side has closed between two.
    pub(crate) fn message(&mut self) -> io::Result<Option<Message>> {
        let Some(head) = self.until(|held| end_of(held, b"\r\n\r\n"))? else { return Ok(None) };
        let head = String::from_utf8_lossy(&head).into_owned();
        let body = match length(&head) {
            Some(length) => self.until(|held| (held.len() >= length).then_some(length))?,
            None if head.to_ascii_lowercase().contains("transfer-encoding: chunked") => {
                self.until(|held| end_of(held, b"0\r\n\r\n"))?
            }
            None => Some(Vec::new()),
        };
        let body = body.ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok(Some(Message { head, body }))
    }

    /// Takes what is before the place that `end` finds; none at the end of the connection.
    fn until(&mut self, end: impl Fn(&[u8]) -> Option<usize>) -> io::Result<Option<Vec<u8>>> {
        let mut buffer = [0; 65_536];
        loop {
            if let Some(at) = end(&self.held) {
                let rest = self.held.split_off(at);
                return Ok(Some(std::mem::replace(&mut self.held, rest)));
            }
            match self.stream.read(&mut buffer)? {
                0 => return Ok(None),
                read => self.held.extend_from_slice(&buffer[..read]),
            }
        }
    }
}

fn end_of(held: &[u8], mark: &[u8]) -> Option<usize> {
    held.windows(mark.len()).position(|window| window == mark).map(|at| at + mark.len())
}

fn length(head: &str) -> Option<usize> {
    let line = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then_some(value)
    });
    line?.trim().parse().ok()
}

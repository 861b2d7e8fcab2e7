//! One run of the router under callgrind.

use std::error::Error;
use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::engine;
use crate::wire::Reader;
use crate::work::{self, Work};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The router's start under valgrind takes some seconds.
const START: Duration = Duration::from_secs(60);
/// A request that takes longer is lost.
const ANSWER: Duration = Duration::from_secs(20);

/// The instructions of a whole run with this many requests, one after another on one connection.
pub(crate) fn instructions(router: &Path, work: &Work, requests: u64, keep: Option<&Path>) -> Result<u64> {
    let out = Out::new(work, requests, keep);
    let prefill = engine::start(work::prefill())?;
    let decode = engine::start(work.decode.clone())?;
    let mut running = Running::start(router, &out.path, prefill, decode)?;
    let stream = running.ready()?;
    let served = send(stream, work, requests);
    running.stop()?;
    served?;
    total(&fs::read_to_string(&out.path)?)
}

fn send(mut stream: TcpStream, work: &Work, requests: u64) -> Result<()> {
    stream.set_read_timeout(Some(ANSWER))?;
    stream.set_nodelay(true)?;
    let mut reader = Reader::new(stream.try_clone()?);
    let head = format!(
        "POST {} HTTP/1.1\r\nhost: gate\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        work.path,
        work.body.len()
    );
    let request = [head.as_bytes(), work.body.as_bytes()].concat();
    for _ in 0..requests {
        stream.write_all(&request)?;
        let answer = reader.message()?.ok_or("the router closed the connection")?;
        if !answer.head.starts_with("HTTP/1.1 200 ") {
            let body = String::from_utf8_lossy(&answer.body).into_owned();
            return Err(format!("{}: {body}", answer.head.lines().next().unwrap_or_default()).into());
        }
    }
    Ok(())
}

/// Callgrind's total of a file that it wrote.
fn total(file: &str) -> Result<u64> {
    let line = file.lines().find_map(|line| line.strip_prefix("totals: "));
    Ok(line.ok_or("callgrind wrote no totals")?.trim().parse()?)
}

/// Callgrind's file; removed when dropped, unless it is to be kept.
struct Out {
    path: PathBuf,
    keep: bool,
}

impl Out {
    fn new(work: &Work, requests: u64, keep: Option<&Path>) -> Self {
        let api = work.name.split([' ', ',']).next().unwrap_or_default();
        let name = format!("callgrind.out.{api}-{requests}-{}", std::process::id());
        let temporary = std::env::temp_dir();
        Self { path: keep.unwrap_or(&temporary).join(name), keep: keep.is_some() }
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        if !self.keep {
            let _gone = fs::remove_file(&self.path);
        }
    }
}

/// A router under valgrind; killed when dropped.
struct Running {
    child: Child,
    address: SocketAddr,
}

impl Running {
    fn start(router: &Path, out: &Path, prefill: SocketAddr, decode: SocketAddr) -> Result<Self> {
        let address = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?;
        let child = Command::new("valgrind")
            .args(["--quiet", "--tool=callgrind"])
            .arg(format!("--callgrind-out-file={}", out.display()))
            .arg(router)
            .args(["--prefill", &format!("http://{prefill}"), "--decode", &format!("http://{decode}")])
            .args(["--port", &address.port().to_string(), "--prometheus-port", "0", "--log-level", "warning"])
            // one worker and no probe within a run: nothing but requests differs between two runs
            .args(["--threads", "1", "--health-check-interval-secs", "3600"])
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("valgrind: {error}; install the package valgrind"))?;
        Ok(Self { child, address })
    }

    /// A connection to it, once it serves.
    fn ready(&mut self) -> Result<TcpStream> {
        let started = Instant::now();
        while started.elapsed() < START {
            if let Some(status) = self.child.try_wait()? {
                return Err(format!("the router ended at once: {status}").into());
            }
            if let Ok(stream) = TcpStream::connect(self.address)
                && is_ready(&stream)
            {
                return Ok(stream);
            }
            thread::sleep(Duration::from_millis(500));
        }
        Err("the router did not get ready within a minute".into())
    }

    fn stop(&mut self) -> Result<()> {
        Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status()?;
        let status = self.child.wait()?;
        if status.success() { Ok(()) } else { Err(format!("the router ended with {status}").into()) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _dead = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn is_ready(mut stream: &TcpStream) -> bool {
    let ask = || -> Result<bool> {
        stream.set_read_timeout(Some(ANSWER))?;
        stream.write_all(b"GET /readiness HTTP/1.1\r\nhost: gate\r\n\r\n")?;
        let answer = Reader::new(stream.try_clone()?).message()?;
        Ok(answer.is_some_and(|answer| answer.head.starts_with("HTTP/1.1 200 ")))
    };
    let mut ask = ask;
    ask().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::total;

    #[test]
    fn the_total_is_the_line_that_says_so() {
        assert_eq!(total("events: Ir\nsummary: 12\n\ntotals: 1234\n").unwrap(), 1234);
        assert!(total("events: Ir\n").is_err());
    }
}

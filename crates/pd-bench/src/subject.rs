//! What is compared: a router that is started for a work and ended after it.

use std::net::{SocketAddr, TcpListener};
use std::process::Stdio;
use std::str::FromStr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::engines::Engines;

/// How long a router may take to begin serving.
const START_MAX: Duration = Duration::from_secs(60);

/// How a subject is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Its name in the table.
    pub name: String,
    command: Option<String>,
}

impl Subject {
    /// The two legs called in sequence by the generator.
    #[must_use]
    pub fn direct() -> Self {
        Self { name: "direct".to_owned(), command: None }
    }

    /// This program's own floor proxy, started by its path.
    #[must_use]
    pub fn floor(program: &str) -> Self {
        let command = format!("{program} floor --port {{port}} {{prefill}} {{decode}}");
        Self { name: "floor".to_owned(), command: Some(command) }
    }

    /// Whether the generator makes the two legs itself.
    #[must_use]
    pub const fn is_direct(&self) -> bool {
        self.command.is_none()
    }

    /// Starts it in front of the engines and waits until it is ready; none for the two legs in sequence.
    ///
    /// # Errors
    /// It does not start, or is not ready within a minute.
    pub async fn start(&self, engines: &Engines) -> Result<Option<Running>, String> {
        let Some(command) = &self.command else { return Ok(None) };
        let (port, metrics_port) = (free_port()?, free_port()?);
        let words = words(command, port, metrics_port, engines);
        let (program, arguments) = words.split_first().ok_or("an empty command")?;
        let child = Command::new(program)
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("{}: {program}: {error}", self.name))?;
        let mut running = Running { address: SocketAddr::from(([127, 0, 0, 1], port)), child };
        running
            .ready()
            .await
            .map_err(|why| format!("{}: {why}; the command was: {}", self.name, words.join(" ")))?;
        Ok(Some(running))
    }
}

impl FromStr for Subject {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, command) = text.split_once('=').ok_or("NAME=COMMAND is expected")?;
        if !command.contains("{port}") {
            return Err("the command must say {port}, where the router is to listen".to_owned());
        }
        Ok(Self { name: name.to_owned(), command: Some(command.to_owned()) })
    }
}

/// The words of a command, which are parted by space and know no quotes; `{prefill}` becomes `--prefill URL`
/// for each engine.
fn words(command: &str, port: u16, metrics_port: u16, engines: &Engines) -> Vec<String> {
    let pool = |flag: &str, addresses: &[SocketAddr]| {
        let words = addresses.iter().flat_map(|address| [flag.to_owned(), format!("http://{address}")]);
        words.collect::<Vec<_>>()
    };
    let word = |word: &str| match word {
        "{prefill}" => pool("--prefill", &engines.prefill),
        "{decode}" => pool("--decode", &engines.decode),
        other => {
            let other = other.replace("{port}", &port.to_string());
            vec![other.replace("{metrics_port}", &metrics_port.to_string())]
        }
    };
    command.split_whitespace().flat_map(word).collect()
}

fn free_port() -> Result<u16, String> {
    let port = || TcpListener::bind(("127.0.0.1", 0))?.local_addr().map(|address| address.port());
    port().map_err(|error| format!("no free port: {error}"))
}

/// A router that runs; it is killed when dropped.
#[derive(Debug)]
pub struct Running {
    /// Where it listens.
    pub address: SocketAddr,
    child: Child,
}

impl Running {
    /// Its process.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Ends it and waits for its end.
    pub async fn stop(mut self) {
        self.child.kill().await.ok();
    }

    async fn ready(&mut self) -> Result<(), String> {
        let started = Instant::now();
        while started.elapsed() < START_MAX {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("it ended at once with {status}"));
            }
            if says_ready(self.address).await.unwrap_or(false) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err(format!("not ready within {} s", START_MAX.as_secs()))
    }
}

async fn says_ready(address: SocketAddr) -> std::io::Result<bool> {
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET /readiness HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n").await?;
        let mut head = [0; 12];
        stream.read_exact(&mut head).await?;
        Ok(head.ends_with(b" 200"))
    };
    tokio::time::timeout(Duration::from_secs(2), ask).await?
}

#[cfg(test)]
mod tests {
    use super::Subject;

    #[test]
    fn a_subject_needs_a_name_and_a_port() {
        assert!("a=router --port {port}".parse::<Subject>().is_ok());
        assert!("router --port 1".parse::<Subject>().is_err());
        assert!("a=router --port 1".parse::<Subject>().is_err());
    }
}

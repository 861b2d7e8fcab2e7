//! Threads with a current-thread runtime each, and doors whose connections they share evenly.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::{Builder, Handle};
use tokio_util::sync::CancellationToken;

/// Connections that wait to be accepted: thousands of streams open at once.
const BACKLOG: u32 = 8192;

/// Threads, each with its runtime. Dropping them ends their work.
#[derive(Debug)]
pub struct Workers {
    handles: Vec<Handle>,
    next: AtomicUsize,
    end: CancellationToken,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts this many threads, at least one.
    ///
    /// # Errors
    /// The system refused a thread or a runtime.
    pub fn start(count: usize) -> io::Result<Self> {
        let end = CancellationToken::new();
        let (mut handles, mut threads) = (Vec::new(), Vec::new());
        for number in 0..count.max(1) {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            handles.push(runtime.handle().clone());
            let end = end.clone();
            let work = move || runtime.block_on(end.cancelled());
            threads.push(thread::Builder::new().name(format!("bench-{number}")).spawn(work)?);
        }
        Ok(Self { handles, next: AtomicUsize::new(0), end, threads })
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.handles.len()
    }

    /// The threads' runtimes.
    #[must_use]
    pub fn handles(&self) -> &[Handle] {
        &self.handles
    }

    /// The next in turn, with its number.
    fn turn(&self) -> Option<(usize, &Handle)> {
        let number = self.next.fetch_add(1, Ordering::Relaxed) % self.handles.len().max(1);
        Some((number, self.handles.get(number)?))
    }

    /// Accepts without end; `serve` gets each connection, and the number of the worker that it runs on.
    pub async fn accept<F, S>(&self, listener: TcpListener, serve: F)
    where
        F: Fn(usize, TcpStream) -> S,
        S: Future<Output = ()> + Send + 'static,
        F: Clone + Send + 'static,
    {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                continue;
            };
            // Off this runtime's reactor, onto the worker's.
            let Ok(stream) = stream.into_std() else { continue };
            let Some((number, handle)) = self.turn() else { continue };
            let serve = serve.clone();
            drop(handle.spawn(async move {
                if let Ok(stream) = TcpStream::from_std(stream) {
                    stream.set_nodelay(true).ok();
                    serve(number, stream).await;
                }
            }));
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.end.cancel();
        for thread in self.threads.drain(..) {
            thread.join().ok();
        }
    }
}

/// Listens on loopback; port 0 for any free one.
///
/// # Errors
/// The system's: most often the port is taken.
pub fn listen(port: u16) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::from(([127, 0, 0, 1], port)))?;
    socket.listen(BACKLOG)
}

/// Runs a task on the runtime of the caller; it ends with that runtime.
#[allow(
    clippy::disallowed_methods,
    reason = "a mock and a generator end with their runtimes; nothing drains"
)]
pub fn background<F>(task: F)
where
    F: Future<Output = ()> + Send + 'static,
{
    drop(tokio::spawn(task));
}

/// Raises the limit on descriptors as far as the system lets it; 8,000 streams need more than most shells allow.
#[must_use]
pub fn raise_descriptor_limit() -> u64 {
    rlimit::increase_nofile_limit(1 << 20).unwrap_or(1024)
}

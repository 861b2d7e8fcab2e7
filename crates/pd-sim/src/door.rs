//! The listening socket: opened, shut and opened again on one address while the engine lives on.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// The door of one engine.
#[derive(Debug)]
pub(crate) struct Door {
    address: SocketAddr,
    listener: Mutex<Option<TcpListener>>,
    moved: Notify,
    /// Cancelled to end every connection that came in so far.
    inside: Mutex<CancellationToken>,
}

impl Door {
    /// Opens a door; port 0 takes any.
    pub(crate) fn new(address: SocketAddr) -> io::Result<Door> {
        let listener = listen(address)?;
        Ok(Door {
            address: listener.local_addr()?,
            listener: Mutex::new(Some(listener)),
            moved: Notify::new(),
            inside: Mutex::default(),
        })
    }

    /// Where it is.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Refuses from now on, and ends the connections there are.
    pub(crate) fn shut(&self) {
        *self.listener.lock() = None;
        std::mem::take(&mut *self.inside.lock()).cancel();
        self.moved.notify_waiters();
    }

    /// Accepts again.
    pub(crate) fn open(&self, runtime: &Handle) -> io::Result<()> {
        let mut listener = self.listener.lock();
        if listener.is_none() {
            let _entered = runtime.enter();
            *listener = Some(listen(self.address)?);
            self.moved.notify_waiters();
        }
        Ok(())
    }

    /// The next connection, with the token that ends it.
    pub(crate) async fn accept(&self) -> (TcpStream, CancellationToken) {
        loop {
            let moved = self.moved.notified();
            let inside = self.inside.lock().clone();
            let next = poll_fn(|cx| match &*self.listener.lock() {
                Some(listener) => listener.poll_accept(cx),
                None => Poll::Pending,
            });
            tokio::select! {
                () = moved => {}
                accepted = next => match accepted {
                    Ok((stream, _)) => return (stream, inside),
                    // Out of descriptors, or the client left already.
                    Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                },
            }
        }
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(1024)
}

//! A client's socket, shared between hyper and a watch for its end. hyper looks for the end of a connection
//! only while its read buffer is empty: one byte behind a request, such as a pipelined request or a stray
//! line end, and a client that leaves would go unnoticed.

use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

/// Between two looks at a socket with bytes that nobody reads yet.
const UNREAD_PAUSE: Duration = Duration::from_millis(100);

/// Both directions of a socket that others hold too.
#[derive(Debug)]
pub(super) struct Shared(pub(super) Arc<TcpStream>);

/// Waits until the client has closed its side.
pub(super) async fn left(stream: &TcpStream) {
    let mut byte = [0; 1];
    while let Ok(1..) = stream.peek(&mut byte).await {
        tokio::time::sleep(UNREAD_PAUSE).await;
    }
}

impl AsyncRead for Shared {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let stream = &*self.0;
        loop {
            ready!(stream.poll_read_ready(cx))?;
            let mut read = 0;
            // `try_read_buf` takes memory as it is, where `try_read` would clear hyper's 8 KiB for each read. A
            // read that leaves room has emptied the socket: saying so here, as tokio's own `poll_read` does,
            // saves the system call that would only find it empty.
            let emptied = stream.try_io(Interest::READABLE, || {
                read = stream.try_read_buf(buf)?;
                if read > 0 && buf.remaining() > 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
            });
            match emptied {
                Ok(()) => return Poll::Ready(Ok(())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && read > 0 => {
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl Shared {
    fn poll_try(
        &self,
        cx: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match write(&self.0) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }
}

impl AsyncWrite for Shared {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_try(cx, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_try(cx, |stream| stream.try_write_vectored(slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(&*self.0).shutdown(Shutdown::Write))
    }
}

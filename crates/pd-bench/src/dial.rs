//! A new connection to a router or an engine, for the generator and the floor alike.

use std::io;
use std::net::SocketAddr;

use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::body::Chain;
use crate::workers::background;

/// Connects; the connection is driven on the calling runtime until it ends.
///
/// # Errors
/// The system's, or hyper's in its place.
pub async fn dial(to: SocketAddr) -> io::Result<SendRequest<Chain>> {
    let stream = TcpStream::connect(to).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    background(async move {
        connection.await.ok();
    });
    Ok(sender)
}

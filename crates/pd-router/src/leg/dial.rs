//! New connections to engines: TCP, or TLS over TCP. Never through a proxy from the environment.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::fleet::url::EngineUrl;

/// Both directions of a connection.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Why `--engine-ca-file` cannot be used.
#[derive(Debug, Error)]
#[error("`--engine-ca-file {path}`: {reason}")]
pub struct CaFileError {
    path: String,
    reason: String,
}

/// The TLS settings for https engines: the system's roots and those of `ca_file`, a PEM file.
///
/// # Errors
/// [`CaFileError`] if the file cannot be read or holds no certificate.
pub fn tls_config(ca_file: Option<&PathBuf>) -> Result<Arc<rustls::ClientConfig>, CaFileError> {
    let mut roots = RootCertStore::empty();
    for certificate in rustls_native_certs::load_native_certs().certs {
        // A root of the system that rustls cannot read is of no use here; the others stay.
        roots.add(certificate).ok();
    }
    if let Some(path) = ca_file {
        let wrong = |reason: String| CaFileError { path: path.display().to_string(), reason };
        let mut found = 0;
        for certificate in CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string()))? {
            let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
            roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
            found += 1;
        }
        if found == 0 {
            return Err(wrong("no certificate in it; give a PEM file".to_owned()));
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| CaFileError { path: String::new(), reason: error.to_string() })?;
    Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}

/// Opens a connection to an engine.
///
/// # Errors
/// The system's or TLS's error; no byte of a request has gone out.
pub async fn dial(url: &EngineUrl, tls: &Arc<rustls::ClientConfig>) -> io::Result<Box<dyn Io>> {
    let tcp = TcpStream::connect((url.host(), url.port())).await?;
    tcp.set_nodelay(true)?;
    if !url.https() {
        return Ok(Box::new(tcp));
    }
    let name = ServerName::try_from(url.host().to_owned())
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let stream = TlsConnector::from(Arc::clone(tls)).connect(name, tcp).await?;
    Ok(Box::new(stream))
}

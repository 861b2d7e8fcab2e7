//! Sends spans to an OpenTelemetry collector: OpenTelemetry's own exporter and batching, with its queue of
//! 2,048 spans, beyond which spans are dropped, not requests held (`OTEL_BSP_MAX_QUEUE_SIZE`).

use std::sync::Arc;
use std::time::Duration;

use http::header::HeaderMap;
use http::{Method, Uri};
use opentelemetry::Key;
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{BatchSpanProcessor, SpanData, SpanProcessor};
use opentelemetry_sdk::{Resource, trace::SpanExporter as Export};
use thiserror::Error;
use tokio::runtime::Handle;

use super::trace::Trace;

/// How long one batch may take to send.
const EXPORT_MAX: Duration = Duration::from_secs(10);

/// How long the last spans may take to send when the router ends.
const FLUSH_MAX: Duration = Duration::from_secs(3);

/// Where traces go.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The collector: with a path, OTLP over HTTP, else over gRPC.
    pub endpoint: Endpoint,
    /// Which part of the requests is traced whose clients made no choice.
    pub ratio: f64,
}

/// A collector's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    url: url::Url,
}

/// Why an address is no collector's.
#[derive(Debug, Error)]
pub enum EndpointError {
    /// Not a URL.
    #[error("not a URL ({0}); write http://HOST:4317 for gRPC or http://HOST:4318/v1/traces for HTTP")]
    Url(#[from] url::ParseError),
    /// A scheme that is neither.
    #[error(
        "the scheme {0} is not known; write http://HOST:4317 for gRPC or http://HOST:4318/v1/traces for HTTP"
    )]
    Scheme(String),
    /// TLS, which only the HTTP exporter has here.
    #[error("gRPC is sent without TLS only; write https://HOST/v1/traces, or http://HOST:4317")]
    Tls,
}

/// Why no spans can be sent.
#[derive(Debug, Error)]
pub enum TracingError {
    /// The exporter does not take the address.
    #[error("cannot send traces to {endpoint} (`--otlp-traces-endpoint`): {error}")]
    Exporter {
        /// The address.
        endpoint: String,
        /// The exporter's words.
        error: ExporterBuildError,
    },
    /// The HTTP client cannot be built.
    #[error("cannot send traces over HTTP (`--otlp-traces-endpoint`): {0}")]
    Client(#[from] reqwest::Error),
}

impl std::str::FromStr for Endpoint {
    type Err = EndpointError;

    /// `grpc://` is another name of `http://` without a path; HOST:PORT is gRPC as with vllm-router.
    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let scheme = text.split_once("://").map(|(scheme, _)| scheme);
        let url = match scheme {
            None => url::Url::parse(&format!("http://{text}"))?,
            Some("grpc") => url::Url::parse(&text.replacen("grpc", "http", 1))?,
            Some("http" | "https") => url::Url::parse(text)?,
            Some(other) => return Err(EndpointError::Scheme(other.to_owned())),
        };
        let endpoint = Self { url };
        if endpoint.is_grpc() && endpoint.url.scheme() == "https" {
            return Err(EndpointError::Tls);
        }
        Ok(endpoint)
    }
}

impl Endpoint {
    fn is_grpc(&self) -> bool {
        self.url.path() == "/"
    }
}

/// Begins traces and sends their spans.
#[derive(Debug)]
pub struct Tracing {
    processor: BatchSpanProcessor,
    ratio: f64,
}

/// Runs an exporter on the router's runtime: the batches come from a thread that has none.
#[derive(Debug)]
struct OnRuntime {
    exporter: Arc<SpanExporter>,
    runtime: Handle,
}

impl Export for OnRuntime {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let exporter = Arc::clone(&self.exporter);
        let export = async move { tokio::time::timeout(EXPORT_MAX, exporter.export(batch)).await };
        match self.runtime.spawn(export).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(OTelSdkError::Timeout(EXPORT_MAX)),
            Err(error) => Err(OTelSdkError::InternalFailure(error.to_string())),
        }
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        if let Some(exporter) = Arc::get_mut(&mut self.exporter) {
            exporter.set_resource(resource);
        }
    }
}

impl Tracing {
    /// Sends to a collector from now on, on the runtime that calls, over `tls` where the address says https.
    /// No collector needs to be there.
    ///
    /// # Errors
    /// [`TracingError`].
    pub fn start(settings: &Settings, tls: &rustls::ClientConfig) -> Result<Self, TracingError> {
        let url = settings.endpoint.url.as_str();
        let built = if settings.endpoint.is_grpc() {
            SpanExporter::builder().with_tonic().with_endpoint(url).with_timeout(EXPORT_MAX).build()
        } else {
            let client = reqwest::Client::builder()
                .timeout(EXPORT_MAX)
                .tls_backend_preconfigured(tls.clone())
                .build()?;
            SpanExporter::builder().with_http().with_http_client(client).with_endpoint(url).build()
        };
        let exporter = built.map_err(|error| TracingError::Exporter { endpoint: url.to_owned(), error })?;
        let on_runtime = OnRuntime { exporter: Arc::new(exporter), runtime: Handle::current() };
        let mut processor = BatchSpanProcessor::builder(on_runtime).build();
        processor.set_resource(&resource());
        Ok(Self { processor, ratio: settings.ratio })
    }

    pub(super) fn begin(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Trace {
        Trace::begin(method, uri, headers, || fastrand::f64() < self.ratio)
    }

    pub(super) fn send(&self, spans: Vec<SpanData>) {
        for span in spans {
            self.processor.on_end(span);
        }
    }

    /// Sends what is left. Blocks.
    pub(super) fn flush(&self) {
        if let Err(error) = self.processor.shutdown_with_timeout(FLUSH_MAX) {
            tracing::warn!(%error, "the last spans were not sent (--otlp-traces-endpoint)");
        }
    }
}

/// Who sends: `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` count, as everywhere with OpenTelemetry.
fn resource() -> Resource {
    let found = Resource::builder().build();
    let name = found.get(&Key::from_static_str("service.name"));
    // What OpenTelemetry says where nothing is set.
    if name.is_some_and(|name| !name.as_str().starts_with("unknown_service")) {
        return found;
    }
    Resource::builder().with_service_name("pd-router").build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_says_how_to_speak() {
        let grpc = |text: &str| text.parse::<Endpoint>().map(|endpoint| endpoint.is_grpc());
        for text in ["collector:4317", "http://collector:4317", "http://collector:4317/", "grpc://[::1]:4317"]
        {
            assert!(grpc(text).unwrap(), "{text}");
        }
        assert!(!grpc("http://collector:4318/v1/traces").unwrap());
        assert!(!grpc("https://collector/v1/traces").unwrap());
        for text in ["https://collector:4317", "ftp://collector", "", "http://"] {
            assert!(grpc(text).is_err(), "{text}");
        }
    }
}

//! Engines are reached as their URLs say: IPv6, a path prefix, a trailing slash, https with a CA of one's own;
//! paths that need no handoff go to one engine, unchanged, and on to the next when it cannot be reached.

use std::sync::Arc;

use pd_router::app::Router;
use pd_router::config::Config;
use pd_router::fleet::url::EngineUrl;
use pd_sim::{Role, Sim, SimConfig};
use pd_tests::{Scraped, ask, bed, exchange, request};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

const CHAT: &str = "/v1/chat/completions";

async fn status(prefill: &str, decode: &str, ca: Option<&std::path::PathBuf>) -> (u16, String) {
    let url = |text: &str| vec![EngineUrl::parse(text).unwrap()];
    let config = Config::new(url(prefill), url(decode), ca).unwrap();
    let router = Router::start(config).await.unwrap();
    let _scraped = Scraped::of(&router);
    tokio::time::timeout(std::time::Duration::from_secs(2), router.all_up()).await.ok();
    let body = ask(CHAT, "hello", 3, false).to_string();
    let answer = exchange(router.address(), &request("POST", CHAT, &[], body.as_bytes())).await;
    router.stop().await;
    (answer.status, answer.text().to_owned())
}

async fn sims(host: &str) -> (Sim, Sim) {
    let start =
        async |role| Sim::start(SimConfig { host: host.to_owned(), ..SimConfig::new(role) }).await.unwrap();
    (start(Role::Prefill).await, start(Role::Decode).await)
}

#[tokio::test]
async fn over_ipv6_and_with_a_trailing_slash() {
    let (prefill, decode) = sims("::1").await;
    let (code, text) = status(&prefill.url(), &format!("{}/", decode.url()), None).await;
    assert_eq!(code, 200, "{text}");
    let host = decode.requests()[0].headers["host"].clone();
    assert_eq!(host, decode.addr().to_string().as_str());
}

#[tokio::test]
async fn over_https_with_a_ca_of_ones_own() {
    let (prefill, decode) = sims("127.0.0.1").await;
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let ca = std::env::temp_dir().join(format!("pd-router-ca-{}.pem", std::process::id()));
    std::fs::write(&ca, made.cert.pem()).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let tls =
        ServerConfig::builder_with_provider(Arc::new(tokio_rustls::rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let front = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    let behind = decode.addr();
    let serve = async move {
        while let Ok((stream, _)) = listener.accept().await {
            if let Ok(mut stream) = acceptor.accept(stream).await {
                let mut plain = TcpStream::connect(behind).await.unwrap();
                copy_bidirectional(&mut stream, &mut plain).await.ok();
            }
        }
    };
    tokio::select! {
        () = serve => {}
        () = async {
            assert_eq!(status(&prefill.url(), &front, Some(&ca)).await.0, 200);
            let (code, text) = status(&prefill.url(), &front, None).await;
            assert!(code == 503 && text.contains("no_decode_engine"), "an unknown CA was trusted: {text}");
        } => {}
    }
    std::fs::remove_file(ca).unwrap();
}

#[tokio::test]
async fn one_hop_is_one_engine_unchanged() {
    let bed = bed(1, 1, |_| {}).await;
    let body = br#"{"model":"sim", "prompt":"a b"}"#;
    for _ in 0..2 {
        let answer =
            exchange(bed.address(), &request("POST", "/tokenize?x=a%20b", &[("x-mine", "1")], body)).await;
        assert_eq!((answer.status, answer.json()["count"].as_u64()), (200, Some(2)));
    }
    let seen: Vec<_> = bed.prefill[0].requests().into_iter().chain(bed.decode[0].requests()).collect();
    assert_eq!(seen.len(), 2);
    for recorded in seen {
        assert_eq!((recorded.path.as_str(), recorded.query.as_deref()), ("/tokenize", Some("x=a%20b")));
        assert_eq!((recorded.body.as_ref(), recorded.headers["x-mine"].as_bytes()), (&body[..], &b"1"[..]));
    }
    let head = exchange(bed.address(), &request("HEAD", "/v1/models", &[], b"")).await;
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert!(head.header("content-length").is_some_and(|length| length != "0"));
}

#[tokio::test]
async fn an_engine_that_cannot_be_reached_passes_the_request_on() {
    let bed = bed(2, 2, |_| {}).await;
    bed.prefill[0].stop().await;
    bed.decode[1].stop().await;
    for path in ["/v1/models", "/version", "/load"] {
        for _ in 0..8 {
            let answer = exchange(bed.address(), &request("GET", path, &[], b"")).await;
            assert_eq!(answer.status, 200, "{path}");
        }
    }
    for _ in 0..8 {
        assert_eq!(bed.post(CHAT, &ask(CHAT, "hello", 3, true)).await.status, 200);
    }
    let ledger = bed.prefill[1].ledger();
    assert_eq!((ledger.issued, ledger.fetched), (8, 8));
    assert_eq!(bed.prefill[1].ledger().violations, Vec::<String>::new());
}

#[tokio::test]
async fn idle_connections_are_used_again_and_stale_ones_are_not_an_error() {
    let bed = bed(1, 1, |_| {}).await;
    for _ in 0..20 {
        assert_eq!(bed.post(CHAT, &ask(CHAT, "hello", 3, false)).await.status, 200);
    }
    assert!(
        bed.prefill[0].connections() <= 2,
        "{} connections for 20 requests",
        bed.prefill[0].connections()
    );
    bed.prefill[0].restart().await.unwrap();
    bed.decode[0].restart().await.unwrap();
    for _ in 0..4 {
        assert_eq!(bed.post(CHAT, &ask(CHAT, "hello", 3, false)).await.status, 200);
    }
    bed.clean().await;
}

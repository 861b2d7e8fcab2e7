//! The command line: bad settings are one clear line and a non-zero exit before anything is served, flags
//! without effect warn, and `--help` is a snapshot.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::process::Command;

use clap::Parser;
use pd_router::cli::Args;

fn run(words: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_pd-router")).args(words).output().expect("the binary runs");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_bad_start_is_one_clear_line() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let good = ["--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2"];
    for (words, says) in [
        (&[][..], "no prefill engine"),
        (&["--prefill", "http://h:1"], "no decode engine"),
        (&["--prefill", "http://h:notaport", "--decode", "http://h:2"], "`--prefill`: `http://h:notaport`"),
        (&["--prefill", "http://h:1", "--decode", "http://h:1/"], "given twice"),
        (&["--prefill", "http://h:1", "--decode", "http://h:2", "--decode", "http://H:2"], "given twice"),
        (&["--prefill", "http://h:1", "word", "--decode", "http://h:2"], "`word`"),
        (&["--demo", "0x9"], "`--demo 0x9`"),
        (&[&good[..], &["--port", &port]].concat(), "cannot listen on 127.0.0.1"),
        (&[&good[..], &["--pd-path", "x=chat"]].concat(), "`--pd-path x=chat`"),
        (&[&good[..], &["--pd-path", "/x=nope"]].concat(), "`nope` is no shape"),
        (&[&good[..], &["--pd-path", "/health=chat"]].concat(), "served already"),
        (&[&good[..], &["--pd-path", "/v1/models=chat"]].concat(), "served already"),
        (&[&good[..], &["--pd-path", "/a/:x=chat"]].concat(), "only letters"),
        (&[&good[..], &["--engine-ca-file", "/nonexistent.pem"]].concat(), "`--engine-ca-file"),
    ] {
        let (code, stderr) = run(words);
        assert_eq!(code, Some(1), "{words:?}: {stderr}");
        let lines: Vec<_> = stderr.lines().collect();
        assert!(
            lines.len() == 1 && lines[0].starts_with("error: ") && lines[0].contains(says),
            "{words:?}: {stderr}"
        );
    }
    for words in [&["--no-such-flag"][..], &["--policy", "nope"], &["--prefill-timeout-secs", "0"]] {
        let (code, stderr) = run(words);
        assert_eq!(code, Some(2), "{words:?}: {stderr}");
        assert!(stderr.contains(words[0]), "{words:?}: {stderr}");
    }
}

#[test]
fn flags_without_effect_say_so() {
    let words = [
        "--prefill",
        "http://h:1",
        "8998",
        "--prefill",
        "http://h:3",
        "none",
        "--decode",
        "http://h:2",
        "--vllm-pd-disaggregation",
        "--policy",
        "round_robin",
        "--worker-startup-check-interval",
        "1",
    ];
    let given = args(&words);
    assert_eq!(given.config().unwrap().prefill.len(), 2);
    let warned = given.without_effect();
    assert_eq!(warned.len(), 2, "{warned:?}");
    assert!(args(&["--prefill", "http://h:1", "--decode", "http://h:2"]).without_effect().is_empty());
}

#[test]
fn a_key_is_shown_nowhere() {
    let one_pool = ["--worker-urls", "--port=0"];
    let known = args(&[&one_pool[..], &["--api-key", "s3cret"]].concat());
    assert!(!format!("{known:?}").contains("s3cret"));
    assert!(!format!("{:?}", known.config().unwrap()).contains("s3cret"));
    let (code, stderr) = run(&[&one_pool[..], &["--api-key", "s3cret with spaces"]].concat());
    assert!(code == Some(1) && stderr.contains("`--api-key`") && !stderr.contains("s3cret"), "{stderr}");
    for name in ["PD_ROUTER_API_KEY", "OPENAI_API_KEY"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pd-router"));
        let output = command.env(name, "s3cret").arg("--help").output().unwrap();
        let help = String::from_utf8_lossy(&output.stdout);
        assert!(help.contains("--api-key") && !help.contains("s3cret"));
    }
}

fn args(words: &[&str]) -> Args {
    Args::parse_from(std::iter::once("pd-router").chain(words.iter().copied()))
}

#[test]
fn help_is_a_snapshot() {
    let output = Command::new(env!("CARGO_BIN_EXE_pd-router")).arg("--help").output().unwrap();
    assert!(output.status.success());
    insta::assert_snapshot!(String::from_utf8_lossy(&output.stdout));
}

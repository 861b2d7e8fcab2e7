//! `pd-router top` as a program: plain text where its output is no terminal, one clear line for a router that
//! is not there, and it goes on until a signal ends it with 0.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Lines, Write};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_pd-router");

/// A child, ended with the test.
struct Running(Child);

impl Running {
    fn start(words: &[&str]) -> (Self, Lines<BufReader<ChildStdout>>) {
        let mut command = Command::new(PROGRAM);
        command.args(words).env_remove("COLUMNS").stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the program");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        (Self(child), lines)
    }

    /// Sends the signal; its exit code.
    fn end(&mut self, signal: &str) -> Option<i32> {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().expect("kill").success());
        self.0.wait().expect("a status").code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A demo at this port, or at a free one; its port. What it says is read to the end of its greeting.
fn demo(port: u16) -> (Running, u16, Lines<BufReader<ChildStdout>>) {
    let port = port.to_string();
    let (running, mut lines) = Running::start(&["--demo", "1x2", "--port", &port, "--prometheus-port", "0"]);
    let mut found = None;
    for line in lines.by_ref().map_while(Result::ok) {
        found = found.or_else(|| line.strip_prefix("router   http://127.0.0.1:")?.trim().parse().ok());
        if line.contains("Serving") {
            break;
        }
    }
    (running, found.expect("its port"), lines)
}

fn once(url: &str, more: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(["top", url, "--once"]).args(more).env_remove("COLUMNS").output().expect("the program")
}

/// The next line that holds the word.
fn line_with(lines: &mut Lines<BufReader<ChildStdout>>, word: &str) -> String {
    let found = lines.map_while(Result::ok).find(|line| line.contains(word));
    found.unwrap_or_else(|| panic!("its output ended without `{word}`"))
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

#[test]
fn once_prints_the_state_as_plain_text() {
    let (_demo, port, _lines) = demo(0);
    let output = once(&format!("127.0.0.1:{port}"), &["--columns", "70"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    for word in ["\nHEALTHY\n", "prefill engines 1 of 1 up", "decode engines 2 of 2 up", "last failures none"]
    {
        assert!(text.contains(word), "no {word:?} in {text}");
    }
    assert!(!text.contains('\x1b'), "{text:?}");
    assert!(text.lines().all(|line| line.chars().count() <= 70), "{text}");
}

#[test]
fn no_router_is_one_clear_line() {
    let port = free_port();
    for (url, says) in [
        (format!("http://127.0.0.1:{port}"), "error: cannot reach http://127.0.0.1:"),
        ("ftp://router".to_owned(), "error: `ftp://router` is no URL of a router: write http://HOST:PORT"),
    ] {
        let output = once(&url, &[]);
        let stderr = String::from_utf8(output.stderr).expect("text");
        assert_eq!((output.status.code(), stderr.lines().count()), (Some(1), 1), "{stderr}");
        assert!(stderr.starts_with(says) && output.stdout.is_empty(), "{stderr}");
    }
    let stderr = String::from_utf8(once(&format!("127.0.0.1:{port}"), &[]).stderr).expect("text");
    assert!(
        stderr.contains("Connection refused") && stderr.contains("Try `curl http://127.0.0.1:"),
        "{stderr}"
    );
}

#[test]
fn flags_for_serving_and_top_are_not_mixed() {
    let output = Command::new(PROGRAM).args(["--port", "1", "top"]).output().expect("the program");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn it_goes_on_while_the_router_is_away_and_ends_with_0() {
    let port = free_port();
    let url = format!("http://127.0.0.1:{port}");
    let (mut top, mut lines) = Running::start(&["top", &url, "--interval-secs", "1"]);
    let away = format!("cannot reach {url} since ");
    line_with(&mut lines, &away);
    let (mut router, _, _said) = demo(port);
    line_with(&mut lines, "HEALTHY");
    router.end("-KILL");
    line_with(&mut lines, &away);
    line_with(&mut lines, "what is below is of ");
    line_with(&mut lines, "HEALTHY");
    let (_router, _, _said) = demo(port);
    let mut last = String::from("-");
    let back = lines.by_ref().map_while(Result::ok).find(|line| {
        // The first line of a screen, without a word of a router that is away above it.
        std::mem::replace(&mut last, line.clone()).is_empty() && line.starts_with("pd-router ")
    });
    assert!(back.is_some(), "its output ended");
    line_with(&mut lines, "HEALTHY");
    assert_eq!(top.end("-INT"), Some(0));
}

/// A server at a free port that answers every request with 404.
fn stranger() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let head = BufReader::new(&stream).lines().map_while(Result::ok);
            head.take_while(|line| !line.is_empty()).for_each(drop);
            stream
                .write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                .ok();
        }
    });
    port
}

#[test]
fn what_is_no_router_is_told_and_a_signal_ends_it_with_0() {
    let url = format!("http://127.0.0.1:{}", stranger());
    let output = once(&url, &[]);
    let stderr = String::from_utf8(output.stderr).expect("text");
    assert_eq!((output.status.code(), stderr.lines().count()), (Some(1), 1), "{stderr}");
    let says = format!("error: {url}/ui/state answers 404 Not Found; is it a pd-router of this version (");
    assert!(stderr.starts_with(&says) && output.stdout.is_empty(), "{stderr}");
    let over_tls = once(&url.replace("http:", "https:"), &[]);
    let stderr = String::from_utf8(over_tls.stderr).expect("text");
    assert_eq!((over_tls.status.code(), stderr.lines().count()), (Some(1), 1), "{stderr}");
    assert!(stderr.contains("it speaks no TLS, try http:// there"), "{stderr}");
    let (mut top, mut lines) = Running::start(&["top", &url, "--interval-secs", "1"]);
    line_with(&mut lines, &format!("no state from {url} since "));
    line_with(&mut lines, "Try `curl ");
    assert_eq!(top.end("-TERM"), Some(0));
}

#[test]
fn who_stops_reading_ends_it_with_0() {
    let (_demo, port, _said) = demo(0);
    let (mut top, mut lines) = Running::start(&["top", &format!("127.0.0.1:{port}"), "--interval-secs", "1"]);
    line_with(&mut lines, "HEALTHY");
    drop(lines);
    assert_eq!(top.0.wait().expect("a status").code(), Some(0));
}

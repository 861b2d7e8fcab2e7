//! The logs of the binary: JSON lines parse, a file a day is written, at info nothing a request, and the
//! access record has each request once and never what a client wrote.

#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A word of the prompt and of the key; no line may hold it.
const SECRET: &str = "xyzzy-secret";

/// A demo of the binary, and the folder of its logs.
struct Demo {
    child: Child,
    port: u16,
    dir: PathBuf,
}

impl Demo {
    fn start(name: &str, words: &[&str]) -> Self {
        let dir = std::env::temp_dir().join(format!("pd-router-{name}-{}", std::process::id()));
        let mut child = Command::new(env!("CARGO_BIN_EXE_pd-router"))
            .args(["--demo", "--port", "0", "--prometheus-port", "0", "--log-dir"])
            .arg(&dir)
            .args(words)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let mut port = None;
        for line in lines.by_ref().map_while(Result::ok) {
            port = port.or_else(|| line.strip_prefix("router   http://127.0.0.1:")?.trim().parse().ok());
            if line.contains("Serving") {
                break;
            }
        }
        Self { child, port: port.expect("its port"), dir }
    }

    fn post(&self, id: &str, body: &str) -> String {
        let mut connection = TcpStream::connect(("127.0.0.1", self.port)).expect("the router");
        write!(
            connection,
            "POST /v1/chat/completions HTTP/1.1\r\nhost: r\r\nauthorization: Bearer {SECRET}\r\nx-request-id: {id}\r\n\
             connection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .expect("sent");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).expect("an answer");
        answer
    }

    /// Ends the router; what its files and its standard error say.
    fn end(mut self) -> (String, String) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").arg(&pid).status().expect("kill").success());
        let started = Instant::now();
        while self.child.try_wait().expect("a status").is_none() {
            assert!(started.elapsed() < Duration::from_secs(10), "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut stderr = String::new();
        self.child.stderr.take().expect("its errors").read_to_string(&mut stderr).expect("text");
        let mut files = String::new();
        for file in fs::read_dir(&self.dir).expect("the folder") {
            let path = file.expect("a file").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            assert!(name.starts_with("pd-router.20") && name.ends_with(".log"), "{name}");
            files.push_str(&fs::read_to_string(path).expect("text"));
        }
        fs::remove_dir_all(&self.dir).expect("the folder");
        (files, stderr)
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        self.child.kill().ok();
    }
}

fn chat(stream: bool) -> String {
    let prompt = format!("please repeat {SECRET} ten times");
    serde_json::json!({"model": "sim", "messages": [{"role": "user", "content": prompt}], "max_tokens": 5, "stream": stream})
        .to_string()
}

#[test]
fn the_access_record_has_each_request_once_and_no_word_of_it() {
    let demo = Demo::start("access", &["--access-log", "--log-format", "json", "--log-level", "warning"]);
    for number in 0..10 {
        assert!(demo.post(&format!("good-{number}"), &chat(number % 2 == 0)).starts_with("HTTP/1.1 200"));
    }
    assert!(demo.post("bad-1", &format!("{{\"{SECRET}")).starts_with("HTTP/1.1 400"));
    let (files, stderr) = demo.end();
    let records: Vec<Value> = files.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    assert!(records.iter().all(|record| record["target"] == "access"), "{files}");
    let of = |id: &str| -> Vec<&Value> { records.iter().filter(|record| record["id"] == id).collect() };
    for number in 0..10 {
        let records = of(&format!("good-{number}"));
        assert_eq!(records.len(), 1, "{files}");
        let record = records[0];
        assert_eq!(
            (&record["api"], &record["outcome"], &record["status"]),
            (&"chat".into(), &"ok".into(), &200.into())
        );
        assert_eq!((&record["legs"], &record["generated_tokens"]), (&2.into(), &5.into()));
        for engine in ["prefill", "decode"] {
            assert!(record[engine].as_str().expect("a URL").starts_with("http://127.0.0.1:"));
        }
        for phase in ["total", "body", "queue", "prefill", "handoff_gap", "decode_answer", "added"] {
            assert!(record[format!("{phase}_seconds")].is_f64(), "{phase} in {record}");
        }
        assert_eq!(record["time_to_first_token_seconds"].is_f64(), number % 2 == 0, "{record}");
        assert!(record["prompt_tokens"].as_u64() > Some(4) && record["response_bytes"].as_u64() > Some(100));
        assert_eq!(record["request_bytes"], chat(number % 2 == 0).len());
    }
    let bad = of("bad-1");
    assert_eq!(
        (bad.len(), &bad[0]["outcome"], &bad[0]["prefill"]),
        (1, &"client_error".into(), &Value::Null)
    );
    assert_eq!(records.len(), 12, "ten, one, and the demo's own");
    assert_eq!(files, stderr, "both places have every line");
    assert!(!files.contains(SECRET) && !files.to_lowercase().contains("bearer"));
}

#[test]
fn at_info_nothing_a_request_and_at_debug_no_word_of_it() {
    for (level, told) in [("info", false), ("debug", true)] {
        let demo = Demo::start(level, &["--log-level", level]);
        let requests = 7;
        for number in 0..requests {
            assert!(demo.post(&format!("id-{number}"), &chat(number % 2 == 0)).contains(" 200 "));
        }
        let (files, stderr) = demo.end();
        assert_eq!(files.matches("Stage 1 - Prefill: http://").count(), if told { requests + 1 } else { 0 });
        assert_eq!(files.matches("Stage 2 - Decode: http://").count(), if told { requests + 1 } else { 0 });
        assert!(told || files.lines().count() < 12, "{files}");
        assert!(!files.contains("access") && files == stderr, "{files}\n\n{stderr}");
        assert!(!files.contains(SECRET) && !files.to_lowercase().contains("bearer"));
    }
}

#[test]
fn a_folder_that_cannot_be_written_to_is_one_clear_line() {
    let output = Command::new(env!("CARGO_BIN_EXE_pd-router"))
        .args(["--demo", "--log-dir", "/dev/null/x"])
        .output()
        .expect("the binary runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), stderr.lines().count()), (Some(1), 1), "{stderr}");
    assert!(stderr.starts_with("error: `--log-dir /dev/null/x`"), "{stderr}");
}

//! The shape of the code: module docs, sizes, and imports that go downward only.

use std::fs;
use std::path::{Path, PathBuf};

const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 70;

/// pd-router's modules from the ground up; a module imports from its own row and from those above it.
const LAYERS: [&[&str]; 9] = [
    &["ids", "task"],
    &["observe"],
    &["request", "sse", "failure"],
    &["handoff", "fleet", "admit"],
    &["plan"],
    &["leg", "relay"],
    &["retry", "release", "dispatch", "probe", "roster"],
    &["listen", "respond", "admin", "edge", "ui"],
    &["config", "cli", "logs", "app", "demo", "top", "main", "lib"],
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, found);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            found.push(path);
        }
    }
}

fn production(text: &str) -> &str {
    text.split("\n#[cfg(test)]").next().unwrap_or_default()
}

fn all() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for dir in ["crates", "tests", "benches"] {
        if root().join(dir).exists() {
            sources(&root().join(dir), &mut found);
        }
    }
    assert!(found.len() > 20, "the sources were not found");
    found.into_iter().map(|path| (path.clone(), fs::read_to_string(path).expect("text"))).collect()
}

#[test]
fn every_file_opens_with_its_one_job_and_stays_short() {
    for (path, text) in all() {
        assert!(text.starts_with("//!"), "{} does not open with a module doc", path.display());
        let lines = production(&text).lines().count();
        assert!(lines <= FILE_LINES_MAX, "{} has {lines} production lines", path.display());
    }
}

#[test]
fn every_function_stays_short() {
    for (path, text) in all() {
        let mut open: Option<(usize, usize)> = None;
        for (number, line) in production(&text).lines().enumerate() {
            let indent = line.len() - line.trim_start().len();
            let word = line.trim_start().trim_start_matches("pub ").trim_start_matches("pub(crate) ");
            let word = word
                .trim_start_matches("pub(super) ")
                .trim_start_matches("const ")
                .trim_start_matches("async ");
            if word.starts_with("fn ") && line.trim_end().ends_with(['{', '(']) {
                open = Some((number, indent));
            }
            if let Some((start, at)) = open
                && indent == at
                && line.trim() == "}"
            {
                let length = number - start + 1;
                assert!(length <= FUNCTION_LINES_MAX, "{}:{} has {length} lines", path.display(), start + 1);
                open = None;
            }
        }
    }
}

#[test]
fn imports_go_downward() {
    let layer = |module: &str| LAYERS.iter().position(|row| row.contains(&module));
    let base = root().join("crates/pd-router/src");
    for (path, text) in all() {
        let Ok(inside) = path.strip_prefix(&base) else { continue };
        let first = inside.components().next().expect("a name").as_os_str().to_string_lossy();
        let module = first.trim_end_matches(".rs").to_owned();
        let own = layer(&module).unwrap_or_else(|| panic!("{module} is in no layer"));
        for line in production(&text).lines() {
            let Some(rest) = line.trim_start().strip_prefix("use crate::") else { continue };
            for used in rest.trim_start_matches('{').split(", ") {
                let used: String = used.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                if rest.starts_with('{') || rest.starts_with(&used) {
                    let theirs = layer(&used).unwrap_or_else(|| panic!("{used} is in no layer"));
                    assert!(theirs <= own, "{}: {module} imports {used}, which is above it", path.display());
                }
            }
        }
    }
}

#[test]
fn nothing_is_left_over() {
    let words = ["TO".to_owned() + "DO", "FIX".to_owned() + "ME", "unimplemented".to_owned() + "!"];
    for (path, text) in all() {
        for word in &words {
            assert!(!text.contains(word.as_str()), "{} has {word}", path.display());
        }
    }
}

//! One pass over JSON text that finds the byte ranges of an object's members and checks the grammar.
//!
//! Nothing is decoded or copied: a value stays the bytes that the client wrote. The grammar is RFC 8259,
//! with a UTF-8 byte order mark allowed in front, as the engines' own parser does.

mod integers;

use std::ops::Range;

use smallvec::SmallVec;
use thiserror::Error;

/// The deepest nesting that is accepted; serde_json's own default.
pub const DEPTH_MAX: usize = 128;

/// As many bytes of a string as are looked at one by one.
const SHORT: usize = 24;

/// Why a text is not a body that the router can read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ScanError {
    /// No bytes, or white space only.
    #[error("the body is empty; send a JSON object")]
    Empty,
    /// A JSON value of another type.
    #[error("the body must be a JSON object")]
    NotObject,
    /// Bytes that are not UTF-8.
    #[error("the body is not UTF-8 at byte {at}")]
    Utf8 {
        /// Offset of the first wrong byte.
        at: usize,
    },
    /// A breach of the JSON grammar.
    #[error("the body is not JSON: expected {expected} at byte {at}")]
    Syntax {
        /// Offset of the first wrong byte.
        at: usize,
        /// What would have been right there.
        expected: &'static str,
    },
    /// Nesting beyond [`DEPTH_MAX`].
    #[error("the body is nested deeper than {DEPTH_MAX} levels at byte {at}")]
    TooDeep {
        /// Offset of the bracket that went too deep.
        at: usize,
    },
    /// A key that the router reads or writes stands twice.
    #[error("the body has the key \"{name}\" twice; send it once")]
    Duplicate {
        /// The key.
        name: &'static str,
    },
}

/// Where one member of an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name, from the caller's list.
    pub name: &'static str,
    /// Where its key starts.
    pub key_start: usize,
    /// Its value's bytes.
    pub value: Range<usize>,
    /// Where the value before it ends, or just behind the opening brace.
    pub prev_end: usize,
    /// Where the next key starts, or the closing brace.
    pub next_start: usize,
    /// How many members stand before it, known or not.
    pub index: usize,
}

/// An object's braces and those of its members whose names the caller asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Object {
    /// Offset of the closing brace.
    pub close: usize,
    /// How many members it has, known or not.
    pub count: usize,
    /// The members asked for, in the order of the text.
    pub members: SmallVec<[Member; 8]>,
}

impl Object {
    /// The member with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.name == name)
    }
}

/// The names of the members that a caller asks for.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    /// Those that may stand once only.
    pub once: &'a [&'static str],
    /// Those of which the last one counts, as the engines' own parser has it.
    pub last: &'a [&'static str],
}

impl<'a> Names<'a> {
    /// Names that may all stand once only.
    #[must_use]
    pub const fn once(once: &'a [&'static str]) -> Self {
        Self { once, last: &[] }
    }
}

/// Scans a whole text that must be one object, and finds the members whose names are in `names`.
///
/// # Errors
/// [`ScanError`], with the offset of the first fault.
pub fn document(text: &[u8], names: Names<'_>) -> Result<Object, ScanError> {
    if let Err(error) = std::str::from_utf8(text) {
        return Err(ScanError::Utf8 { at: error.valid_up_to() });
    }
    let mut scanner = Scanner { text, at: 0, depth: 0 };
    if text.starts_with(b"\xef\xbb\xbf") {
        scanner.at = 3;
    }
    scanner.space();
    match scanner.peek() {
        None => return Err(ScanError::Empty),
        Some(b'{') => {}
        Some(_) => {
            scanner.value()?;
            return Err(ScanError::NotObject);
        }
    }
    let object = scanner.object(names)?;
    scanner.space();
    if scanner.peek().is_some() { Err(scanner.wrong("the end of the body")) } else { Ok(object) }
}

/// Scans an object inside `text` whose opening brace is at `open`; offsets stay those of `text`.
///
/// # Errors
/// [`ScanError`], with the offset of the first fault; [`ScanError::NotObject`] if there is no brace.
pub fn object_at(text: &[u8], open: usize, names: Names<'_>) -> Result<Object, ScanError> {
    let mut scanner = Scanner { text, at: open, depth: 0 };
    if scanner.peek() == Some(b'{') { scanner.object(names) } else { Err(ScanError::NotObject) }
}

/// Whether the value that starts at `at` is an array of two or more items that are not numbers: a list of
/// token ids is one item, a list of strings or of lists of ids is several.
#[must_use]
pub fn several_items(text: &[u8], at: usize) -> bool {
    let mut scanner = Scanner { text, at, depth: 0 };
    if scanner.peek() != Some(b'[') {
        return false;
    }
    scanner.at += 1;
    scanner.space();
    if !matches!(scanner.peek(), Some(b'"' | b'[' | b'{')) || scanner.value().is_err() {
        return false;
    }
    scanner.space();
    scanner.peek() == Some(b',')
}

struct RawMember {
    key: Range<usize>,
    value: Range<usize>,
    prev_end: usize,
    next_start: usize,
}

struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
    depth: usize,
}

impl Scanner<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    const fn wrong(&self, expected: &'static str) -> ScanError {
        ScanError::Syntax { at: self.at, expected }
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    fn enter(&mut self) -> Result<(), ScanError> {
        if self.depth == DEPTH_MAX {
            return Err(ScanError::TooDeep { at: self.at });
        }
        self.depth += 1;
        self.at += 1;
        self.space();
        Ok(())
    }

    fn leave(&mut self) {
        self.depth -= 1;
        self.at += 1;
    }

    fn object(&mut self, names: Names<'_>) -> Result<Object, ScanError> {
        let text = self.text;
        let mut object = Object::default();
        object.close = self.members(&mut |raw: RawMember| {
            let index = object.count;
            object.count += 1;
            let key = text.get(raw.key.clone()).unwrap_or_default();
            let once = known(key, names.once);
            let Some(name) = once.or_else(|| known(key, names.last)) else { return Ok(()) };
            if object.get(name).is_some() {
                if once.is_some() {
                    return Err(ScanError::Duplicate { name });
                }
                object.members.retain(|member| member.name != name);
            }
            let RawMember { key, value, prev_end, next_start } = raw;
            object.members.push(Member { name, key_start: key.start, value, prev_end, next_start, index });
            Ok(())
        })?;
        Ok(object)
    }

    /// Walks an object's members from its opening brace; returns where its closing brace is.
    fn members<E>(&mut self, each: &mut E) -> Result<usize, ScanError>
    where
        E: FnMut(RawMember) -> Result<(), ScanError>,
    {
        let mut prev_end = self.at + 1;
        self.enter()?;
        let mut more = self.peek() != Some(b'}');
        while more {
            let key_start = self.at;
            self.string("a key in double quotes")?;
            let key = key_start..self.at;
            self.space();
            if self.peek() != Some(b':') {
                return Err(self.wrong("a colon"));
            }
            self.at += 1;
            self.space();
            let value_start = self.at;
            self.value()?;
            let value = value_start..self.at;
            let end = self.at;
            self.space();
            more = match self.peek() {
                Some(b',') => true,
                Some(b'}') => false,
                Some(_) | None => return Err(self.wrong("a comma or a closing brace")),
            };
            if more {
                self.at += 1;
                self.space();
            }
            each(RawMember { key, value, prev_end, next_start: self.at })?;
            prev_end = end;
        }
        let close = self.at;
        self.leave();
        Ok(close)
    }

    fn array(&mut self) -> Result<(), ScanError> {
        self.enter()?;
        if self.peek() == Some(b']') {
            self.leave();
            return Ok(());
        }
        let mut integers = true;
        loop {
            if integers {
                self.at += integers::skip(self.text.get(self.at..).unwrap_or_default());
                self.space();
            }
            // What ends a run of integers ends it for good, unless it is a zero.
            integers = self.peek() == Some(b'0');
            self.value()?;
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => break,
                Some(_) | None => return Err(self.wrong("a comma or a closing bracket")),
            }
            self.space();
        }
        self.leave();
        Ok(())
    }

    fn value(&mut self) -> Result<(), ScanError> {
        match self.peek() {
            Some(b'"') => self.string("a string"),
            Some(b'{') => self.members(&mut |_| Ok(())).map(|_| ()),
            Some(b'[') => self.array(),
            Some(b't') => self.literal(b"true"),
            Some(b'f') => self.literal(b"false"),
            Some(b'n') => self.literal(b"null"),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(_) | None => Err(self.wrong("a value")),
        }
    }

    fn literal(&mut self, word: &'static [u8]) -> Result<(), ScanError> {
        if self.text.get(self.at..).is_some_and(|rest| rest.starts_with(word)) {
            self.at += word.len();
            Ok(())
        } else {
            Err(self.wrong("true, false or null"))
        }
    }

    fn digits(&mut self) -> Result<(), ScanError> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start { Err(self.wrong("a digit")) } else { Ok(()) }
    }

    fn number(&mut self) -> Result<(), ScanError> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn string(&mut self, expected: &'static str) -> Result<(), ScanError> {
        if self.peek() != Some(b'"') {
            return Err(self.wrong(expected));
        }
        self.at += 1;
        // Most keys and values are short: these bytes cost less one by one than the start of a wide search.
        let near = self.text.get(self.at..).unwrap_or_default().iter().take(SHORT);
        self.at += near.take_while(|byte| !matches!(byte, b'"' | b'\\' | ..0x20)).count();
        loop {
            let rest = self.text.get(self.at..).unwrap_or_default();
            if rest.first() == Some(&b'"') {
                self.at += 1;
                return Ok(());
            }
            let Some(plain) = memchr::memchr2(b'"', b'\\', rest) else {
                self.at = self.text.len();
                return Err(self.wrong("a closing double quote"));
            };
            let run = rest.get(..plain).unwrap_or_default();
            if run.iter().fold(false, |found, byte| found | (*byte < 0x20)) {
                self.at += run.iter().position(|byte| *byte < 0x20).unwrap_or(0);
                return Err(self.wrong("no bare control character in a string"));
            }
            self.at += plain;
            if self.peek() == Some(b'\\') {
                self.escape()?;
            }
        }
    }

    fn escape(&mut self) -> Result<(), ScanError> {
        self.at += 1;
        let length = match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => 1,
            Some(b'u') => {
                let hex = self.text.get(self.at + 1..self.at + 5).unwrap_or_default();
                if hex.len() == 4 && hex.iter().all(u8::is_ascii_hexdigit) {
                    5
                } else {
                    return Err(self.wrong("four hexadecimal digits"));
                }
            }
            Some(_) | None => return Err(self.wrong("an escape")),
        };
        self.at += length;
        Ok(())
    }
}

/// The caller's name for a key, quotes included; escapes in the key are decoded.
fn known(key: &[u8], names: &[&'static str]) -> Option<&'static str> {
    let plain = key.get(1..key.len().saturating_sub(1)).unwrap_or_default();
    let named = names.iter().copied().find(|name| name.as_bytes() == plain);
    if named.is_some() || !plain.contains(&b'\\') {
        return named;
    }
    let decoded: String = serde_json::from_slice(key).ok()?;
    names.iter().copied().find(|name| *name == decoded)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn scan(text: &str) -> Result<Object, ScanError> {
        document(text.as_bytes(), Names::once(&["a", "b"]))
    }

    #[test]
    fn members_are_found_with_their_ranges() {
        let text = r#" { "x" : [1, {"a":2}] , "a" :"v\"" ,"b":{} } "#;
        let object = scan(text).unwrap();
        assert_eq!(object.count, 3);
        let a = object.get("a").unwrap();
        assert_eq!(&text[a.value.clone()], r#""v\"""#);
        assert_eq!(
            (a.index, &text[a.prev_end..a.key_start], &text[a.next_start..][..3]),
            (1, " , ", "\"b\"")
        );
        assert_eq!(&text[object.close..], "} ");
    }

    #[test]
    fn an_escaped_key_is_the_same_key() {
        assert!(scan(r#"{"\u0061":1}"#).unwrap().get("a").is_some());
        assert_eq!(scan(r#"{"\u0061":1,"a":2}"#), Err(ScanError::Duplicate { name: "a" }));
        assert!(scan(r#"{"x":1,"x":2}"#).is_ok());
    }

    #[test]
    fn what_is_not_an_object_is_named() {
        assert_eq!(scan(""), Err(ScanError::Empty));
        assert_eq!(scan(" \n"), Err(ScanError::Empty));
        for text in ["[]", "null", "\"s\"", "1"] {
            assert_eq!(scan(text), Err(ScanError::NotObject), "{text}");
        }
        assert_eq!(document(b"{\"a\":\xff}", Names::once(&[])), Err(ScanError::Utf8 { at: 5 }));
        assert!(document(b"\xef\xbb\xbf{\"a\":1}", Names::once(&["a"])).unwrap().get("a").is_some());
    }

    #[test]
    fn nesting_is_bounded() {
        let deep = |levels: usize| format!("{{\"a\":{}{}}}", "[".repeat(levels), "]".repeat(levels));
        assert!(scan(&deep(DEPTH_MAX - 1)).is_ok());
        assert!(matches!(scan(&deep(DEPTH_MAX)), Err(ScanError::TooDeep { .. })));
        assert!(matches!(scan(&"{\"a\":".repeat(100_000)), Err(ScanError::TooDeep { .. })));
    }

    #[test]
    fn several_items_tells_prompts_from_token_ids() {
        for (text, several) in [
            (r#""abc""#, false),
            ("[1,2,3]", false),
            (r#"["abc"]"#, false),
            ("[[1,2,3]]", false),
            ("[]", false),
            (r#"[ "a" , "b"]"#, true),
            ("[[1],[2,3]]", true),
            (r#"["a",[1]]"#, true),
        ] {
            assert_eq!(several_items(text.as_bytes(), 0), several, "{text}");
        }
    }

    proptest! {
        /// The scanner takes exactly what serde_json takes, on text near to JSON.
        #[test]
        fn agrees_with_serde_json(text in r#"\{("[a-z\\u0061]{0,6}"[: ]{0,2}[\[\]{}0-9eE.+\-, "a-ctrufalsen\\/]{0,12},?){0,3}\}"#) {
            let ours = document(text.as_bytes(), Names::once(&[]));
            let theirs = serde_json::from_str::<Box<serde_json::value::RawValue>>(&text);
            prop_assert_eq!(ours.is_ok(), theirs.is_ok(), "{} {:?}", text, ours);
        }

        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            drop(document(&bytes, Names::once(&["a"])));
            drop(object_at(&bytes, 0, Names::once(&["a"])));
            drop(several_items(&bytes, 0).to_string());
        }
    }
}

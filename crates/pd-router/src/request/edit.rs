//! Byte edits: members cut, set or added in a body whose other bytes stay as they are.

use bytes::Bytes;
use smallvec::SmallVec;

use super::api::Place;
use super::scan::Object;
use super::view::View;

/// A body as a chain of slices, sent in order; cloning copies no bytes.
pub type Chain = SmallVec<[Bytes; 8]>;

/// What an edit does with one member that the view knows.
#[derive(Clone, Debug)]
pub enum Fate {
    /// Stays.
    Keep,
    /// Leaves, with its comma.
    Cut,
    /// Gets this JSON text as its value.
    Value(Bytes),
}

struct Splice {
    start: usize,
    end: usize,
    with: SmallVec<[Bytes; 4]>,
}

/// Collects the edits of one body.
#[derive(Default)]
pub struct Editor {
    splices: SmallVec<[Splice; 8]>,
}

impl Editor {
    /// Edits one object: `fate` decides on each member that the view knows there, `added` are new members
    /// (name and JSON text) that go in front of the closing brace.
    pub fn object(&mut self, object: &Object, fate: impl Fn(&str) -> Fate, added: &[(&'static str, Bytes)]) {
        let mut cut = 0;
        for member in &object.members {
            match fate(member.name) {
                Fate::Keep => {}
                Fate::Value(text) => {
                    let with = std::iter::once(text).collect();
                    self.splices.push(Splice { start: member.value.start, end: member.value.end, with });
                }
                Fate::Cut => {
                    // With a kept member in front, the comma before goes; else the comma behind.
                    let (start, end) = if member.index > cut {
                        (member.prev_end, member.value.end)
                    } else {
                        (member.key_start, member.next_start)
                    };
                    self.splices.push(Splice { start, end, with: SmallVec::new() });
                    cut += 1;
                }
            }
        }
        self.append(object, object.count > cut, added);
    }

    fn append(&mut self, object: &Object, mut comma: bool, added: &[(&'static str, Bytes)]) {
        let mut with = SmallVec::new();
        for (name, text) in added {
            with.push(Bytes::from_static(if comma { b",\"" } else { b"\"" }));
            with.push(Bytes::from_static(name.as_bytes()));
            with.push(Bytes::from_static(b"\":"));
            with.push(text.clone());
            comma = true;
        }
        if !with.is_empty() {
            self.splices.push(Splice { start: object.close, end: object.close, with });
        }
    }

    /// The edited body as a chain of slices of the client's bytes and of what was put in.
    #[must_use]
    pub fn apply(mut self, body: &Bytes) -> Chain {
        self.splices.sort_by_key(|splice| splice.start);
        let mut chain = Chain::new();
        let mut at = 0;
        for splice in self.splices {
            push(&mut chain, body.slice(at..splice.start.max(at)));
            for part in splice.with {
                push(&mut chain, part);
            }
            at = splice.end.max(at);
        }
        push(&mut chain, body.slice(at..));
        chain
    }
}

/// The client's body without the handoffs that it brought itself, plus `added` top-level members.
#[must_use]
pub fn forward(view: &View, strip: &[Place], added: &[(&'static str, Bytes)]) -> Chain {
    let mut editor = Editor::default();
    for place in strip {
        if let Some(object) = view.object(*place) {
            let added = if *place == Place::Top { added } else { &[] };
            editor.object(object, |name| if is_handoff(name) { Fate::Cut } else { Fate::Keep }, added);
        }
    }
    editor.apply(view.bytes())
}

/// Whether a member of this name is one in which an engine finds a handoff.
#[must_use]
pub fn is_handoff(name: &str) -> bool {
    super::api::HANDOFF_FIELDS.contains(&name)
}

fn push(chain: &mut Chain, part: Bytes) {
    if !part.is_empty() {
        chain.push(part);
    }
}

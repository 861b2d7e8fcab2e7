//! Ordered JSON documents: members come out in the order in which they were put in.

use std::borrow::Cow;

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::value::{RawValue, to_raw_value};

/// A JSON object under construction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Doc {
    members: Vec<(Cow<'static, str>, Box<RawValue>)>,
}

impl Doc {
    /// `{}`.
    pub(crate) fn new() -> Doc {
        Doc::default()
    }

    /// Adds a member; a value that has no JSON form becomes null.
    pub(crate) fn put(mut self, name: impl Into<Cow<'static, str>>, value: impl Serialize) -> Doc {
        let raw = to_raw_value(&value).unwrap_or_else(|_| RawValue::NULL.to_owned());
        self.members.push((name.into(), raw));
        self
    }

    /// Adds members that are null.
    pub(crate) fn nulls(self, names: &[&'static str]) -> Doc {
        names.iter().fold(self, |doc, name| doc.put(*name, ()))
    }

    /// Removes a member.
    pub(crate) fn without(mut self, name: &str) -> Doc {
        self.members.retain(|(have, _)| have != name);
        self
    }

    /// The compact text.
    pub(crate) fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl Serialize for Doc {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.members.len()))?;
        for (name, value) in &self.members {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

//! The key that engines ask for, where the router brings it.

use http::header::{AUTHORIZATION, HeaderMap, HeaderValue};

/// A key as `Authorization` carries it; never shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineKey {
    value: HeaderValue,
    always: bool,
}

impl EngineKey {
    /// A key that every request to an engine has, whatever its client sent.
    ///
    /// # Errors
    /// Why it is none.
    pub fn always(text: &str) -> Result<Self, String> {
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("give one or more printable ASCII characters, without spaces".to_owned());
        }
        let mut value =
            HeaderValue::from_str(&format!("Bearer {text}")).map_err(|_| "it fits no header".to_owned())?;
        value.set_sensitive(true);
        Ok(Self { value, always: true })
    }

    /// The same key, for requests whose client sent none.
    #[must_use]
    pub fn where_there_is_none(self) -> Self {
        Self { always: false, ..self }
    }

    /// What is done with it, in words.
    #[must_use]
    pub const fn use_in_words(&self) -> &'static str {
        if self.always {
            "engines get the key of --api-key, whatever a client sends"
        } else {
            "engines get the key in OPENAI_API_KEY where a client sends none"
        }
    }

    /// Puts the key into the headers of a request to an engine.
    pub fn put(&self, headers: &mut HeaderMap) {
        if self.always || !headers.contains_key(AUTHORIZATION) {
            headers.insert(AUTHORIZATION, self.value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_replaces_the_clients_or_stands_in_for_it_and_is_not_shown() {
        let key = EngineKey::always("secret").unwrap();
        let after = |key: &EngineKey, given: Option<&'static str>| {
            let given = given.map(|given| (AUTHORIZATION, HeaderValue::from_static(given)));
            let mut headers = HeaderMap::from_iter(given);
            key.put(&mut headers);
            headers.get(AUTHORIZATION).unwrap().to_str().unwrap().to_owned()
        };
        assert_eq!(after(&key, None), "Bearer secret");
        assert_eq!(after(&key, Some("Bearer client")), "Bearer secret");
        let fallback = key.clone().where_there_is_none();
        assert_eq!(after(&fallback, None), "Bearer secret");
        assert_eq!(after(&fallback, Some("Bearer client")), "Bearer client");
        assert!(!format!("{key:?}").contains("secret"), "{key:?}");
        assert!(EngineKey::always("").is_err() && EngineKey::always("a b").is_err());
    }
}

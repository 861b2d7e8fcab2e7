//! The decode body is the client's bytes plus one member; the prefill body differs in the listed members only.

use bytes::Bytes;
use pd_router::handoff::nixl::{self, Found};
use pd_router::handoff::{Handoff, decode_body, prefill_body};
use pd_router::request::api::{Api, Place};
use pd_router::request::edit::Chain;
use pd_router::request::view::{Route, View};
use proptest::prelude::*;
use serde_json::value::RawValue;

const PARAMS: &str =
    r#"{"do_remote_prefill":true,"remote_block_ids":[[1]],"remote_host":"h","remote_port":1,"x":1E5}"#;

/// A document's members in order, keys decoded, values as raw text; read by serde_json, not by the router.
fn members(text: &str) -> Vec<(String, String)> {
    struct Members;
    impl<'de> serde::de::Visitor<'de> for Members {
        type Value = Vec<(String, String)>;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut all = Vec::new();
            while let Some((key, value)) = map.next_entry::<String, Box<RawValue>>()? {
                all.push((key, value.get().to_owned()));
            }
            Ok(all)
        }
    }
    use serde::Deserializer;
    serde_json::Deserializer::from_str(text).deserialize_map(Members).expect("an object")
}

fn text(chain: Chain) -> String {
    String::from_utf8(chain.concat()).expect("UTF-8")
}

fn handoff() -> Handoff {
    match nixl::find(&Bytes::from(format!(r#"{{"kv_transfer_params":{PARAMS}}}"#))) {
        Found::Usable(handoff) => handoff,
        other => panic!("{other:?}"),
    }
}

fn read(api: &'static Api, body: &str) -> View {
    View::read(&Route::new(api, api.path), Bytes::copy_from_slice(body.as_bytes())).expect(body)
}

/// JSON text as clients write it: big numbers, escapes, odd spacing, nesting.
fn value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        "-?(0|[1-9][0-9]{0,30})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?",
        "\"([a-zé日 ]|\\\\[nrt\"/\\\\]|\\\\u00[0-9a-f]{2}|\\\\ud83d\\\\ude00|[{}\\[\\]:,]){0,12}\"",
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            (proptest::collection::vec(inner.clone(), 0..4), space())
                .prop_map(|(items, space)| format!("[{space}{}{space}]", items.join(&format!("{space},")))),
            (proptest::collection::vec((key(), inner), 0..4), space()).prop_map(|(items, space)| {
                let items: Vec<_> =
                    items.into_iter().map(|(k, v)| format!("{k}{space}:{space}{v}")).collect();
                format!("{{{space}{}}}", items.join(","))
            }),
        ]
    })
}

fn space() -> impl Strategy<Value = String> {
    "[ \n\t\r]{0,2}"
}

/// A key that the router has no opinion on, doubled at times, escaped at times.
fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("\"x\"".to_owned()),
        Just("\"model\"".to_owned()),
        Just("\"\\u0078\"".to_owned()),
        "\"[a-z_]{3}\"",
        Just("\"\"".to_owned()),
    ]
}

/// Members that the prefill body loses or gets set, each at most once and with values that one handoff serves.
fn known() -> impl Strategy<Value = Vec<(String, String)>> {
    let all = vec![
        ("\"stream\"", "true"),
        ("\"max_tokens\"", "16"),
        ("\"max_completion_tokens\"", "20"),
        ("\"m\\u0069n_tokens\"", "4"),
        ("\"n\"", "1"),
        ("\"best_of\"", "1"),
        ("\"use_beam_search\"", "false"),
    ];
    proptest::sample::subsequence(all.clone(), 0..=all.len())
        .prop_map(|chosen| chosen.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect())
}

prop_compose! {
    fn document()(
        unknown in proptest::collection::vec((key(), value()), 0..6),
        known in known(),
        order in any::<u64>(),
        s in proptest::collection::vec(space(), 4),
    ) -> String {
        let mut all: Vec<_> = unknown.into_iter().chain(known).collect();
        let mut seed = order;
        for at in (1..all.len()).rev() {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            all.swap(at, (seed >> 33) as usize % (at + 1));
        }
        let all: Vec<_> = all.into_iter().map(|(k, v)| format!("{k}{}:{}{v}", s[0], s[1])).collect();
        format!("{}{{{}{}{}}}{}", s[2], s[3], all.join(&format!("{},{}", s[0], s[1])), s[3], s[2])
    }
}

/// What the table in the issue of this project says of completions and chat, written a second time.
fn expected_prefill(body: &str) -> Vec<(String, String)> {
    let gone = ["stream_options", "min_tokens", "best_of", "use_beam_search"];
    let mut all: Vec<_> =
        members(body).into_iter().filter(|(key, _)| !gone.contains(&key.as_str())).collect();
    for (key, value) in &mut all {
        match key.as_str() {
            "max_tokens" | "max_completion_tokens" | "n" => *value = "1".to_owned(),
            "stream" => *value = "false".to_owned(),
            _ => {}
        }
    }
    for (key, value) in [("max_tokens", "1"), ("stream", "false"), ("kv_transfer_params", nixl::REQUEST)] {
        if !all.iter().any(|(have, _)| have == key) {
            all.push((key.to_owned(), value.to_owned()));
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn decode_gets_the_clients_bytes_and_one_member(body in document()) {
        let api = Api::by_name("chat").unwrap();
        let view = read(api, &body);
        let decode = text(decode_body(api, &view, Some(&handoff())));
        let close = body.rfind('}').unwrap();
        let comma = if members(&body).is_empty() { "" } else { "," };
        let (head, tail) = body.split_at(close);
        prop_assert_eq!(decode, format!("{head}{comma}\"kv_transfer_params\":{PARAMS}{tail}"));
        prop_assert_eq!(text(decode_body(api, &view, None)), body);
    }

    #[test]
    fn prefill_differs_in_exactly_the_listed_members(body in document()) {
        let api = Api::by_name("completions").unwrap();
        let prefill = text(prefill_body(api, &read(api, &body)));
        prop_assert_eq!(members(&prefill), expected_prefill(&body));
    }

    #[test]
    fn a_clients_own_handoff_never_stays(body in document(), evil in value(), at in any::<bool>()) {
        for api in &pd_router::request::api::APIS {
            let (open, rest) = body.split_at(body.find('{').unwrap() + 1);
            let comma = if members(&body).is_empty() { "" } else { "," };
            let inner = format!(r#""kv_transfer_params":{evil},"k":1,"ec_transfer_params":{evil}"#);
            let door = match api.side_door {
                Place::ExtraArgs => format!(r#""sampling_params":{{"extra_args":{{{inner}}}}}"#),
                _ => format!(r#""vllm_xargs":{{{inner}}}"#),
            };
            let member = if at { door } else { inner };
            let view = read(api, &format!("{open}{member}{comma}{rest}"));
            for sent in [text(prefill_body(api, &view)), text(decode_body(api, &view, None))] {
                let sent = sent.replace(&format!("\"kv_transfer_params\":{}", nixl::REQUEST), "\"router\":1");
                prop_assert!(!sent.contains("\"kv_transfer_params\"") && !sent.contains("ec_transfer_params"), "{}", sent);
                prop_assert!(serde_json::from_str::<Box<RawValue>>(&sent).is_ok(), "{}", sent);
            }
        }
    }
}

//! The arrays that prompts of token ids are: integers and nothing else, thousands of them.

/// Bytes that are looked at in one step.
const STEP: usize = 64;

/// How many bytes may be skipped of what is behind an opening bracket: integers and their separators, up to
/// where one of them, or the space before it, starts. The caller reads on from there; item by item, the same
/// bytes cost 25 times the instructions.
pub(super) fn skip(items: &[u8]) -> usize {
    // a step looks ahead only: the first integer is read here, and steps start at its last digit
    let first = items.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if first == 0 || (first > 1 && items.starts_with(b"0")) {
        return 0;
    }
    let mut at = first - 1;
    while let Some(window) = items.get(at..).and_then(<[u8]>::first_chunk) {
        if !is_good(window) {
            break;
        }
        at += STEP;
    }
    let seen = items.get(..at).unwrap_or_default();
    memchr::memrchr2(b',', b' ', seen).map_or(0, |separator| separator + 1)
}

/// Whether the first [`STEP`] bytes can stand in an array of integers with a comma, or a comma and a space,
/// between: each is judged with the one behind it. There is no branch and no early end, so that the compiler
/// takes 16 bytes at a time. An integer that begins with a zero is left to the caller.
fn is_good(window: &[u8; STEP + 1]) -> bool {
    let [_, behind @ ..] = window;
    window.iter().zip(behind).fold(true, |good, (byte, next)| {
        let (comma, space, next_space) = (*byte == b',', *byte == b' ', *next == b' ');
        let separator = comma | space;
        let begins = matches!(next, b'1'..=b'9');
        good & (byte.is_ascii_digit() | separator)
            & (!separator | begins | next_space)
            & (!next_space | comma)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Names, document};
    use super::skip;

    #[test]
    fn it_stops_where_an_item_starts() {
        let many = "12,".repeat(100);
        assert_eq!(skip(format!("{many}13]").as_bytes()) % 3, 0);
        assert!(skip(format!("{many}13]").as_bytes()) > 200);
        assert!(skip(format!("{}13]", "12, ".repeat(100)).as_bytes()) > 300);
        for slow in ["]", "1]", "\"a\"", "-1,2,3", "1.5,2"] {
            assert!(skip(slow.as_bytes()) <= 2, "{slow}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Arrays of integers, good and almost good, at every length around the step of the fast look.
        #[test]
        fn integers_agree_with_serde_json(
            items in proptest::collection::vec(0_u32..200_000, 0..120),
            separator in prop_oneof![Just(","), Just(", "), Just(" ,")],
            at in 0_usize..700,
            odd in prop_oneof![Just(""), Just("0"), Just(","), Just(" "), Just("-"), Just("1.5e3"), Just("]"), Just("x")],
        ) {
            let items: Vec<String> = items.iter().map(u32::to_string).collect();
            let mut text = format!("{{\"a\":[{}]}}", items.join(separator));
            text.insert_str(at.min(text.len()), odd);
            let theirs = serde_json::from_str::<Box<serde_json::value::RawValue>>(&text);
            let theirs = theirs.is_ok_and(|value| value.get().starts_with('{'));
            prop_assert_eq!(document(text.as_bytes(), Names::once(&[])).is_ok(), theirs, "{}", text);
        }
    }
}

//! What is kept of single requests.

use super::values::{differs, usual_word, write_word};
use crate::{
    model::{KeysShown, Observe},
    table::{Shape, Table, Written, key_with_default},
};

const KEYS: [(&str, KeysShown); 2] = [("plain", KeysShown::Plain), ("hashed", KeysShown::Hashed)];

/// The most that is kept of either kind: memory is bounded, and so is the time to look through it.
const MOST: u64 = 1_000_000;

pub(super) static OBSERVE: Table<Observe> = Table {
    what: "observe",
    required: &[],
    keys: &[
        key_with_default(
            "denials",
            "How many of the last denials are kept, each with an id that its client is told; none where it is left out.",
            Shape::Whole,
            |reader, node, it| it.denials = reader.whole(node, 0..=MOST).unwrap_or_default(),
            |it| differs(it.denials, 0).map(Written::Number),
            || Written::Number(Observe::default().denials),
        ),
        key_with_default(
            "keys",
            "What is shown of keys, addresses and users; `plain` where it is left out.",
            Shape::Word(&["plain", "hashed"]),
            |reader, node, it| it.keys = reader.word(node, &KEYS).unwrap_or_default(),
            |it| write_word(&it.keys, &KEYS),
            || usual_word(&KEYS),
        ),
        key_with_default(
            "history",
            "How many of the last requests are kept; none where it is left out.",
            Shape::Whole,
            |reader, node, it| it.history = reader.whole(node, 0..=MOST).unwrap_or_default(),
            |it| differs(it.history, 0).map(Written::Number),
            || Written::Number(Observe::default().history),
        ),
        key_with_default(
            "share",
            "Of the clients of which all requests are kept in the history; all where it is left out.",
            Shape::Text(&["10%"]),
            |reader, node, it| it.share = reader.share(node).unwrap_or_default(),
            |it| differs(it.share, Observe::default().share).map(Written::text),
            || Written::text(Observe::default().share),
        ),
    ],
};

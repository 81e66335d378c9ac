//! What is read quickly is what the parser reads, with the same places.

use super::super::{Node, yaml};
use proptest::{prelude::*, sample::select};
use std::{cell::Cell, fs, path::Path};
use tidegate_testkit::{spoil, strategy::runner_of};

/// Which of both has read a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Quick,
    Parser,
}

/// Reads a text in both ways, if it can be read quickly at all, and compares what was found and where.
fn compare(text: &str) -> By {
    let Some(quick) = super::read::<String>(3, text) else { return By::Parser };
    let parsed: Result<Vec<Node>, _> = yaml::parsed(3, text, yaml::Documents::One);
    let parsed = parsed.unwrap_or_else(|fault| panic!("{fault:?} in\n{text}"));
    assert_eq!(format!("{:?}", [quick]), format!("{parsed:?}"), "{text}");
    By::Quick
}

/// Files of this repository that are written plainly.
const PLAIN: [&str; 5] = [
    "../cli/src/serve/example.yaml",
    "../tidegate/examples/policy.yaml",
    "../../examples/envoy/limits/shop.yaml",
    "../../examples/traefik/tidegate.yaml",
    "tests/suite/fuzz/seeds/policy-whole.txt",
];

fn plain() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    PLAIN.iter().map(|path| fs::read_to_string(root.join(path)).unwrap()).collect()
}

/// What fuzzers start from, in which there are other languages, too.
fn seeds() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/fuzz/seeds");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let texts = paths.iter().map(|path| fs::read_to_string(path).unwrap());
    texts.flat_map(|text| text.split("\n---8<---\n").map(str::to_owned).collect::<Vec<_>>()).collect()
}

#[test]
fn files_are_read_alike() {
    for text in plain() {
        assert_eq!(compare(&text), By::Quick, "{text}");
    }
    assert!(seeds().iter().any(|text| compare(text) == By::Parser));
}

/// The parser lets some of those end before their bracket then.
#[test]
fn commas_at_the_end_are_left_to_the_parser() {
    for text in ["a: [{ b: c, }]", "a: [b, ]", "a: { b: c, }", "- [[b, ], c]"] {
        assert_eq!(compare(text), By::Parser, "{text}");
    }
}

#[test]
fn spoiled_files_are_read_alike() {
    let seeds = plain().into_iter().chain(seeds()).filter(|text| compare(text) == By::Quick);
    let seeds: Vec<_> = seeds.map(String::into_bytes).collect();
    let quick = Cell::new(0);
    let outcome = spoil::each(&seeds, 2_000, |bytes| {
        if str::from_utf8(bytes).is_ok_and(|text| compare(text) == By::Quick) {
            quick.set(quick.get() + 1);
        }
    });
    assert_eq!(outcome, Ok(()));
    assert!(quick.get() > 200, "only {} were read", quick.get());
}

/// Lines of pieces that mean something beside each other.
#[test]
fn pieces_in_any_order_are_read_alike() {
    let pieces = [
        "a",
        "b",
        "k1",
        "'q'",
        "\"q\"",
        "''",
        "\"\"",
        "'it''s'",
        "\"\\n\"",
        "1",
        "-5",
        "1.5e3",
        "~",
        "null",
        "true",
        "True",
        "<<",
        ":",
        ": ",
        ":  ",
        " : ",
        "- ",
        "-",
        "-  ",
        "--",
        "---",
        "...",
        " ",
        "  ",
        "#",
        " #",
        " # c",
        "{",
        "}",
        "[",
        "]",
        ",",
        ", ",
        "{ ",
        " }",
        "[ ",
        " ]",
        "{}",
        "[]",
        "?",
        "? ",
        "&x",
        "*x",
        "!t",
        "|",
        ">",
        "%",
        "@",
        "`",
        "\"",
        "'",
        "\\",
        "\t",
        "\r",
        "é",
        "a: 1",
        "b: x y",
        "k: [1, two]",
        "k: { a: 1, b: 2 }",
        "x:y",
        "http://h:1/p",
        "a-b",
        "-\n",
        "=",
        "a#b",
        "a,b",
        "a]",
        "[{ a: 1, }]",
    ];
    let line =
        (select(vec![0_usize, 0, 1, 2, 2, 4, 6]), prop::collection::vec(select(pieces.to_vec()), 0..5));
    let line = line.prop_map(|(indent, pieces)| format!("{}{}", " ".repeat(indent), pieces.concat()));
    let texts = (prop::collection::vec(line, 1..7), any::<bool>());
    let texts = texts.prop_map(|(lines, ends)| lines.join("\n") + if ends { "\n" } else { "" });
    let quick = Cell::new(0);
    let law = |text: String| {
        quick.set(quick.get() + usize::from(compare(&text) == By::Quick));
        Ok(())
    };
    runner_of(60_000).run(&texts, law).unwrap();
    assert!(quick.get() > 500, "only {} were read", quick.get());
}

/// A tree as a text that is written plainly.
#[derive(Clone, Debug)]
enum Tree {
    Word(&'static str),
    List(Layout, Vec<Self>),
    Map(Layout, Vec<(&'static str, Self)>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Lines,
    Brackets,
}

fn trees() -> impl Strategy<Value = Tree> {
    let words = select(vec![
        "word",
        "two words",
        "'a: b'",
        "\"# c\"",
        "12",
        "-0.5",
        "true",
        "~",
        "a-b/c*",
        "x:y",
        "-x",
        "\"\"",
        "\"12\"",
        "[]",
        "{ }",
    ]);
    let layouts = || select(vec![Layout::Lines, Layout::Lines, Layout::Brackets]);
    words.prop_map(Tree::Word).prop_recursive(5, 40, 4, move |inner| {
        let keys = select(vec!["key", "value", "\"a b\"", "'c'", "a.b", "5"]);
        let entries = prop::collection::vec((keys, inner.clone()), 1..4).prop_map(|mut entries| {
            let mut seen = Vec::new();
            entries.retain(|(key, _)| {
                !seen.contains(key) && {
                    seen.push(*key);
                    true
                }
            });
            entries
        });
        prop_oneof![
            (layouts(), prop::collection::vec(inner, 1..4))
                .prop_map(|(layout, items)| Tree::List(layout, items)),
            (layouts(), entries).prop_map(|(layout, entries)| Tree::Map(layout, entries)),
        ]
    })
}

impl Tree {
    /// In one line.
    fn brackets(&self) -> String {
        match self {
            Self::Word(word) => (*word).to_owned(),
            Self::List(_, items) => {
                let items: Vec<_> = items.iter().map(Self::brackets).collect();
                format!("[{}]", items.join(", "))
            }
            Self::Map(_, entries) => {
                let entries: Vec<_> =
                    entries.iter().map(|(key, tree)| format!("{key}: {}", tree.brackets())).collect();
                format!("{{ {} }}", entries.join(", "))
            }
        }
    }

    fn has_lines(&self) -> bool {
        matches!(self, Self::List(Layout::Lines, _) | Self::Map(Layout::Lines, _))
    }

    /// Behind a dash or a colon whose line is indented so far.
    fn print(&self, text: &mut String, indent: usize, is_item: bool) {
        let start = |text: &mut String, first: bool, column: usize| match first && is_item {
            true => text.push(' '),
            false => *text += &format!("\n{}", " ".repeat(column)),
        };
        match self {
            Self::List(Layout::Lines, items) => {
                for (place, item) in items.iter().enumerate() {
                    // Below a key a list need not be indented.
                    let column = if is_item || items.len() % 2 == 0 { indent + 2 } else { indent };
                    start(text, place == 0, column);
                    text.push('-');
                    item.print(text, column, true);
                }
            }
            Self::Map(Layout::Lines, entries) => {
                for (place, (key, tree)) in entries.iter().enumerate() {
                    start(text, place == 0, indent + 2);
                    *text +=
                        &format!("{key}:{}", if place == 2 && tree.has_lines() { "  # below" } else { "" });
                    tree.print(text, indent + 2, false);
                    if place % 2 == 1 {
                        *text += "\n\n  # between them";
                    }
                }
            }
            _ => *text += &format!(" {} # {}", self.brackets(), indent),
        }
    }
}

#[test]
fn whatever_is_written_plainly_is_read_quickly() {
    let law = |tree: Tree| {
        let mut text = "# first\nroot:".to_owned();
        tree.print(&mut text, 0, false);
        prop_assert_eq!(compare(&text), By::Quick, "{}", text);
        Ok(())
    };
    runner_of(2_000).run(&trees(), law).unwrap();
}

//! Reads YAML 1.2, and keeps the places.
//!
//! Words are what the core schema makes of them: `off` and `no` are texts, `true` is not. Aliases are followed while what
//! they unfold to stays small; tags, keys that are no words, and more documents than are wanted are refused.

use super::{DEEPEST, Fault, Keys, MOST_UNFOLDED, Name, Node, Span, Text, Value, too_deep};
use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span as Marked, Tag};
use std::{borrow::Cow, collections::HashMap, ops::Deref};

/// The only document of a text.
pub(super) fn parse(file: usize, text: &str) -> Result<Node, Fault> {
    let root = read(file, text, Documents::One)?.pop();
    Ok(root.unwrap_or(Node { value: Value::Null, at: Span { file, start: 0, end: 0 } }))
}

/// All documents of a text.
pub(super) fn documents<'a, T: Text<'a>>(file: usize, text: &'a str) -> Result<Vec<Node<T>>, Fault> {
    read(file, text, Documents::Any)
}

/// How many documents a text may have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Documents {
    One,
    Any,
}

fn read<'a, T: Text<'a>>(file: usize, text: &'a str, documents: Documents) -> Result<Vec<Node<T>>, Fault> {
    let mut builder = Builder {
        text,
        places: Places::new(file, text),
        documents,
        open: Vec::new(),
        items: Vec::new(),
        entries: Vec::new(),
        roots: Vec::new(),
        anchors: HashMap::new(),
        unfolded: 0,
    };
    for event in Parser::new_from_str(text) {
        let (event, marked) = event.map_err(|error| {
            // A quote that is not closed hides what closes a bracket.
            if let Some(fault) = builder.unclosed().filter(|_| !error.info().contains("quoted scalar")) {
                return fault;
            }
            let at = builder.places.marker(*error.marker());
            Fault::new(Span { end: at.start + 1, ..at }, error.info(), advice(error.info()))
        })?;
        builder.hear(event, marked)?;
    }
    Ok(builder.roots)
}

/// What most often helps.
fn advice(info: &str) -> &'static str {
    const KNOWN: [(&str, &str); 7] = [
        ("tab", "indent with spaces"),
        ("unknown anchor", "put a text that starts with `*` into quotes"),
        ("mapping values", "put a text with a colon in it into quotes, and each key on a line of its own"),
        ("expected ',' or", "put a text with braces, brackets, commas or colons in it into quotes"),
        ("block", "indent it as deep as what it belongs to"),
        ("unexpected character", "put a text that starts with a sign into quotes"),
        ("quoted scalar", "end the text with the quote that it starts with, and have no other of it inside"),
    ];
    let known = KNOWN.iter().find(|(part, _)| info.contains(part));
    known.map_or("write YAML, with texts in quotes where they have signs in them", |(_, advice)| advice)
}

/// Whether the bracket that a text starts with is closed in it. What is quoted or remarked does not count.
fn is_closed(text: &str) -> bool {
    let (mut depth, mut quote, mut is_remark, mut before) = (0_usize, None, false, ' ');
    for sign in text.chars() {
        match (quote, sign) {
            _ if is_remark => is_remark = sign != '\n',
            (Some(open), sign) if open == sign && before != '\\' => quote = None,
            (None, '"' | '\'') if matches!(before, ' ' | '{' | '[' | ',' | '\n' | ':') => quote = Some(sign),
            (None, '#') if before.is_whitespace() => is_remark = true,
            (None, '{' | '[') => depth += 1,
            (None, '}' | ']') => depth = depth.saturating_sub(1),
            (Some(_) | None, _) => {}
        }
        if depth == 0 {
            return true;
        }
        before = sign;
    }
    false
}

struct Builder<'a, T> {
    text: &'a str,
    places: Places<'a>,
    documents: Documents,
    open: Vec<Open<T>>,
    /// What open lists and maps hold so far, those of the innermost last. Each takes what it needs when it ends.
    items: Vec<Node<T>>,
    entries: Vec<(Name<T>, Node<T>)>,
    roots: Vec<Node<T>>,
    anchors: HashMap<usize, Node<T>>,
    unfolded: usize,
}

/// A list or a map whose end was not seen yet.
struct Open<T> {
    anchor: usize,
    at: Span,
    holds: Holds<T>,
}

enum Holds<T> {
    List { first: usize },
    Map { first: usize, keys: Keys, next: Option<Name<T>> },
}

impl<'a, T: Text<'a>> Builder<'a, T> {
    /// The bracket that was opened last and is never closed.
    fn unclosed(&self) -> Option<Fault> {
        self.open.iter().rev().find_map(|open| {
            let rest = self.text.get(open.at.start..)?;
            let (sign, end) = match rest.chars().next()? {
                '{' => ('{', '}'),
                '[' => ('[', ']'),
                _ => return None,
            };
            let at = Span { end: open.at.start + 1, ..open.at };
            let fix = format!("close it with `{end}`");
            (!is_closed(rest)).then(|| Fault::new(at, format!("`{sign}` is not closed"), fix))
        })
    }

    fn hear(&mut self, event: Event<'a>, marked: Marked) -> Result<(), Fault> {
        let at = self.places.span(marked);
        match event {
            Event::DocumentStart(_) if self.documents == Documents::One && !self.roots.is_empty() => {
                Err(Fault::new(at, "a second document", "write one only"))
            }
            Event::Scalar(text, style, anchor, tag) => {
                let value = scalar(self.as_written(text, at), style, tag.as_deref(), at)?;
                self.put(Node { value, at }, anchor)
            }
            Event::SequenceStart(anchor, tag) => {
                self.start(anchor, at, tag.as_deref(), "seq", Holds::List { first: self.items.len() })
            }
            Event::MappingStart(anchor, tag) => {
                let holds = Holds::Map { first: self.entries.len(), keys: Keys::default(), next: None };
                self.start(anchor, at, tag.as_deref(), "map", holds)
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(Open { anchor, at: start, holds }) = self.open.pop() else { return Ok(()) };
                let value = match holds {
                    Holds::List { first } => Value::List(self.items.split_off(first)),
                    Holds::Map { first, .. } => Value::Map(self.entries.split_off(first)),
                };
                self.put(Node { value, at: Span { end: at.end.max(start.end), ..start } }, anchor)
            }
            Event::Alias(anchor) => {
                let Some(known) = self.anchors.get(&anchor) else {
                    return Err(Fault::new(at, "an alias inside of what it stands for", "write it out"));
                };
                self.unfolded += known.weight();
                if self.unfolded > MOST_UNFOLDED {
                    let problem = "aliases that unfold to more than 16 MiB";
                    return Err(Fault::new(at, problem, "write less, or use `templates`"));
                }
                let node = Node { value: known.value.clone(), at };
                self.put(node, 0)
            }
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => Ok(()),
        }
    }

    /// A word as a piece of the text, if it stands there like that. The parser gives each word a buffer of its own, which is
    /// larger than most words.
    fn as_written(&self, word: Cow<'a, str>, at: Span) -> Cow<'a, str> {
        let written = self.text.get(at.start..at.end).unwrap_or_default();
        let unquoted =
            written.strip_prefix(['"', '\'']).and_then(|rest| rest.get(..rest.len().checked_sub(1)?));
        [Some(written), unquoted]
            .into_iter()
            .flatten()
            .find(|piece| *piece == word)
            .map_or(word, Cow::Borrowed)
    }

    fn start(
        &mut self,
        anchor: usize,
        at: Span,
        tag: Option<&Tag>,
        kind: &str,
        holds: Holds<T>,
    ) -> Result<(), Fault> {
        if let Some(tag) = tag.filter(|tag| !(tag.is_yaml_core_schema() && tag.suffix == kind)) {
            return Err(refused(tag, at));
        }
        if self.open.len() >= DEEPEST {
            return Err(too_deep(at));
        }
        self.open.push(Open { anchor, at, holds });
        Ok(())
    }

    fn put(&mut self, node: Node<T>, anchor: usize) -> Result<(), Fault> {
        if anchor > 0 {
            // A map in which an anchor stands may be aliased too: what is kept for both is bounded with what is unfolded.
            self.unfolded += node.weight();
            if self.unfolded > MOST_UNFOLDED {
                return Err(Fault::new(node.at, "anchors of more than 16 MiB", "write less"));
            }
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut().map(|open| &mut open.holds) {
            None => self.roots.push(node),
            Some(Holds::List { .. }) => self.items.push(node),
            Some(Holds::Map { first, keys, next }) => match next.take() {
                Some(name) => self.entries.push((name, node)),
                None => {
                    let at = node.at;
                    let text = match node.value {
                        Value::Text(text) | Value::Number(text) => text,
                        Value::Bool(is) => T::from(if is { "true" } else { "false" }),
                        Value::Null | Value::List(_) | Value::Map(_) => {
                            let problem = format!("a key that is {}", node.kind());
                            return Err(Fault::new(at, problem, "write a word"));
                        }
                    };
                    let name = Name { text, at };
                    keys.take(self.text, &self.entries[*first..], &name)?;
                    *next = Some(name);
                }
            },
        }
        Ok(())
    }
}

/// What a word is.
fn scalar<'a, T: Text<'a>>(
    text: Cow<'a, str>,
    style: ScalarStyle,
    tag: Option<&Tag>,
    at: Span,
) -> Result<Value<T>, Fault> {
    match tag {
        Some(tag) if tag.is_yaml_core_schema() && tag.suffix == "str" => {
            return Ok(Value::Text(text.into()));
        }
        Some(tag) => return Err(refused(tag, at)),
        None => {}
    }
    Ok(match style {
        ScalarStyle::Plain => plain(text.into()),
        _ => Value::Text(text.into()),
    })
}

/// What a word without quotes is in the core schema.
pub(crate) fn plain<T: Deref<Target = str>>(text: T) -> Value<T> {
    match &*text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        word if may_be_number(word) && is_number(word) => Value::Number(text),
        _ => Value::Text(text),
    }
}

/// Most words are none by their first sign.
fn may_be_number(text: &str) -> bool {
    matches!(text.as_bytes(), [b'0'..=b'9' | b'+' | b'-' | b'.', ..])
}

fn is_number(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.strip_prefix(['-', '+']).unwrap_or(exponent)),
        None => (unsigned, "0"),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
    let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    !(exponent.is_empty() || whole.is_empty() && (fraction.is_empty() || !mantissa.contains('.')))
        && are_digits(whole)
        && are_digits(fraction)
        && are_digits(exponent)
}

fn refused(tag: &Tag, at: Span) -> Fault {
    let handle = if tag.is_yaml_core_schema() { "!!" } else { &tag.handle };
    let name = super::short(&format!("{handle}{}", tag.suffix));
    Fault::new(at, format!("the tag `{name}`"), "leave it out")
}

/// Makes bytes of characters, in which the parser counts.
struct Places<'a> {
    file: usize,
    text: &'a str,
    /// Where each character starts; empty where each is one byte.
    starts: Vec<usize>,
}

impl<'a> Places<'a> {
    fn new(file: usize, text: &'a str) -> Self {
        let starts = match text.is_ascii() {
            true => Vec::new(),
            false => text.char_indices().map(|(start, _)| start).collect(),
        };
        Self { file, text, starts }
    }

    fn byte(&self, index: usize) -> usize {
        match self.starts.is_empty() {
            true => index.min(self.text.len()),
            false => self.starts.get(index).copied().unwrap_or(self.text.len()),
        }
    }

    fn marker(&self, marker: Marker) -> Span {
        let start = self.byte(marker.index());
        Span { file: self.file, start, end: start }
    }

    fn span(&self, marked: Marked) -> Span {
        let (start, end) = (self.byte(marked.start.index()), self.byte(marked.end.index()));
        Span { file: self.file, start, end: end.max(start) }
    }
}

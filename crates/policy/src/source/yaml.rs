//! Parses YAML 1.2 with positions.
//!
//! Plain scalars have the types of the core schema: `off` and `no` are strings, `true` is a boolean. Aliases are expanded up
//! to a size limit; tags, keys that are not scalars, and extra documents are rejected.

use super::{
    DuplicateKeyCheck, MAX_DEPTH, MAX_EXPANDED_BYTES, SourceSpan, SourceText, SpannedError, SyntaxKey,
    SyntaxNode, SyntaxValue, too_deep_error,
};
use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span as Marked, Tag};
use std::{borrow::Cow, collections::HashMap, ops::Deref};

/// Parses a source with at most one document.
pub(super) fn parse(file: usize, text: &str) -> Result<SyntaxNode, SpannedError> {
    let root = parse_with_limit(file, text, DocumentLimit::One)?.pop();
    Ok(root.unwrap_or(SyntaxNode { value: SyntaxValue::Null, span: SourceSpan { file, start: 0, end: 0 } }))
}

/// Parses all documents of a source.
pub(super) fn parse_documents<'a, T: SourceText<'a>>(
    file: usize,
    text: &'a str,
) -> Result<Vec<SyntaxNode<T>>, SpannedError> {
    parse_with_limit(file, text, DocumentLimit::Any)
}

/// The number of documents that a source may have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DocumentLimit {
    One,
    Any,
}

fn parse_with_limit<'a, T: SourceText<'a>>(
    file: usize,
    text: &'a str,
    documents: DocumentLimit,
) -> Result<Vec<SyntaxNode<T>>, SpannedError> {
    let mut builder = YamlTreeBuilder {
        text,
        offsets: ByteOffsets::new(file, text),
        documents,
        stack: Vec::new(),
        items: Vec::new(),
        entries: Vec::new(),
        roots: Vec::new(),
        anchors: HashMap::new(),
        expanded_bytes: 0,
    };
    for event in Parser::new_from_str(text) {
        let (event, marked) = event.map_err(|error| {
            // An unclosed quote hides the closing bracket.
            if let Some(fault) = builder.find_unclosed().filter(|_| !error.info().contains("quoted scalar")) {
                return fault;
            }
            let at = builder.offsets.marker_span(*error.marker());
            SpannedError::new(SourceSpan { end: at.start + 1, ..at }, error.info(), suggest_fix(error.info()))
        })?;
        builder.handle_event(event, marked)?;
    }
    Ok(builder.roots)
}

/// Returns the most likely fix for an error of the parser.
fn suggest_fix(info: &str) -> &'static str {
    const KNOWN_FIXES: [(&str, &str); 7] = [
        ("tab", "indent with spaces"),
        ("unknown anchor", "put a string that starts with `*` into quotes"),
        ("mapping values", "put a string with a colon into quotes, and each key on its own line"),
        ("expected ',' or", "put a string with braces, brackets, commas or colons into quotes"),
        ("block", "indent it like the other items"),
        ("unexpected character", "put a string that starts with a special character into quotes"),
        ("quoted scalar", "end the string with its opening quote, and double or escape such quotes inside"),
    ];
    let known = KNOWN_FIXES.iter().find(|(part, _)| info.contains(part));
    known.map_or(
        "write valid YAML, with strings in quotes if they contain special characters",
        |(_, advice)| advice,
    )
}

/// Whether the bracket at the start of a text is closed. Quotes and comments are skipped.
fn is_bracket_closed(text: &str) -> bool {
    let (mut depth, mut quote, mut is_comment, mut before) = (0_usize, None, false, ' ');
    for sign in text.chars() {
        match (quote, sign) {
            _ if is_comment => is_comment = sign != '\n',
            (Some(open), sign) if open == sign && before != '\\' => quote = None,
            (None, '"' | '\'') if matches!(before, ' ' | '{' | '[' | ',' | '\n' | ':') => quote = Some(sign),
            (None, '#') if before.is_whitespace() => is_comment = true,
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

struct YamlTreeBuilder<'a, T> {
    text: &'a str,
    offsets: ByteOffsets<'a>,
    documents: DocumentLimit,
    stack: Vec<OpenCollection<T>>,
    /// The items of open lists and the entries of open maps, innermost last. Each collection takes its own when it ends.
    items: Vec<SyntaxNode<T>>,
    entries: Vec<(SyntaxKey<T>, SyntaxNode<T>)>,
    roots: Vec<SyntaxNode<T>>,
    anchors: HashMap<usize, SyntaxNode<T>>,
    expanded_bytes: usize,
}

/// A list or a map that has not ended yet.
struct OpenCollection<T> {
    anchor: usize,
    span: SourceSpan,
    kind: CollectionKind<T>,
}

enum CollectionKind<T> {
    List { first: usize },
    Map { first: usize, keys: DuplicateKeyCheck, pending_key: Option<SyntaxKey<T>> },
}

impl<'a, T: SourceText<'a>> YamlTreeBuilder<'a, T> {
    /// Finds the innermost bracket that is never closed.
    fn find_unclosed(&self) -> Option<SpannedError> {
        self.stack.iter().rev().find_map(|open| {
            let rest = self.text.get(open.span.start..)?;
            let (sign, end) = match rest.chars().next()? {
                '{' => ('{', '}'),
                '[' => ('[', ']'),
                _ => return None,
            };
            let at = SourceSpan { end: open.span.start + 1, ..open.span };
            let fix = format!("close it with `{end}`");
            (!is_bracket_closed(rest)).then(|| SpannedError::new(at, format!("`{sign}` is not closed"), fix))
        })
    }

    fn handle_event(&mut self, event: Event<'a>, marked: Marked) -> Result<(), SpannedError> {
        let at = self.offsets.span(marked);
        match event {
            Event::DocumentStart(_) if self.documents == DocumentLimit::One && !self.roots.is_empty() => {
                Err(SpannedError::new(at, "more than one document", "write only one"))
            }
            Event::Scalar(text, style, anchor, tag) => {
                let value = parse_scalar(self.borrow_scalar(text, at), style, tag.as_deref(), at)?;
                self.add_node(SyntaxNode { value, span: at }, anchor)
            }
            Event::SequenceStart(anchor, tag) => self.open_collection(
                anchor,
                at,
                tag.as_deref(),
                "seq",
                CollectionKind::List { first: self.items.len() },
            ),
            Event::MappingStart(anchor, tag) => {
                let kind = CollectionKind::Map {
                    first: self.entries.len(),
                    keys: DuplicateKeyCheck::default(),
                    pending_key: None,
                };
                self.open_collection(anchor, at, tag.as_deref(), "map", kind)
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(OpenCollection { anchor, span: start, kind }) = self.stack.pop() else {
                    return Ok(());
                };
                let value = match kind {
                    CollectionKind::List { first } => SyntaxValue::List(self.items.split_off(first)),
                    CollectionKind::Map { first, .. } => SyntaxValue::Map(self.entries.split_off(first)),
                };
                self.add_node(
                    SyntaxNode { value, span: SourceSpan { end: at.end.max(start.end), ..start } },
                    anchor,
                )
            }
            Event::Alias(anchor) => {
                let Some(known) = self.anchors.get(&anchor) else {
                    return Err(SpannedError::new(
                        at,
                        "alias inside of its own anchor",
                        "write the value instead",
                    ));
                };
                self.expanded_bytes += known.estimated_bytes();
                if self.expanded_bytes > MAX_EXPANDED_BYTES {
                    let problem = "aliases expand to more than 16 MiB";
                    return Err(SpannedError::new(at, problem, "use fewer aliases, or `templates`"));
                }
                let node = SyntaxNode { value: known.value.clone(), span: at };
                self.add_node(node, 0)
            }
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => Ok(()),
        }
    }

    /// Borrows a scalar from the source if it has no escapes. The parser allocates a buffer for each scalar, which is larger
    /// than most scalars.
    fn borrow_scalar(&self, word: Cow<'a, str>, at: SourceSpan) -> Cow<'a, str> {
        let written = self.text.get(at.start..at.end).unwrap_or_default();
        let unquoted =
            written.strip_prefix(['"', '\'']).and_then(|rest| rest.get(..rest.len().checked_sub(1)?));
        [Some(written), unquoted]
            .into_iter()
            .flatten()
            .find(|piece| *piece == word)
            .map_or(word, Cow::Borrowed)
    }

    fn open_collection(
        &mut self,
        anchor: usize,
        at: SourceSpan,
        tag: Option<&Tag>,
        kind: &str,
        holds: CollectionKind<T>,
    ) -> Result<(), SpannedError> {
        if let Some(tag) = tag.filter(|tag| !(tag.is_yaml_core_schema() && tag.suffix == kind)) {
            return Err(tag_error(tag, at));
        }
        if self.stack.len() >= MAX_DEPTH {
            return Err(too_deep_error(at));
        }
        self.stack.push(OpenCollection { anchor, span: at, kind: holds });
        Ok(())
    }

    fn add_node(&mut self, node: SyntaxNode<T>, anchor: usize) -> Result<(), SpannedError> {
        if anchor > 0 {
            // Anchors can be nested, so their copies count towards the expansion limit, too.
            self.expanded_bytes += node.estimated_bytes();
            if self.expanded_bytes > MAX_EXPANDED_BYTES {
                return Err(SpannedError::new(node.span, "anchors larger than 16 MiB", "use smaller ones"));
            }
            self.anchors.insert(anchor, node.clone());
        }
        match self.stack.last_mut().map(|open| &mut open.kind) {
            None => self.roots.push(node),
            Some(CollectionKind::List { .. }) => self.items.push(node),
            Some(CollectionKind::Map { first, keys, pending_key: next }) => match next.take() {
                Some(name) => self.entries.push((name, node)),
                None => {
                    let at = node.span;
                    let text = match node.value {
                        SyntaxValue::Text(text) | SyntaxValue::Number(text) => text,
                        SyntaxValue::Bool(is) => T::from(if is { "true" } else { "false" }),
                        SyntaxValue::Null | SyntaxValue::List(_) | SyntaxValue::Map(_) => {
                            let problem = format!("expected a string as key, found {}", node.kind_name());
                            return Err(SpannedError::new(at, problem, "write a string"));
                        }
                    };
                    let name = SyntaxKey { text, span: at };
                    keys.check(self.text, &self.entries[*first..], &name)?;
                    *next = Some(name);
                }
            },
        }
        Ok(())
    }
}

/// Converts a scalar to a value.
fn parse_scalar<'a, T: SourceText<'a>>(
    text: Cow<'a, str>,
    style: ScalarStyle,
    tag: Option<&Tag>,
    at: SourceSpan,
) -> Result<SyntaxValue<T>, SpannedError> {
    match tag {
        Some(tag) if tag.is_yaml_core_schema() && tag.suffix == "str" => {
            return Ok(SyntaxValue::Text(text.into()));
        }
        Some(tag) => return Err(tag_error(tag, at)),
        None => {}
    }
    Ok(match style {
        ScalarStyle::Plain => parse_plain_scalar(text.into()),
        _ => SyntaxValue::Text(text.into()),
    })
}

/// Converts a plain scalar to a value of the core schema.
pub(crate) fn parse_plain_scalar<T: Deref<Target = str>>(text: T) -> SyntaxValue<T> {
    match &*text {
        "" | "~" | "null" | "Null" | "NULL" => SyntaxValue::Null,
        "true" | "True" | "TRUE" => SyntaxValue::Bool(true),
        "false" | "False" | "FALSE" => SyntaxValue::Bool(false),
        word if may_be_number(word) && is_number(word) => SyntaxValue::Number(text),
        _ => SyntaxValue::Text(text),
    }
}

/// A fast check of the first character.
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

fn tag_error(tag: &Tag, at: SourceSpan) -> SpannedError {
    let handle = if tag.is_yaml_core_schema() { "!!" } else { &tag.handle };
    let name = super::truncate(&format!("{handle}{}", tag.suffix));
    SpannedError::new(at, format!("unsupported tag `{name}`"), "remove it")
}

/// Converts the character offsets of the parser to byte offsets.
struct ByteOffsets<'a> {
    file: usize,
    text: &'a str,
    /// The byte offset of each character; empty for ASCII.
    starts: Vec<usize>,
}

impl<'a> ByteOffsets<'a> {
    fn new(file: usize, text: &'a str) -> Self {
        let starts = match text.is_ascii() {
            true => Vec::new(),
            false => text.char_indices().map(|(start, _)| start).collect(),
        };
        Self { file, text, starts }
    }

    fn byte_offset(&self, index: usize) -> usize {
        match self.starts.is_empty() {
            true => index.min(self.text.len()),
            false => self.starts.get(index).copied().unwrap_or(self.text.len()),
        }
    }

    fn marker_span(&self, marker: Marker) -> SourceSpan {
        let start = self.byte_offset(marker.index());
        SourceSpan { file: self.file, start, end: start }
    }

    fn span(&self, marked: Marked) -> SourceSpan {
        let (start, end) = (self.byte_offset(marked.start.index()), self.byte_offset(marked.end.index()));
        SourceSpan { file: self.file, start, end: end.max(start) }
    }
}

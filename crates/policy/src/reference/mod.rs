//! The policy reference: pages that list every key with its type, its default, an example and its meaning.
//!
//! The pages are generated from the tables of the reader, so that they are complete. The Chinese texts are in `chinese.txt`. Only
//! tests use this module.

mod tests;

use crate::{
    map_schema::{KeyOutline, MapOutline, OutputValue, TextKind, ValueSchema},
    print::write_yaml_flow,
    read::{POLICY, matching::MATCH},
};
use std::collections::{BTreeMap, BTreeSet};

/// The language of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    /// English, as in the tables.
    English,
    /// Chinese, from the catalog.
    Chinese,
}

/// Returns the page in Markdown, or the texts that the catalog lacks and those in it that no key has.
fn policy_reference(language: Language) -> Result<String, Vec<String>> {
    let mut page = ReferencePage {
        language,
        text: String::new(),
        kinds: BTreeSet::new(),
        used: BTreeSet::new(),
        missing: Vec::new(),
    };
    let mut maps = Maps::default();
    maps.add(POLICY.outline());
    let mut sections = String::new();
    for outline in &maps.found {
        page.write_map(outline, maps.users.get(outline.name));
        sections.push_str(&std::mem::take(&mut page.text));
    }
    page.text.push_str(match language {
        Language::English => ENGLISH_INTRODUCTION,
        Language::Chinese => CHINESE_INTRODUCTION,
    });
    page.write_kinds();
    page.text.push_str(&sections);
    page.finish()
}

const CHINESE_INTRODUCTION: &str = include_str!("chinese-introduction.txt");

/// Each English text, and on the next line its Chinese text. A changed English text needs a new translation.
const CHINESE_TEXTS: &str = include_str!("chinese.txt");

const ENGLISH_INTRODUCTION: &str = include_str!("english-introduction.txt");

/// The maps of a policy in the order in which they are documented, and the keys that they are values of.
#[derive(Default)]
struct Maps {
    found: Vec<MapOutline>,
    users: BTreeMap<&'static str, Vec<String>>,
}

impl Maps {
    fn add(&mut self, outline: MapOutline) {
        if self.found.iter().any(|known| known.name == outline.name) {
            return;
        }
        let name = outline.name;
        let mut inner = Vec::new();
        // The keys of a template are the keys of a rule, and a route can have those of `match`.
        if name != "template" {
            let own = outline.keys.iter().filter(|key| is_own(name, key));
            own.for_each(|key| self.collect(key.shape, &format!("{name}.{}", key.name), &mut inner));
        }
        self.found.push(outline);
        inner.into_iter().for_each(|outline| self.add(outline));
    }

    fn collect(&mut self, shape: &'static ValueSchema, user: &str, inner: &mut Vec<MapOutline>) {
        match shape {
            ValueSchema::Map(outline) => {
                let outline = outline();
                let users = self.users.entry(outline.name).or_default();
                if !users.iter().any(|known| known == user) {
                    users.push(user.to_owned());
                    inner.push(outline);
                }
            }
            // Only keys contain themselves.
            ValueSchema::Reference(_, shape) => {
                if let ValueSchema::AnyOf(shapes) = shape() {
                    let maps = shapes.iter().filter(|shape| matches!(shape, ValueSchema::Map(_)));
                    maps.for_each(|shape| self.collect(shape, user, inner));
                }
            }
            ValueSchema::OneOrMany(each) | ValueSchema::List(each) | ValueSchema::NamedMap(_, each) => {
                self.collect(each, user, inner);
            }
            ValueSchema::AnyOf(shapes) => shapes.iter().for_each(|shape| self.collect(shape, user, inner)),
            ValueSchema::Text(..)
            | ValueSchema::Keyword(_)
            | ValueSchema::Integer(..)
            | ValueSchema::Scalar(_) => {}
        }
    }
}

/// Whether a key is described in the section of its map.
fn is_own(map: &str, key: &KeyOutline) -> bool {
    map != "route" || MATCH.key(key.name).is_none()
}

struct ReferencePage {
    language: Language,
    text: String,
    /// The types that keys have.
    kinds: BTreeSet<TextKind>,
    /// The texts of the catalog that are used.
    used: BTreeSet<&'static str>,
    missing: Vec<String>,
}

impl ReferencePage {
    /// Returns a text in the language of the page.
    fn translate(&mut self, text: &'static str) -> &'static str {
        if self.language == Language::English {
            return text;
        }
        match chinese_texts().find(|(english, _)| *english == text) {
            Some((english, chinese)) => {
                self.used.insert(english);
                chinese
            }
            None => {
                self.missing.push(format!("No translation of: {text}"));
                text
            }
        }
    }

    fn write_heading(&mut self, heading: &str) {
        self.text.push_str(&format!("\n## {heading}\n\n"));
    }

    /// Writes the cells of a row.
    fn write_row(&mut self, cells: &[String]) {
        self.text.push_str("| ");
        self.text.push_str(&cells.join(" | "));
        self.text.push_str(" |\n");
    }

    fn write_header(&mut self, columns: &[&'static str]) {
        let cells: Vec<_> = columns.iter().map(|column| self.translate(column).to_owned()).collect();
        self.write_row(&cells);
        self.text.push_str(&format!("|{}\n", "---|".repeat(columns.len())));
    }

    fn write_kinds(&mut self) {
        let heading = self.translate("Types");
        self.write_heading(heading);
        self.write_header(&["type", "form"]);
        for kind in std::mem::take(&mut self.kinds) {
            let cells = [self.translate(kind.name()).to_owned(), self.translate(syntax(kind)).to_owned()];
            self.write_row(&cells);
        }
    }

    fn write_map(&mut self, outline: &MapOutline, users: Option<&Vec<String>>) {
        match users {
            None => {
                let heading = self.translate("Top level");
                self.write_heading(heading);
            }
            Some(users) => {
                self.write_heading(&format!("`{}`", outline.name));
                let users: Vec<_> = users.iter().map(|user| format!("`{user}`")).collect();
                let value_of = self.translate("The value of");
                let (comma, stop) = (self.translate(", "), self.translate("."));
                self.text.push_str(&format!("{value_of} {}{stop}", users.join(comma)));
                let more = match outline.name {
                    "template" => Some("It has the keys of [`rule`](#rule), without `name` and `use`."),
                    "route" => Some("It can also have the keys of [`match`](#match)."),
                    _ => None,
                };
                if let Some(more) = more {
                    let more = self.translate(more);
                    self.text.push_str(if self.language == Language::English { " " } else { "" });
                    self.text.push_str(more);
                }
                self.text.push('\n');
                if outline.name == "template" {
                    return;
                }
                self.text.push('\n');
            }
        }
        self.write_header(&["policy key", "type", "without it", "example", "meaning"]);
        for key in outline.keys.iter().filter(|key| is_own(outline.name, key)) {
            let without = match (&key.default, key.without) {
                (Some(default), _) => format!("`{}`", flow(default)),
                (None, Some(effect)) => self.translate(effect).to_owned(),
                (None, None) if outline.required.contains(&key.name) => {
                    self.translate("Error: the key is required.").to_owned()
                }
                (None, None) => {
                    self.missing.push(format!(
                        "Key `{}.{}` does not declare what applies without it",
                        outline.name, key.name
                    ));
                    String::new()
                }
            };
            let cells = [
                format!("`{}`", key.name),
                self.describe_shape(key.shape),
                without,
                format!("`{}: {}`", key.name, flow(&key.example())),
                self.translate(key.description).to_owned(),
            ];
            self.write_row(&cells);
        }
    }

    fn describe_shape(&mut self, shape: &'static ValueSchema) -> String {
        match shape {
            ValueSchema::Text(kind, _) => {
                self.kinds.insert(*kind);
                self.translate(kind.name()).to_owned()
            }
            ValueSchema::Keyword(words) => {
                let words: Vec<_> = words.iter().map(|word| format!("`{word}`")).collect();
                words.join(self.translate(", "))
            }
            ValueSchema::Integer(unit, _) => {
                format!("{} ({})", self.translate("integer"), self.translate(unit))
            }
            ValueSchema::Scalar(_) => self.translate("text").to_owned(),
            ValueSchema::OneOrMany(each) => {
                format!("{}{}", self.describe_shape(each), self.translate(" or list"))
            }
            ValueSchema::List(each) => {
                format!("{}{}", self.translate("list: "), self.describe_shape(each))
            }
            ValueSchema::NamedMap(_, each) => {
                format!("{}{}", self.translate("named map: "), self.describe_shape(each))
            }
            ValueSchema::Map(outline) => {
                let name = outline().name;
                format!("[`{name}`](#{name})")
            }
            ValueSchema::AnyOf(shapes) => {
                let shapes: Vec<_> = shapes.iter().map(|shape| self.describe_shape(shape)).collect();
                shapes.join(self.translate("; or "))
            }
            ValueSchema::Reference(..) => {
                self.kinds.insert(TextKind::Key);
                self.translate(TextKind::Key.name()).to_owned()
            }
        }
    }

    fn finish(mut self) -> Result<String, Vec<String>> {
        if self.language == Language::Chinese {
            let unused = chinese_texts().filter(|(english, _)| !self.used.contains(english));
            self.missing.extend(unused.map(|(english, _)| format!("No key has this text: {english}")));
        }
        match self.missing.is_empty() {
            true => Ok(self.text),
            false => Err(self.missing),
        }
    }
}

/// The pairs of the catalog.
fn chinese_texts() -> impl Iterator<Item = (&'static str, &'static str)> {
    CHINESE_TEXTS.lines().step_by(2).zip(CHINESE_TEXTS.lines().skip(1).step_by(2))
}

fn flow(value: &OutputValue) -> String {
    let mut text = String::new();
    write_yaml_flow(&mut text, value);
    text
}

/// The form of the values of a type.
const fn syntax(kind: TextKind) -> &'static str {
    match kind {
        TextKind::Address => "An IP address and a port: `127.0.0.1:8080`, `[::1]:8080`.",
        TextKind::Ban => {
            "A quota of denials and a time: `10/min for 1h`, or with a time that grows: `10/min for 1h growing 2 up to 1d`."
        }
        TextKind::ByteRate => {
            "Bytes by time: `1MB/s`, `200kB/s burst 1MB`, `100kB/s after 200kB`. The units are those of a size."
        }
        TextKind::Client => "A network, the name of one of `lists`, or `all`.",
        TextKind::CredentialSource => "One of `header NAME`, `cookie NAME` or `query NAME`.",
        TextKind::Duration => "A number and a unit: `us`, `ms`, `s`, `min`, `h` or `d`, as in `250ms`.",
        TextKind::Expression => {
            "An expression in the Common Expression Language, as in `request.size > 1000`."
        }
        TextKind::Factor => "A number after `x`, as in `x0.5`.",
        TextKind::FailureMode => {
            "One of `open`, `closed`, `local`, or `local N` for N processes that share the quota."
        }
        TextKind::File => "A path, relative to the policy file.",
        TextKind::Host => "The name of a host, without a port. In a `match`, `*` stands for any text.",
        TextKind::Key => {
            "One of `all`, `ip`, `ip/56` (for IPv6, the length of the prefix), `user`, `method`, `host`, `path`, `route`, `upstream`, `request`, `header NAME`, `cookie NAME`, `query NAME`, `body POINTER`, `jwt CLAIM`, `api-key`, `api-key tier`, `capture NAME` or `descriptor NAME`; a list of keys; or a [`key`](#key) map."
        }
        TextKind::Location => "A URL, or a path.",
        TextKind::Method => "A method of HTTP, as in `POST`.",
        TextKind::Mode => {
            "One of `enforce`, `shadow`, `off`, or `enforce` with a share of the keys, as in `enforce 10%`."
        }
        TextKind::Name => "Any text of at most 256 characters that does not start or end with a space.",
        TextKind::Network => {
            "An address, or an address and the length of a prefix: `10.0.0.0/8`, `2001:db8::/32`."
        }
        TextKind::Path => "A path that starts with `/`.",
        TextKind::PathPattern => {
            "A path, in which `*` matches text within a segment, `{name}` one segment, and `**` at the end any number of segments."
        }
        TextKind::Percentage => "A number from `0%` to `100%`.",
        TextKind::Quota => "As in `100/min burst 20`, `3 at once` or `1000 total`.",
        TextKind::Schedule => {
            "Times with factors, as in `mon-fri 09:00-18:00 x2; 22:00-06:00 x0.5`. The first that matches applies. A UTC offset may come first, as in `+08:00; 22:00-06:00 x0.5`."
        }
        TextKind::SettleSource => {
            "One of `header NAME`, `trailer NAME`, `body POINTER` with a JSON pointer, `openai` or `anthropic`."
        }
        TextKind::Size => {
            "Bytes with a unit: `kB`, `MB`, `GB` (powers of 1000), `KiB`, `MiB` or `GiB` (powers of 1024)."
        }
        TextKind::StatusClass => "A digit and `xx`, as in `5xx`.",
        TextKind::Store => {
            "One of `memory`, `redis://`, `rediss://` (over TLS), `redis+unix://`, `redis+sentinel://` or `redis+cluster://`. `$NAME` stands for an environment variable."
        }
        TextKind::TimeWindows => "Days and times, as in `mon-fri 18:00-22:00`.",
        TextKind::Url => "A host after `http://` or `https://`, and a port if it is not 80 or 443.",
        TextKind::Variable => "The name of an environment variable after `$`, as in `$WEB_TOKEN`.",
    }
}

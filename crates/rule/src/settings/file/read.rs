//! Reads a file, and finds all that is wrong with it.

use super::{
    Spot,
    place::{Place, Secrecy},
};
use crate::settings::{
    FileProblem, RuleSettings, Settings, StoreAddress,
    text::{self, Mistake, Variables},
};
use std::{collections::BTreeMap, ops::Range};
use tidegate_core::{Quota, spelling::meant};
use toml::{
    Spanned,
    de::{DeString, DeTable, DeValue},
};

/// What a file says, and where it says what may turn out to be wrong later.
pub(super) fn read(
    bytes: &[u8],
    variables: &Variables<'_>,
) -> Result<(Settings, BTreeMap<Spot, Place>), Vec<FileProblem>> {
    let text = match std::str::from_utf8(bytes) {
        // The byte order mark of some editors says nothing.
        Ok(text) => text.strip_prefix('\u{feff}').unwrap_or(text),
        Err(error) => {
            let text = String::from_utf8_lossy(bytes);
            let place = Place::of(&text, error.valid_up_to()..error.valid_up_to() + 1, Secrecy::Plain);
            let problem =
                FileProblem { place, problem: "not UTF-8".to_owned(), fix: "save it as UTF-8".to_owned() };
            return Err(vec![problem]);
        }
    };
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut reader = Reader { text, variables, problems: Vec::new(), spots: BTreeMap::new() };
    for error in &errors {
        let span = error.span().unwrap_or(0..0);
        reader.blame(span, Mistake::new(error.message(), SYNTAX));
    }
    let broken: Vec<_> = reader.problems.iter().map(FileProblem::line).collect();
    let settings = reader.settings(table.get_ref());
    let Reader { mut problems, spots, .. } = reader;
    // What could be guessed of a broken line is not worth a second complaint.
    let mut index = 0;
    problems.retain(|problem| {
        index += 1;
        index <= errors.len() || !broken.contains(&problem.line())
    });
    problems.sort_by_key(|problem| (problem.line(), problem.column()));
    match problems.is_empty() {
        true => Ok((settings, spots)),
        false => Err(problems),
    }
}

const SYNTAX: &str = "write TOML, with text in quotes: quota = \"5/min\"";

const KEYS: [&str; 8] = ["mode", "store", "prefix", "deadline", "on-outage", "reload", "stores", "rules"];
const KEYS_OF_RULE: [&str; 7] = ["quota", "quotas", "mode", "store", "on-outage", "wait", "message"];

struct Reader<'a> {
    text: &'a str,
    variables: &'a Variables<'a>,
    problems: Vec<FileProblem>,
    spots: BTreeMap<Spot, Place>,
}

type Value<'a> = Spanned<DeValue<'a>>;

impl Reader<'_> {
    fn settings(&mut self, table: &DeTable<'_>) -> Settings {
        let mut settings = Settings::new();
        for (key, value) in table {
            match key.get_ref().as_ref() {
                "mode" => settings.mode = self.parse(value, text::mode),
                "store" => settings.store = self.address(None, value),
                "prefix" => settings.prefix = self.string(value).map(str::to_owned),
                "deadline" => settings.deadline = self.parse(value, text::time),
                "on-outage" => settings.outage = self.parse(value, text::outage),
                "reload" => settings.reload = self.parse(value, text::pace),
                "stores" => self.each(value, |reader, name, value| {
                    if let Err(mistake) = text::refuse_address(name) {
                        let place = reader.place(value.span(), Secrecy::Address);
                        let fix = "write the name in front, and the address behind it".to_owned();
                        reader.problems.push(FileProblem { place, problem: mistake.problem, fix });
                    } else if let Some(address) = reader.address(Some(name), value) {
                        settings.stores.insert(name.to_owned(), address);
                    }
                }),
                "rules" => self.each(value, |reader, name, value| {
                    let place = reader.place(value.span(), Secrecy::Plain);
                    reader.spots.insert(Spot::Rule(name.to_owned()), place);
                    settings.rules.insert(name.to_owned(), reader.rule(name, value));
                }),
                _ => self.unknown(key, &KEYS),
            }
        }
        settings
    }

    fn rule(&mut self, name: &str, value: &Value<'_>) -> RuleSettings {
        let mut rule = RuleSettings::new();
        let Some(table) = value.get_ref().as_table() else {
            rule.quotas = self.quotas(value);
            return rule;
        };
        for (key, value) in table {
            match key.get_ref().as_ref() {
                "quota" | "quotas" => {
                    let place = self.place(value.span(), Secrecy::Plain);
                    self.spots.insert(Spot::Rule(name.to_owned()), place);
                    if !rule.quotas.is_empty() {
                        let mistake = Mistake::new("both `quota` and `quotas`", "put them all into `quotas`");
                        self.blame(key.span(), mistake);
                    }
                    rule.quotas = self.quotas(value);
                }
                "mode" => rule.mode = self.parse(value, text::mode),
                "store" => {
                    let place = self.place(value.span(), Secrecy::Plain);
                    self.spots.insert(Spot::StoreOfRule(name.to_owned()), place);
                    rule.store = self.parse(value, |name| Ok(name.to_owned()));
                }
                "on-outage" => rule.outage = self.parse(value, text::outage),
                "wait" => rule.wait = self.parse(value, text::time),
                "message" => rule.message = self.string(value).map(Into::into),
                _ => self.unknown(key, &KEYS_OF_RULE),
            }
        }
        rule
    }

    /// One quota, or a list of them.
    fn quotas(&mut self, value: &Value<'_>) -> Vec<Quota> {
        match value.get_ref() {
            DeValue::Array(values) if values.is_empty() => {
                self.blame(value.span(), Mistake::new("no quota", "give at least one, or leave the key out"));
                Vec::new()
            }
            DeValue::Array(values) => {
                values.iter().filter_map(|value| self.parse(value, text::quota)).collect()
            }
            _ => self.parse(value, text::quota).into_iter().collect(),
        }
    }

    /// Where a store is.
    fn address(&mut self, name: Option<&str>, value: &Value<'_>) -> Option<StoreAddress> {
        let place = self.place(value.span(), Secrecy::Address);
        let expanded = match value.get_ref().as_str() {
            Some(text) => text::expanded(text, self.variables),
            None => Err(not_text(value)),
        };
        self.spots.insert(Spot::Store(name.map(str::to_owned)), place.clone());
        match expanded {
            Ok(address) => Some(address.as_str().into()),
            Err(Mistake { problem, fix, .. }) => {
                self.problems.push(FileProblem { place, problem, fix });
                None
            }
        }
    }

    fn parse<T>(&mut self, value: &Value<'_>, parse: impl FnOnce(&str) -> Result<T, Mistake>) -> Option<T> {
        let text = self.string(value)?;
        match text::refuse_address(text).and_then(parse) {
            Ok(parsed) => Some(parsed),
            Err(mistake) => {
                let whole = self.inside(value, text);
                let span = match (&mistake.span, &whole) {
                    (Some(span), Some(whole)) => whole.start + span.start..whole.start + span.end,
                    (None, Some(whole)) => whole.clone(),
                    (_, None) => value.span(),
                };
                self.blame(span, mistake);
                None
            }
        }
    }

    fn string<'v>(&mut self, value: &'v Value<'_>) -> Option<&'v str> {
        let text = value.get_ref().as_str();
        if text.is_none() {
            self.blame(value.span(), not_text(value));
        }
        text
    }

    /// The bytes between the quotes, if the text stands there as it is, without escapes.
    fn inside(&self, value: &Value<'_>, text: &str) -> Option<Range<usize>> {
        let span = value.span();
        let raw = self.text.get(span.clone())?;
        let quotes = raw.find(text)?;
        (raw.len() == text.len() + 2 * quotes).then(|| span.start + quotes..span.start + quotes + text.len())
    }

    fn each(&mut self, value: &Value<'_>, mut each: impl FnMut(&mut Self, &str, &Value<'_>)) {
        match value.get_ref().as_table() {
            Some(table) => table.iter().for_each(|(key, value)| each(self, key.get_ref(), value)),
            None => {
                let problem = format!("a table is needed here, not {}", article(value));
                self.blame(
                    value.span(),
                    Mistake::new(problem, "write [stores] or [rules.NAME] on a line of its own"),
                );
            }
        }
    }

    fn unknown(&mut self, key: &Spanned<DeString<'_>>, known: &[&str]) {
        let name = key.get_ref();
        let (secrecy, fix) = match meant(name, known.iter().copied()) {
            Some(known @ ("store" | "stores")) => (Secrecy::Unknown, format!("did you mean `{known}`?")),
            Some(known) => (Secrecy::Plain, format!("did you mean `{known}`?")),
            None => (Secrecy::Unknown, format!("there are: {}", known.join(", "))),
        };
        let short: String = match text::looks_like_address(name) {
            true => "…".to_owned(),
            false => name.chars().take(64).collect(),
        };
        let place = self.place(key.span(), secrecy);
        self.problems.push(FileProblem { place, problem: format!("unknown key `{short}`"), fix });
    }

    fn place(&self, span: Range<usize>, secrecy: Secrecy) -> Place {
        Place::of(self.text, span, secrecy)
    }

    fn blame(&mut self, span: Range<usize>, mistake: Mistake) {
        let Mistake { problem, fix, .. } = mistake;
        self.problems.push(FileProblem { place: self.place(span, Secrecy::Plain), problem, fix });
    }
}

fn not_text(value: &Value<'_>) -> Mistake {
    Mistake::new(format!("a text is needed here, not {}", article(value)), "put it in quotes")
}

fn article(value: &Value<'_>) -> String {
    match value.get_ref().type_str() {
        kind if kind.starts_with(['a', 'e', 'i', 'o', 'u']) => format!("an {kind}"),
        kind => format!("a {kind}"),
    }
}

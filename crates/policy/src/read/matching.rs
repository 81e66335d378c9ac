//! Which requests.

use super::{Mistake, Reader, path::path, references::Target};
use crate::{
    matching::check_condition,
    model::{Expression, Glob, Match, Network, Values},
    source::{Node, Value, short},
    table::{Shape, Table, Written, field, key},
};
use std::{collections::BTreeMap, fmt};
use tidegate_core::SettingError;

pub(crate) static MATCH: Table<Match> = Table {
    what: "match",
    required: &[],
    keys: &[
        field!("method": Shape::Several(&Shape::Text(&["GET", "POST"])), [methods] = method,
            "One of these methods."),
        field!("path": Shape::Several(&Shape::Text(&["/login", "/users/{id}/**"])), [paths] = read(path),
            "One of these paths: `*` is within a segment, `{name}` is one, `**` is any number of them at the end."),
        field!("host": Shape::Several(&Shape::Text(&["api.example.com", "*.example.com"])),
            [hosts] = read(host) => |host| Written::text(&host.0),
            "One of these hosts, with `*` for any text, without a port."),
        key(
            "header",
            "All of these headers have one of these values, with `*` for any text.",
            Shape::Names(&Shape::Several(&Shape::Scalar)),
            |reader, node, it| {
                it.headers = BTreeMap::new();
                reader.names(node, "header", |reader, name, node| match header_name(&name.text) {
                    Ok(header) if it.headers.contains_key(&header) => {
                        reader.blame(
                            name.at,
                            format!("the header `{header}` is here twice"),
                            "leave one out",
                        );
                    }
                    Ok(header) => {
                        it.headers.insert(header, reader.values(node));
                    }
                    Err(mistake) => reader.blame(name.at, mistake.problem, mistake.fix),
                });
            },
            |it| Written::named(&it.headers, write_values),
        ),
        key(
            "query",
            "All of these parameters of the query have one of these values.",
            Shape::Names(&Shape::Several(&Shape::Scalar)),
            |reader, node, it| it.queries = reader.values_by_name(node, "query"),
            |it| Written::named(&it.queries, write_values),
        ),
        key(
            "cookie",
            "All of these cookies have one of these values.",
            Shape::Names(&Shape::Several(&Shape::Scalar)),
            |reader, node, it| it.cookies = reader.values_by_name(node, "cookie"),
            |it| Written::named(&it.cookies, write_values),
        ),
        key(
            "client",
            "The address of the client is in one of these networks, or lists.",
            Shape::Several(&Shape::Text(&["10.0.0.0/8", "office"])),
            |reader, node, it| it.clients = reader.networks(node),
            |it| Written::texts(&it.clients),
        ),
        key(
            "listener",
            "It came in through a listener of one of these names.",
            Shape::Several(&Shape::Text(&["internal"])),
            |reader, node, it| {
                it.listeners = reader.several(node, |reader, node| {
                    let name = reader.name(node)?;
                    reader.refer(Target::Listener, &name, node.at);
                    Some(name)
                });
            },
            |it| Written::texts(&it.listeners),
        ),
        key(
            "not",
            "None for which this holds.",
            Shape::Keys(|| MATCH.outline()),
            |reader, node, it| {
                let mut not = Match::default();
                reader.fill(node, &MATCH, &mut not);
                match &node.value {
                    Value::Map(entries) if entries.is_empty() => {
                        reader.blame(
                            node.at,
                            "`not` of everything leaves nothing",
                            "say which, or leave it out",
                        );
                    }
                    _ => it.not = Some(Box::new(not)),
                }
            },
            |it| it.not.as_ref().map(|not| MATCH.write(not)),
        ),
        key(
            "any",
            "One of these holds as well.",
            Shape::Several(&Shape::Keys(|| MATCH.outline())),
            |reader, node, it| {
                it.any = reader.several(node, |reader, node| {
                    let matching = reader.matching(node);
                    if let Value::Map(entries) = &node.value
                        && entries.is_empty()
                    {
                        let problem = "one of `any` is everything, so that the others say nothing";
                        reader.blame(node.at, problem, "say which, or leave `any` out");
                    }
                    Some(matching)
                });
            },
            |it| Written::several(&it.any, |each| MATCH.write(each)),
        ),
        key(
            "when",
            "An expression in CEL that is true.",
            Shape::Text(&["request.size > 1000"]),
            |reader, node, it| it.when = reader.expression(node, check_condition),
            |it| it.when.as_ref().map(|when| Written::text(&when.0)),
        ),
    ],
};

impl Reader<'_> {
    pub(super) fn matching(&mut self, node: &Node) -> Match {
        let mut matching = Match::default();
        self.fill(node, &MATCH, &mut matching);
        matching
    }

    pub(super) fn expression(
        &mut self,
        node: &Node,
        check: fn(&Expression) -> Result<(), SettingError>,
    ) -> Option<Expression> {
        let text = self.filled(node)?;
        let expression = Expression(text.as_str().into());
        match check(&expression) {
            Ok(()) => Some(expression),
            Err(error) => {
                self.blame_inside(node.at, &text, error.into());
                None
            }
        }
    }

    /// Networks and names of lists; `all` is every address.
    pub(super) fn networks(&mut self, node: &Node) -> Vec<Network> {
        self.several(node, |reader, node| {
            let text = reader.text(node)?;
            if text == "all" {
                return Some(Network::List(text.to_owned()));
            }
            let looks_like_address = text.contains(['.', ':', '/'])
                && text.chars().all(|c| c.is_ascii_hexdigit() || matches!(c, '.' | ':' | '/'));
            if looks_like_address || text.parse::<tidegate_access::Prefix>().is_ok() {
                return Some(Network::Prefix(reader.parse(node)?));
            }
            let name = reader.name(node)?;
            reader.refer(Target::List, &name, node.at);
            Some(Network::List(name))
        })
    }

    fn method(&mut self, node: &Node) -> Option<String> {
        self.read(node, |text| match is_token(text) {
            true => Ok(text.to_ascii_uppercase()),
            false => {
                Err(Mistake::new(format!("`{}` is not a method", short(text)), "write one, as in `GET`"))
            }
        })
    }

    fn values(&mut self, node: &Node) -> Values {
        Values(self.several(node, Reader::scalar).into_iter().map(Glob).collect())
    }

    fn values_by_name(&mut self, node: &Node, what: &str) -> BTreeMap<String, Values> {
        let mut all = BTreeMap::new();
        self.names(node, what, |reader, name, node| {
            all.insert(name.text.clone(), reader.values(node));
        });
        all
    }
}

fn write_values(values: &Values) -> Written {
    Written::several(&values.0, |glob| Written::text(&glob.0)).unwrap_or(Written::List(Vec::new()))
}

/// The name of a header, in lower case.
pub(super) fn header_name(text: &str) -> Result<String, Mistake> {
    match is_token(text) {
        true => Ok(text.to_ascii_lowercase()),
        false => Err(Mistake::new(
            format!("`{}` is not a name of a header", short(text)),
            "write one, as in `x-plan`",
        )),
    }
}

/// What names of headers and methods are made of.
pub(super) fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

/// Whether a host can be written down and read again.
pub fn is_host(text: &str) -> bool {
    host(text).is_ok_and(|read| read.0 == text)
}

fn host(text: &str) -> Result<Glob, Mistake> {
    let fix = "write a name, as in `api.example.com` or `*.example.com`, without a scheme and a port";
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | '*');
    let is_v6 = text.starts_with('[') && text.ends_with(']');
    match text.find(|c: char| !(is_name(c) || is_v6 && matches!(c, '[' | ']' | ':'))) {
        None if !text.is_empty() => Ok(Glob(text.to_lowercase())),
        at => {
            let mistake = Mistake::new(format!("`{}` is not a host", short(text)), fix);
            Err(at.map_or(mistake.clone(), |at| mistake.at(at..text.len())))
        }
    }
}

/// A prefix, or the name of a list.
impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix(prefix) => prefix.fmt(f),
            Self::List(name) => f.write_str(name),
        }
    }
}

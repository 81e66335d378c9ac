//! Reads `match` of rules and routes.

use super::{
    PolicyReader, ValueError,
    key::{claim_text, parse_claim},
    path::parse_path,
    references::ReferenceTarget,
};
use crate::{
    map_schema::{MapSchema, OutputValue, TextKind, ValueSchema, field, key, with_example, without},
    matching::check_condition,
    model::{ApiKeyMatch, ClientCertificateMatch, Expression, Glob, Match, Network, ValueGlobs},
    source::{SyntaxNode, SyntaxValue, truncate},
};
use std::{collections::BTreeMap, fmt};
use tidegate_core::SettingError;
use tidegate_rule::body::JsonPointer;

pub(crate) static MATCH: MapSchema<Match> = MapSchema {
    name: "match",
    required: &[],
    keys: &[
        without(
            field!("method": ValueSchema::OneOrMany(&ValueSchema::Text(TextKind::Method, &["GET", "POST"])), [methods] = method,
            "One of these methods."),
            "Requests with any method match.",
        ),
        without(
            field!("path": ValueSchema::OneOrMany(&ValueSchema::Text(TextKind::PathPattern, &["/login", "/users/{id}/**"])), [paths] = read(parse_path),
            "One of these paths: `*` matches text within a segment, `{name}` one segment, and `**` any number of segments at the end."),
            "Requests with any path match.",
        ),
        without(
            field!("host": ValueSchema::OneOrMany(&ValueSchema::Text(TextKind::Host, &["api.example.com", "*.example.com"])),
            [hosts] = read(parse_host) => |host| OutputValue::text(&host.0),
            "One of these hosts, with `*` for any text, without a port."),
            "Requests with any host match.",
        ),
        without(
            key(
                "header",
                "All of these headers have one of these values, with `*` for any text.",
                ValueSchema::NamedMap("x-plan", &ValueSchema::OneOrMany(&ValueSchema::Scalar("free"))),
                |reader, node, it| {
                    it.headers = BTreeMap::new();
                    reader.named_entries(node, "header", |reader, name, node| {
                        match header_name(&name.text) {
                            Ok(header) if it.headers.contains_key(&header) => {
                                reader.report_error(
                                    name.span,
                                    format!("duplicate header `{header}`"),
                                    "remove one of them",
                                );
                            }
                            Ok(header) => {
                                it.headers.insert(header, reader.values(node));
                            }
                            Err(mistake) => reader.report_error(name.span, mistake.problem, mistake.fix),
                        }
                    });
                },
                |it| OutputValue::named_map(&it.headers, write_values),
            ),
            "Headers do not matter.",
        ),
        without(
            key(
                "query",
                "All of these query parameters have one of these values.",
                ValueSchema::NamedMap("page", &ValueSchema::OneOrMany(&ValueSchema::Scalar("first"))),
                |reader, node, it| it.queries = reader.values_by_name(node, "query"),
                |it| OutputValue::named_map(&it.queries, write_values),
            ),
            "Query parameters do not matter.",
        ),
        without(
            key(
                "cookie",
                "All of these cookies have one of these values.",
                ValueSchema::NamedMap("beta", &ValueSchema::OneOrMany(&ValueSchema::Scalar("yes"))),
                |reader, node, it| it.cookies = reader.values_by_name(node, "cookie"),
                |it| OutputValue::named_map(&it.cookies, write_values),
            ),
            "Cookies do not matter.",
        ),
        without(
            key(
                "descriptor",
                "All of these entries of a descriptor of Envoy have one of these values. HTTP requests have no descriptor.",
                ValueSchema::NamedMap("path", &ValueSchema::OneOrMany(&ValueSchema::Scalar("search"))),
                |reader, node, it| it.descriptor = reader.values_by_name(node, "descriptor"),
                |it| OutputValue::named_map(&it.descriptor, write_values),
            ),
            "Descriptors do not matter.",
        ),
        without(
            key(
                "jwt",
                "All of these claims of the verified token have one of these values, with `*` for any text. Of a claim with a list, one item is enough.",
                ValueSchema::NamedMap("plan", &ValueSchema::OneOrMany(&ValueSchema::Scalar("gold"))),
                |reader, node, it| it.claims = reader.claims(node),
                |it| {
                    let claims = it.claims.iter().map(|(claim, values)| (claim_text(claim), values));
                    OutputValue::named_map(claims, write_values)
                },
            ),
            "Tokens do not matter.",
        ),
        without(
            with_example(
                key(
                    "api-key",
                    "The name and the tier of the API key.",
                    ValueSchema::Map(|| API_KEY.outline()),
                    |reader, node, it| {
                        reader.add_reference(ReferenceTarget::Identity, "api-keys", node.span);
                        let fix = "write one, as in `tier: gold`, or `name: \"*\"` for every valid key";
                        it.api_key = reader.conditions(node, &API_KEY, fix);
                    },
                    |it| API_KEY.write_non_empty(&it.api_key),
                ),
                || OutputValue::Map(vec![("tier".to_owned(), OutputValue::text("gold"))]),
            ),
            "API keys do not matter.",
        ),
        without(
            with_example(
                key(
                    "client-cert",
                    "The names in the client certificate, which a listener with `client-ca` has verified.",
                    ValueSchema::Map(|| CLIENT_CERT.outline()),
                    |reader, node, it| {
                        let fix = "write one, as in `san: \"*.example.org\"`, or `subject: \"*\"` for every certificate";
                        it.client_certificate = reader.conditions(node, &CLIENT_CERT, fix);
                    },
                    |it| CLIENT_CERT.write_non_empty(&it.client_certificate),
                ),
                || OutputValue::Map(vec![("san".to_owned(), OutputValue::text("*.example.org"))]),
            ),
            "Client certificates do not matter.",
        ),
        without(
            key(
                "client",
                "The address of the client is in one of these networks, or lists.",
                ValueSchema::OneOrMany(&ValueSchema::Text(TextKind::Client, &["10.0.0.0/8", "internal"])),
                |reader, node, it| it.clients = reader.networks(node),
                |it| OutputValue::text_list(&it.clients),
            ),
            "Requests from any address match.",
        ),
        without(
            key(
                "listener",
                "The request arrived at a listener with one of these names.",
                ValueSchema::OneOrMany(&ValueSchema::Text(TextKind::Name, &["internal"])),
                |reader, node, it| {
                    it.listeners = reader.one_or_many(node, |reader, node| {
                        let name = reader.name(node)?;
                        reader.add_reference(ReferenceTarget::Listener, &name, node.span);
                        Some(name)
                    });
                },
                |it| OutputValue::text_list(&it.listeners),
            ),
            "Requests to any listener match.",
        ),
        without(
            key(
                "not",
                "Excludes requests that match this.",
                ValueSchema::Map(|| MATCH.outline()),
                |reader, node, it| {
                    let mut not = Match::default();
                    reader.read_map(node, &MATCH, &mut not);
                    match &node.value {
                        SyntaxValue::Map(entries) if entries.is_empty() => {
                            reader.report_error(
                                node.span,
                                "empty `not` excludes all requests",
                                "add a condition, or remove it",
                            );
                        }
                        _ => it.not = Some(Box::new(not)),
                    }
                },
                |it| it.not.as_ref().map(|not| MATCH.write(not)),
            ),
            "Nothing is excluded.",
        ),
        without(
            key(
                "any",
                "At least one of these matches as well.",
                ValueSchema::OneOrMany(&ValueSchema::Map(|| MATCH.outline())),
                |reader, node, it| {
                    it.any = reader.one_or_many(node, |reader, node| {
                        let matching = reader.matching(node);
                        if let SyntaxValue::Map(entries) = &node.value
                            && entries.is_empty()
                        {
                            let problem = "empty item in `any` matches all requests";
                            reader.report_error(node.span, problem, "add a condition, or remove `any`");
                        }
                        Some(matching)
                    });
                },
                |it| OutputValue::one_or_many(&it.any, |each| MATCH.write(each)),
            ),
            "No alternatives are needed.",
        ),
        without(
            key(
                "when",
                "A CEL expression that is true.",
                ValueSchema::Text(TextKind::Expression, &["request.size > 1000"]),
                |reader, node, it| it.when = reader.expression(node, check_condition),
                |it| it.when.as_ref().map(|when| OutputValue::text(&when.0)),
            ),
            "There is no further condition.",
        ),
    ],
};

static API_KEY: MapSchema<ApiKeyMatch> = MapSchema {
    name: "api-key",
    required: &[],
    keys: &[
        without(
            field!("name": ValueSchema::OneOrMany(&ValueSchema::Scalar("acme")), [names] = glob => |glob| OutputValue::text(&glob.0),
            "The key has one of these names, with `*` for any text."),
            "Keys with any name match.",
        ),
        without(
            field!("tier": ValueSchema::OneOrMany(&ValueSchema::Scalar("gold")), [tiers] = glob => |glob| OutputValue::text(&glob.0),
            "The key has one of these tiers, with `*` for any text."),
            "Keys with any tier, and without one, match.",
        ),
    ],
};

static CLIENT_CERT: MapSchema<ClientCertificateMatch> = MapSchema {
    name: "client-cert",
    required: &[],
    keys: &[
        without(
            field!("subject": ValueSchema::OneOrMany(&ValueSchema::Scalar("CN=*,O=Example")), [subjects] = glob => |glob| OutputValue::text(&glob.0),
            "The subject, as in RFC 4514, is one of these, with `*` for any text."),
            "Certificates with any subject match.",
        ),
        without(
            field!("san": ValueSchema::OneOrMany(&ValueSchema::Scalar("*.example.org")), [sans] = glob => |glob| OutputValue::text(&glob.0),
            "A subject alternative name, which is a URI or a DNS name, is one of these, with `*` for any text."),
            "Certificates with any name match.",
        ),
    ],
};

impl PolicyReader<'_> {
    pub(super) fn matching(&mut self, node: &SyntaxNode) -> Match {
        let mut matching = Match::default();
        self.read_map(node, &MATCH, &mut matching);
        matching
    }

    pub(super) fn expression(
        &mut self,
        node: &SyntaxNode,
        check: fn(&Expression) -> Result<(), SettingError>,
    ) -> Option<Expression> {
        let text = self.non_empty_text(node)?;
        let expression = Expression(text.as_str().into());
        match check(&expression) {
            Ok(()) => Some(expression),
            Err(error) => {
                self.report_value_error(node.span, &text, error.into());
                None
            }
        }
    }

    /// Reads networks and names of lists; `all` matches every address.
    pub(super) fn networks(&mut self, node: &SyntaxNode) -> Vec<Network> {
        self.one_or_many(node, |reader, node| {
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
            reader.add_reference(ReferenceTarget::List, &name, node.span);
            Some(Network::List(name))
        })
    }

    fn method(&mut self, node: &SyntaxNode) -> Option<String> {
        self.read(node, |text| match is_token(text) {
            true => Ok(text.to_ascii_uppercase()),
            false => {
                Err(ValueError::new(format!("invalid method `{}`", truncate(text)), "write one, as in `GET`"))
            }
        })
    }

    fn glob(&mut self, node: &SyntaxNode) -> Option<Glob> {
        self.scalar(node).map(Glob)
    }

    fn values(&mut self, node: &SyntaxNode) -> ValueGlobs {
        ValueGlobs(self.one_or_many(node, Self::glob))
    }

    fn claims(&mut self, node: &SyntaxNode) -> BTreeMap<JsonPointer, ValueGlobs> {
        self.add_reference(ReferenceTarget::Identity, "jwt", node.span);
        let entries = self.entries(node, "jwt").unwrap_or_default();
        if let SyntaxValue::Map(entries) = &node.value
            && entries.is_empty()
        {
            let fix = "write one, as in `plan: gold`, or `sub: \"*\"` for every token with this claim";
            self.report_error(node.span, "`jwt` without a condition", fix);
        }
        let mut claims = BTreeMap::new();
        for (name, node) in entries {
            match parse_claim(&name.text) {
                Ok(claim) if claims.contains_key(&claim) => {
                    let problem = format!("duplicate claim `{}`", truncate(&name.text));
                    self.report_error(name.span, problem, "remove one of them");
                }
                Ok(claim) => {
                    let values = self.values(node);
                    claims.insert(claim, values);
                }
                Err(mistake) => self.report_error(name.span, mistake.problem, mistake.fix),
            }
        }
        claims
    }

    /// Reads a map of conditions, which must not be empty.
    fn conditions<T: Default>(&mut self, node: &SyntaxNode, schema: &'static MapSchema<T>, fix: &str) -> T {
        let mut conditions = T::default();
        match &node.value {
            SyntaxValue::Map(entries) if entries.is_empty() => {
                self.report_error(node.span, format!("`{}` without a condition", schema.name), fix);
            }
            _ => self.read_map(node, schema, &mut conditions),
        }
        conditions
    }

    fn values_by_name(&mut self, node: &SyntaxNode, what: &str) -> BTreeMap<String, ValueGlobs> {
        let mut all = BTreeMap::new();
        self.named_entries(node, what, |reader, name, node| {
            all.insert(name.text.clone(), reader.values(node));
        });
        all
    }
}

fn write_values(values: &ValueGlobs) -> OutputValue {
    OutputValue::one_or_many(&values.0, |glob| OutputValue::text(&glob.0))
        .unwrap_or(OutputValue::List(Vec::new()))
}

/// Parses the name of a header, and converts it to lower case.
pub(super) fn header_name(text: &str) -> Result<String, ValueError> {
    match is_token(text) {
        true => Ok(text.to_ascii_lowercase()),
        false => Err(ValueError::new(
            format!("invalid header name `{}`", truncate(text)),
            "write one, as in `x-plan`",
        )),
    }
}

/// Whether a string is a token of HTTP, as header names and methods are.
pub(super) fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

/// Whether a host can be printed in a policy and parsed again.
pub fn is_host(text: &str) -> bool {
    parse_host(text).is_ok_and(|read| read.0 == text)
}

fn parse_host(text: &str) -> Result<Glob, ValueError> {
    let fix = "write a host name without scheme and port, as in `api.example.com` or `*.example.com`";
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | '*');
    let is_v6 = text.starts_with('[') && text.ends_with(']');
    match text.find(|c: char| !(is_name(c) || is_v6 && matches!(c, '[' | ']' | ':'))) {
        None if !text.is_empty() => Ok(Glob(text.to_lowercase())),
        at => {
            let mistake = ValueError::new(format!("invalid host `{}`", truncate(text)), fix);
            Err(at.map_or(mistake.clone(), |at| mistake.with_span(at..text.len())))
        }
    }
}

/// Writes the prefix, or the name of the list.
impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix(prefix) => prefix.fmt(f),
            Self::List(name) => f.write_str(name),
        }
    }
}

//! Reads `admin`, `decisions` and `envoy`.

use super::{PolicyReader, server::TLS};
use crate::{
    map_schema::{KeySchema, MapSchema, OutputValue, TextKind, ValueSchema, field, without},
    model::{AdminSpec, DecisionListener, EnvVariable, OperatorRole, OperatorToken, Tls, Token},
    source::{SyntaxNode, SyntaxValue},
};
use std::net::SocketAddr;

const TOKEN_SHAPE: ValueSchema = ValueSchema::Text(TextKind::Variable, &["$WEB_TOKEN"]);

static ADMIN: MapSchema<AdminSpec> = MapSchema {
    name: "admin",
    required: &[],
    keys: &[
        without(
            field!("listen": ValueSchema::Text(TextKind::Address, &["127.0.0.1:9091"]), listen = socket => OutputValue::text,
            "An address and a port."),
            "There is no admin API.",
        ),
        without(
            field!("token": TOKEN_SHAPE, token = variable => OutputValue::text,
            "The environment variable with the token that operators must send."),
            "Reading and reloads are open to everyone who can connect. Other changes are accepted on a loopback address only.",
        ),
        without(
            field!("tokens": ValueSchema::OneOrMany(&ValueSchema::Map(|| OPERATOR_TOKEN.outline())),
            [tokens] = operator_token => |token| OPERATOR_TOKEN.write(token),
            "Further tokens of operators, each with a name and a role."),
            "Only `token` is accepted.",
        ),
        without(
            field!("hosts": ValueSchema::OneOrMany(&ValueSchema::Text(TextKind::Host, &["gateway.internal"])), [hosts] = admin_host,
            "The host names that requests to the admin API may use, besides `localhost` and IP addresses."),
            "Only `localhost` and IP addresses are accepted.",
        ),
    ],
};

const ROLES: [(&str, OperatorRole); 3] = {
    let [read, operate, admin] = OperatorRole::ALL;
    [(read.name(), read), (operate.name(), operate), (admin.name(), admin)]
};

static OPERATOR_TOKEN: MapSchema<OperatorToken> = MapSchema {
    name: "operator-token",
    required: &["name", "token"],
    keys: &[
        field!("name": ValueSchema::Text(TextKind::Name, &["ann"]), name = name => OutputValue::text, always,
            "Who has the token, in the history of changes."),
        field!("token": ValueSchema::Text(TextKind::Variable, &["$ANN_TOKEN"]), token = variable => OutputValue::text, always,
            "The environment variable that contains the token."),
        field!("role": role in ROLES,
            "What the operator may do: only read; also change modes, features, bans and overrides, reset keys and reload the policy; or also change numbers of rules."),
    ],
};

/// The value of `admin`.
pub(super) const ADMIN_SHAPE: ValueSchema = ValueSchema::AnyOf(&[
    ValueSchema::Text(TextKind::Address, &["127.0.0.1:9091"]),
    ValueSchema::Map(|| ADMIN.outline()),
]);

#[derive(Default)]
struct ListenerMap {
    listen: Option<SocketAddr>,
    tls: Option<Tls>,
    tokens: Vec<Token>,
}

const LISTENER_KEYS: &[KeySchema<ListenerMap>] = &[
    field!("listen": ValueSchema::Text(TextKind::Address, &["127.0.0.1:8090"]), listen = socket => OutputValue::text,
        "An address and a port."),
    without(
        field!("tls": ValueSchema::Map(|| TLS.outline()), tls = tls => |tls| TLS.write(tls),
        "The TLS certificate and key."),
        "Connections are plain text.",
    ),
    without(
        field!("tokens": ValueSchema::OneOrMany(&ValueSchema::Map(|| TOKEN.outline())),
        [tokens] = token => |token| TOKEN.write(token),
        "The tokens that callers must send one of."),
        "Callers need no token.",
    ),
];

static DECISIONS: MapSchema<ListenerMap> =
    MapSchema { name: "decisions", required: &["listen"], keys: LISTENER_KEYS };

static ENVOY: MapSchema<ListenerMap> =
    MapSchema { name: "envoy", required: &["listen"], keys: LISTENER_KEYS };

/// The value of `decisions`.
pub(super) const DECISIONS_SHAPE: ValueSchema = ValueSchema::AnyOf(&[
    ValueSchema::Text(TextKind::Address, &["127.0.0.1:8090"]),
    ValueSchema::Map(|| DECISIONS.outline()),
]);

/// The value of `envoy`.
pub(super) const ENVOY_SHAPE: ValueSchema = ValueSchema::AnyOf(&[
    ValueSchema::Text(TextKind::Address, &["127.0.0.1:8081"]),
    ValueSchema::Map(|| ENVOY.outline()),
]);

static TOKEN: MapSchema<Token> = MapSchema {
    name: "token",
    required: &["name", "token"],
    keys: &[
        field!("name": ValueSchema::Text(TextKind::Name, &["web"]), name = name => OutputValue::text, always, "The name of the caller."),
        field!("token": TOKEN_SHAPE, token = variable => OutputValue::text, always,
            "The environment variable that contains the token."),
    ],
};

impl PolicyReader<'_> {
    pub(super) fn admin(&mut self, node: &SyntaxNode) -> AdminSpec {
        let mut admin = AdminSpec::default();
        match &node.value {
            SyntaxValue::Map(_) => self.read_map(node, &ADMIN, &mut admin),
            _ => admin.listen = self.socket(node),
        }
        admin
    }

    pub(super) fn decisions(&mut self, node: &SyntaxNode) -> Option<DecisionListener> {
        self.decision_listener(node, &DECISIONS)
    }

    pub(super) fn envoy(&mut self, node: &SyntaxNode) -> Option<DecisionListener> {
        self.decision_listener(node, &ENVOY)
    }

    fn decision_listener(
        &mut self,
        node: &SyntaxNode,
        schema: &'static MapSchema<ListenerMap>,
    ) -> Option<DecisionListener> {
        let mut map = ListenerMap::default();
        match &node.value {
            SyntaxValue::Map(_) => self.read_map(node, schema, &mut map),
            _ => map.listen = self.socket(node),
        }
        Some(DecisionListener { listen: map.listen?, tls: map.tls, tokens: map.tokens })
    }

    fn token(&mut self, node: &SyntaxNode) -> Option<Token> {
        let mut token = Token::default();
        self.read_map(node, &TOKEN, &mut token);
        Some(token)
    }

    fn operator_token(&mut self, node: &SyntaxNode) -> Option<OperatorToken> {
        let mut token = OperatorToken::default();
        self.read_map(node, &OPERATOR_TOKEN, &mut token);
        if OperatorToken::RESERVED_NAMES.contains(&token.name.as_str()) {
            let problem =
                format!("the operator name `{}` is reserved for changes without a name", token.name);
            let name = find_entry(node, "name").map_or(node.span, |name| name.span);
            self.report_error(name, problem, "use another name, as in `ann`");
        }
        Some(token)
    }

    /// Reads a host name in lower case, without a port.
    fn admin_host(&mut self, node: &SyntaxNode) -> Option<String> {
        let text = self.text(node)?.to_ascii_lowercase();
        let is_sign = |sign: char| sign.is_ascii_alphanumeric() || matches!(sign, '-' | '.' | '_');
        match !text.is_empty() && text.chars().all(is_sign) {
            true => Some(text),
            false => {
                self.report_error(
                    node.span,
                    "invalid host name",
                    "write it without a port, as in `gateway.internal`",
                );
                None
            }
        }
    }

    /// Reads the name of an environment variable. Errors do not show the value, because it may be the secret itself.
    fn variable(&mut self, node: &SyntaxNode) -> Option<EnvVariable> {
        let text = self.text(node)?;
        let name = text.strip_prefix('$').unwrap_or_default();
        let name = name.strip_prefix('{').and_then(|name| name.strip_suffix('}')).unwrap_or(name);
        let is_sign = |sign: char| sign.is_ascii_alphanumeric() || sign == '_';
        match name.is_empty() || !name.chars().all(is_sign) {
            false => Some(EnvVariable(name.to_owned())),
            true => {
                let fix = "name the environment variable that contains it, as in `$WEB_TOKEN`";
                self.report_secret_error(node.span, "token in the policy file", fix);
                None
            }
        }
    }
}

fn find_entry<'a>(node: &'a SyntaxNode, key: &str) -> Option<&'a SyntaxNode> {
    let SyntaxValue::Map(entries) = &node.value else { return None };
    entries.iter().find(|(name, _)| name.text == key).map(|(_, node)| node)
}

pub(super) fn write_admin(admin: &AdminSpec) -> Option<OutputValue> {
    match admin {
        _ if *admin == AdminSpec::default() => None,
        AdminSpec { listen: Some(listen), token: None, tokens, hosts }
            if tokens.is_empty() && hosts.is_empty() =>
        {
            Some(OutputValue::text(listen))
        }
        _ => Some(ADMIN.write(admin)),
    }
}

/// Writes `decisions` or `envoy`, whose keys are the same.
pub(super) fn write_decision_listener(listener: &DecisionListener) -> OutputValue {
    let DecisionListener { listen, tls, tokens } = listener;
    match (tls, &tokens[..]) {
        (None, []) => OutputValue::text(listen),
        _ => {
            DECISIONS.write(&ListenerMap { listen: Some(*listen), tls: tls.clone(), tokens: tokens.clone() })
        }
    }
}

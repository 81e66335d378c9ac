//! Where programs and operators come in.

use super::{Reader, server::TLS};
use crate::{
    model::{Admin, Decisions, Tls, Token, Variable},
    source::{Node, Value},
    table::{Shape, Table, Written, field},
};
use std::net::SocketAddr;

const SECRET: Shape = Shape::Text(&["$WEB_TOKEN"]);

static ADMIN: Table<Admin> = Table {
    what: "admin",
    required: &[],
    keys: &[
        field!("listen": Shape::Text(&["127.0.0.1:9091"]), listen = socket => Written::text,
            "An address and a port."),
        field!("token": SECRET, token = variable => Written::text,
            "What operators must know: the variable of the environment that holds it."),
        field!("hosts": Shape::Several(&Shape::Text(&["gateway.internal"])), [hosts] = host_of_operators,
            "Names by which operators may come in, besides `localhost` and addresses."),
    ],
};

/// `admin` in a table.
pub(super) const ADMIN_SHAPE: Shape =
    Shape::Either(&[Shape::Text(&["127.0.0.1:9091"]), Shape::Keys(|| ADMIN.outline())]);

#[derive(Default)]
struct DecisionsMap {
    listen: Option<SocketAddr>,
    tls: Option<Tls>,
    tokens: Vec<Token>,
}

static DECISIONS: Table<DecisionsMap> = Table {
    what: "decisions",
    required: &["listen"],
    keys: &[
        field!("listen": Shape::Text(&["127.0.0.1:8090"]), listen = socket => Written::text,
            "An address and a port."),
        field!("tls": Shape::Keys(|| TLS.outline()), tls = tls => |tls| TLS.write(tls),
            "In TLS; in plain text where it is left out."),
        field!("tokens": Shape::Several(&Shape::Keys(|| TOKEN.outline())),
            [tokens] = token => |token| TOKEN.write(token),
            "What programs must know, one of these; nothing where it is left out."),
    ],
};

/// `decisions` in a table.
pub(super) const DECISIONS_SHAPE: Shape =
    Shape::Either(&[Shape::Text(&["127.0.0.1:8090"]), Shape::Keys(|| DECISIONS.outline())]);

static TOKEN: Table<Token> = Table {
    what: "token",
    required: &["name", "token"],
    keys: &[
        field!("name": Shape::Text(&["web"]), name = name => Written::text, always, "Whose it is."),
        field!("token": SECRET, token = variable => Written::text, always,
            "The variable of the environment that holds it."),
    ],
};

impl Reader<'_> {
    pub(super) fn admin(&mut self, node: &Node) -> Admin {
        let mut admin = Admin::default();
        match &node.value {
            Value::Map(_) => self.fill(node, &ADMIN, &mut admin),
            _ => admin.listen = self.socket(node),
        }
        admin
    }

    pub(super) fn decisions(&mut self, node: &Node) -> Option<Decisions> {
        let mut map = DecisionsMap::default();
        match &node.value {
            Value::Map(_) => self.fill(node, &DECISIONS, &mut map),
            _ => map.listen = self.socket(node),
        }
        Some(Decisions { listen: map.listen?, tls: map.tls, tokens: map.tokens })
    }

    fn token(&mut self, node: &Node) -> Option<Token> {
        let mut token = Token::default();
        self.fill(node, &TOKEN, &mut token);
        Some(token)
    }

    /// A name as browsers say it: in lower case, without a port.
    fn host_of_operators(&mut self, node: &Node) -> Option<String> {
        let text = self.text(node)?.to_ascii_lowercase();
        let is_sign = |sign: char| sign.is_ascii_alphanumeric() || matches!(sign, '-' | '.' | '_');
        match !text.is_empty() && text.chars().all(is_sign) {
            true => Some(text),
            false => {
                self.blame(
                    node.at,
                    "this is no name of a host",
                    "write it as in `gateway.internal`, without a port",
                );
                None
            }
        }
    }

    /// The name of a variable. What is none may be the secret itself, and is not told.
    fn variable(&mut self, node: &Node) -> Option<Variable> {
        let text = self.text(node)?;
        let name = text.strip_prefix('$').unwrap_or_default();
        let name = name.strip_prefix('{').and_then(|name| name.strip_suffix('}')).unwrap_or(name);
        let is_sign = |sign: char| sign.is_ascii_alphanumeric() || sign == '_';
        match name.is_empty() || !name.chars().all(is_sign) {
            false => Some(Variable(name.to_owned())),
            true => {
                let fix = "name the variable of the environment that holds it, as in `$WEB_TOKEN`";
                self.blame_hidden(node.at, "a token is not written into a policy", fix);
                None
            }
        }
    }
}

pub(super) fn write_admin(admin: &Admin) -> Option<Written> {
    match (admin.listen, &admin.token, &admin.hosts[..]) {
        (None, None, []) => None,
        (Some(listen), None, []) => Some(Written::text(listen)),
        _ => Some(ADMIN.write(admin)),
    }
}

pub(super) fn write_decisions(decisions: &Decisions) -> Written {
    let Decisions { listen, tls, tokens } = decisions;
    match (tls, &tokens[..]) {
        (None, []) => Written::text(listen),
        _ => {
            DECISIONS.write(&DecisionsMap { listen: Some(*listen), tls: tls.clone(), tokens: tokens.clone() })
        }
    }
}

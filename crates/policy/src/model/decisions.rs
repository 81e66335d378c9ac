//! The admin API, the decision API and the rate limit service for Envoy.

use super::Tls;
use std::{fmt, net::SocketAddr};

/// `admin`: `127.0.0.1:9091`, or `{ listen: 127.0.0.1:9091, token: $ADMIN_TOKEN }`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdminSpec {
    /// `listen`: the address; the admin API is disabled if `None`.
    pub listen: Option<SocketAddr>,
    /// `token`: the token that operators must send, also for operator endpoints on other listeners.
    pub token: Option<EnvVariable>,
    /// `tokens`: further tokens of operators, each with a name and a role.
    pub tokens: Vec<OperatorToken>,
    /// `hosts`: host names that requests may use, besides `localhost` and IP addresses.
    pub hosts: Vec<String>,
}

/// An item of `tokens` of `admin`: `{ name: ann, token: $ANN_TOKEN, role: operate }`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperatorToken {
    /// `name`: who has it, in the history of changes.
    pub name: String,
    /// `token`: the environment variable that contains it.
    pub token: EnvVariable,
    /// `role`.
    pub role: OperatorRole,
}

/// What an operator may do. Each role includes the ones before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum OperatorRole {
    /// `read`: everything that changes nothing.
    #[default]
    Read,
    /// `operate`: modes of rules, features, bans, overrides and resets.
    Operate,
    /// `admin`: numbers of rules.
    Admin,
}

impl OperatorToken {
    /// The authors of other changes in the history: callers with the token `token`, and the command line.
    pub const RESERVED_NAMES: [&str; 2] = ["api", "command line"];
}

impl OperatorRole {
    /// All roles, in order.
    pub const ALL: [Self; 3] = [Self::Read, Self::Operate, Self::Admin];

    /// The name in policies.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }
}

/// `decisions` or `envoy`: `127.0.0.1:8090`, or `{ listen: 127.0.0.1:8090, tls: …, tokens: [{ name: web, token: $WEB_TOKEN }] }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionListener {
    /// `listen`: the address.
    pub listen: SocketAddr,
    /// `tls`; plain text if `None`.
    pub tls: Option<Tls>,
    /// `tokens`: callers must send one of these; no token is required if empty.
    pub tokens: Vec<Token>,
}

/// An item of `tokens`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Token {
    /// `name`: the name of the caller.
    pub name: String,
    /// `token`: the environment variable that contains it.
    pub token: EnvVariable,
}

/// `$NAME`: an environment variable that contains a secret. A policy never contains the secret itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvVariable(pub String);

impl fmt::Display for EnvVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "${}", self.0)
    }
}

//! Where programs and operators come in, and what they must know.

use super::Tls;
use std::{fmt, net::SocketAddr};

/// `admin`: `127.0.0.1:9091`, or `{ listen: 127.0.0.1:9091, token: $ADMIN_TOKEN }`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdminSpec {
    /// `listen`: where operators come in; nowhere where it is left out.
    pub listen: Option<SocketAddr>,
    /// `token`: what operators must know, here and wherever else an operator may do something.
    pub token: Option<EnvVariable>,
    /// `hosts`: names by which operators may come in, besides `localhost` and addresses.
    pub hosts: Vec<String>,
}

/// `decisions`: `127.0.0.1:8090`, or `{ listen: 127.0.0.1:8090, tls: …, tokens: [{ name: web, token: $WEB_TOKEN }] }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decisions {
    /// `listen`: where programs ask.
    pub listen: SocketAddr,
    /// `tls`; in plain text where it is left out.
    pub tls: Option<Tls>,
    /// `tokens`: what programs must know, one of these; nothing where it is left out.
    pub tokens: Vec<Token>,
}

/// One of `tokens`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Token {
    /// `name`: whose it is.
    pub name: String,
    /// `token`: the variable that holds it.
    pub token: EnvVariable,
}

/// `$NAME`: a variable of the environment that holds a secret. A policy never holds the secret itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvVariable(pub String);

impl fmt::Display for EnvVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "${}", self.0)
    }
}

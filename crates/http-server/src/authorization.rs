//! Bearer tokens: which callers an API accepts, which are operators, and what they may do.

use crate::{ApiError, StartupError};
use arc_swap::ArcSwap;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use std::{env, fmt, net::IpAddr, sync::Arc};
use subtle::ConstantTimeEq as _;
use tidegate_policy::model::{AdminSpec, DecisionListener, EnvVariable, OperatorRole};

/// The tokens that an API accepts. Without any, everyone may call it.
#[derive(Debug, Default)]
pub struct Authorization {
    /// By name. Several tokens may be valid at once, for rotation.
    tokens: Vec<(Arc<str>, Secret)>,
    /// The callers that are operators.
    pub operators: Operators,
}

/// The tokens that an API accepts now. A reload replaces them, for open connections too.
pub type SharedAuthorization = Arc<ArcSwap<Authorization>>;

/// The callers that are operators.
#[derive(Debug, Default)]
pub enum Operators {
    /// Every caller.
    #[default]
    Everyone,
    /// Callers with one of these tokens.
    Tokens(Vec<(Operator, Secret)>),
    /// No caller.
    Disabled,
}

/// An operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operator {
    /// The name of the token.
    pub name: Arc<str>,
    /// What the operator may do.
    pub role: OperatorRole,
}

/// The result of the check whether an operator sent a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorAccess {
    /// This operator sent it.
    Granted(Operator),
    /// The token is wrong.
    InvalidToken,
    /// The request has no token.
    MissingToken,
    /// No operator token is configured.
    Disabled,
}

/// A token. `Debug` does not print it.
pub struct Secret(String);

/// The sender of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiCaller {
    /// No token is required.
    Anonymous,
    /// A program, by the name of its token.
    Program(Arc<str>),
    /// An operator.
    Operator,
}

/// The header for a token where `Authorization` may belong to the request that is checked.
pub const TOKEN_HEADER: &str = "x-tidegate-token";
/// The error for a request that only an operator may send.
pub const OPERATOR_TOKEN_REQUIRED: &str = "operator token required; send `Authorization: Bearer TOKEN`";

impl Authorization {
    /// Accepts these tokens.
    pub fn new(programs: impl IntoIterator<Item = (Arc<str>, Secret)>, operators: Operators) -> Self {
        Self { tokens: programs.into_iter().collect(), operators }
    }

    /// The tokens of a listener for decisions, and that of operators, read from the environment.
    pub fn for_listener(
        listener: Option<&DecisionListener>,
        admin: &AdminSpec,
    ) -> Result<Self, StartupError> {
        let programs = listener.iter().flat_map(|listener| &listener.tokens);
        let programs =
            programs.map(|token| Ok((token.name.as_str().into(), Secret::from_env(&token.token)?)));
        let address = listener.map(|listener| listener.listen.ip());
        Ok(Self {
            tokens: programs.collect::<Result<_, StartupError>>()?,
            operators: Operators::from_env(admin, address)?,
        })
    }

    /// Returns the caller that these headers identify; 401 if a token is required and not sent.
    pub fn authenticate(&self, headers: &HeaderMap) -> Result<ApiCaller, ApiError> {
        let token = request_token(headers);
        // All tokens are compared, so that the time does not reveal which one is similar.
        let operator = self.operators.find(token);
        let is_operator = operator.is_some_and(|operator| operator.role >= OperatorRole::Operate);
        let program = self.tokens.iter().fold(None, |found, (name, secret)| match secret.matches(token) {
            true => Some(name),
            false => found,
        });
        match program {
            _ if is_operator => Ok(ApiCaller::Operator),
            Some(name) => Ok(ApiCaller::Program(name.clone())),
            None if !self.requires_token() => Ok(ApiCaller::Anonymous),
            None => Err(unauthorized("token required; send `Authorization: Bearer TOKEN`")),
        }
    }

    /// Whether callers need a token.
    pub fn requires_token(&self) -> bool {
        !self.tokens.is_empty()
    }
}

impl Operators {
    /// Without a token, every caller is an operator if the API listens on a loopback address, and no caller otherwise.
    pub fn new(tokens: impl IntoIterator<Item = (Operator, Secret)>, address: Option<IpAddr>) -> Self {
        let tokens: Vec<_> = tokens.into_iter().collect();
        match tokens.is_empty() {
            false => Self::Tokens(tokens),
            true if address.is_none_or(|address| address.is_loopback()) => Self::Everyone,
            true => Self::Disabled,
        }
    }

    /// The operators of a policy, with their tokens read from the environment.
    pub fn from_env(admin: &AdminSpec, address: Option<IpAddr>) -> Result<Self, StartupError> {
        let shared = admin.token.iter().map(|token| (Operator::shared(), token));
        let named = admin.tokens.iter().map(|token| {
            let name = token.name.as_str().into();
            (Operator { name, role: token.role }, &token.token)
        });
        let tokens = shared.chain(named).map(|(operator, token)| Ok((operator, Secret::from_env(token)?)));
        Ok(Self::new(tokens.collect::<Result<Vec<_>, StartupError>>()?, address))
    }

    /// The operator with a token. All tokens are compared, so that the time does not reveal which one is similar.
    fn find(&self, token: Option<&[u8]>) -> Option<&Operator> {
        let Self::Tokens(tokens) = self else { return None };
        let matching = |found: Option<&Operator>, operator: &Operator| {
            found.is_none_or(|found| found.role < operator.role)
        };
        tokens.iter().fold(None, |found, (operator, secret)| match secret.matches(token) {
            true if matching(found, operator) => Some(operator),
            _ => found,
        })
    }

    /// Checks whether an operator sent a request with these headers.
    pub fn check(&self, headers: &HeaderMap) -> OperatorAccess {
        // Either header: a proxy may add the token of a program.
        let (header, bearer) = (headers.get(TOKEN_HEADER).map(HeaderValue::as_bytes), bearer_token(headers));
        match (self, header.or(bearer)) {
            (Self::Everyone, _) => OperatorAccess::Granted(Operator::shared()),
            (Self::Disabled, _) => OperatorAccess::Disabled,
            (Self::Tokens(_), sent) => match [self.find(header), self.find(bearer)]
                .into_iter()
                .flatten()
                .max_by_key(|operator| operator.role)
            {
                Some(operator) => OperatorAccess::Granted(operator.clone()),
                None if sent.is_some() => OperatorAccess::InvalidToken,
                None => OperatorAccess::MissingToken,
            },
        }
    }

    /// Returns the operator who sent these headers; an error with one of these details unless the sender is an operator who may
    /// make changes.
    pub fn require(
        &self,
        headers: &HeaderMap,
        invalid: &'static str,
        disabled: &'static str,
    ) -> Result<Operator, ApiError> {
        match self.check(headers) {
            OperatorAccess::Granted(operator) => operator.require(OperatorRole::Operate),
            OperatorAccess::InvalidToken => Err(ApiError::new(StatusCode::FORBIDDEN, invalid)),
            OperatorAccess::MissingToken => Err(unauthorized(OPERATOR_TOKEN_REQUIRED)),
            OperatorAccess::Disabled => Err(ApiError::new(StatusCode::FORBIDDEN, disabled)),
        }
    }
}

impl Operator {
    /// The operator without a name: every caller with `token` of `admin`, or every caller if no token is required.
    pub fn shared() -> Self {
        Self { name: "api".into(), role: OperatorRole::Admin }
    }

    /// Returns an error unless the operator has this role.
    pub fn require(self, role: OperatorRole) -> Result<Self, ApiError> {
        if self.role >= role {
            return Ok(self);
        }
        let (name, own, role) = (&self.name, self.role.name(), role.name());
        let problem = format!("the token `{name}` has the role `{own}`; this needs the role `{role}`");
        Err(ApiError::new(StatusCode::FORBIDDEN, problem))
    }
}

impl ApiCaller {
    /// Whether this caller may settle a reservation of `owner`.
    pub fn can_settle(&self, owner: &Self) -> bool {
        *owner == Self::Anonymous || owner == self
    }
}

impl Secret {
    /// Creates a token.
    pub fn new(secret: String) -> Self {
        Self(secret)
    }

    /// Reads the token from an environment variable.
    pub fn from_env(variable: &EnvVariable) -> Result<Self, StartupError> {
        let value = env::var(&variable.0).ok().filter(|value| !value.trim().is_empty());
        value
            .map(|value| Self(value.trim().to_owned()))
            .ok_or_else(|| StartupError::Token { variable: variable.0.clone() })
    }

    /// Compares in constant time.
    fn matches(&self, token: Option<&[u8]>) -> bool {
        token.is_some_and(|token| token.ct_eq(self.0.as_bytes()).into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

fn request_token(headers: &HeaderMap) -> Option<&[u8]> {
    headers.get(TOKEN_HEADER).map(HeaderValue::as_bytes).or_else(|| bearer_token(headers))
}

/// The token of `Authorization: Bearer TOKEN`.
pub fn bearer_token(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked("bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// A 401 response that requests a bearer token.
pub fn unauthorized(detail: &'static str) -> ApiError {
    let scheme = HeaderValue::from_static("Bearer realm=\"tidegate\"");
    ApiError::new(StatusCode::UNAUTHORIZED, detail).with_header(header::WWW_AUTHENTICATE, scheme)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed step fails the test")]
mod tests {
    use super::*;

    #[test]
    fn only_declared_tokens_are_accepted() {
        let secret = |text: &str| Secret::new(text.to_owned());
        let programs = [("0".into(), secret("old")), ("1".into(), secret("new"))];
        let boss = || Operators::new([(Operator::shared(), secret("boss"))], None);
        let authorization = Authorization::new(programs, boss());
        let with = |name: &'static str, value: &str| {
            HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())])
        };
        for (name, value, expected) in [
            ("authorization", "Bearer old", ApiCaller::Program("0".into())),
            ("authorization", "bearer new", ApiCaller::Program("1".into())),
            ("x-tidegate-token", "new", ApiCaller::Program("1".into())),
            ("authorization", "Bearer boss", ApiCaller::Operator),
        ] {
            assert_eq!(authorization.authenticate(&with(name, value)), Ok(expected), "{name}: {value}");
        }
        for (name, value) in [("authorization", "Bearer ne"), ("authorization", "new"), ("x-user", "new")] {
            let error = authorization.authenticate(&with(name, value)).unwrap_err();
            assert_eq!(error.status, StatusCode::UNAUTHORIZED, "{name}: {value}");
        }
        assert_eq!(Authorization::default().authenticate(&HeaderMap::new()), Ok(ApiCaller::Anonymous));
        // The reservations of an operator are protected even if programs need no token.
        let authorization = Authorization::new([], boss());
        let boss = with("authorization", "Bearer boss");
        assert_eq!(authorization.authenticate(&boss), Ok(ApiCaller::Operator));
        assert_eq!(authorization.authenticate(&HeaderMap::new()), Ok(ApiCaller::Anonymous));
        assert!(!ApiCaller::Anonymous.can_settle(&ApiCaller::Operator));
        // A proxy may have added the token of a program.
        let mut both = boss.clone();
        both.insert(TOKEN_HEADER, "new".parse().unwrap());
        assert_eq!(authorization.operators.check(&both), OperatorAccess::Granted(Operator::shared()));
        assert_eq!(authorization.operators.check(&HeaderMap::new()), OperatorAccess::MissingToken);
    }

    #[test]
    fn operator_has_the_role_of_the_token() {
        let token =
            |name: &str, role| (Operator { name: name.into(), role }, Secret::new(format!("{name}-secret")));
        let tokens = [token("grafana", OperatorRole::Read), token("ann", OperatorRole::Operate)];
        let authorization = Authorization::new([], Operators::new(tokens, Some([192, 0, 2, 1].into())));
        let bearer = |secret: &str| {
            HeaderMap::from_iter([(header::AUTHORIZATION, format!("Bearer {secret}").parse().unwrap())])
        };
        let check = |secret: &str| authorization.operators.check(&bearer(secret));
        assert_eq!(check("root-secret"), OperatorAccess::InvalidToken);
        let OperatorAccess::Granted(ann) = check("ann-secret") else { panic!("rejected") };
        assert_eq!((&*ann.name, ann.role), ("ann", OperatorRole::Operate));
        assert!(ann.clone().require(OperatorRole::Read).is_ok());
        let error = ann.require(OperatorRole::Admin).unwrap_err();
        assert_eq!(error.detail, "the token `ann` has the role `operate`; this needs the role `admin`");
        let require = |secret: &str| authorization.operators.require(&bearer(secret), "invalid", "disabled");
        assert_eq!(require("ann-secret").map(|operator| operator.name), Ok("ann".into()));
        assert_eq!(require("grafana-secret").unwrap_err().status, StatusCode::FORBIDDEN);
        // Who may only read is no operator for the reservations of others.
        assert_eq!(authorization.authenticate(&bearer("grafana-secret")), Ok(ApiCaller::Anonymous));
        assert_eq!(authorization.authenticate(&bearer("ann-secret")), Ok(ApiCaller::Operator));
    }
}

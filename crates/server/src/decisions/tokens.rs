//! Who may ask.

use crate::{Fault, api_error::ApiError};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use std::{env, fmt, sync::Arc};
use subtle::ConstantTimeEq as _;
use tidegate_policy::{Policy, model::Variable};

/// What must be known to ask, and to do what operators do.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    programs: Vec<(Arc<str>, Secret)>,
    operators: Option<Secret>,
    reach: Reach,
}

/// Who can reach the listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Reach {
    #[default]
    Machine,
    Network,
}

/// A secret, which is never shown.
pub(crate) struct Secret(String);

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// Nobody needs a token.
    Anybody,
    /// A program, by the name of its token.
    Program(Arc<str>),
    Operator,
}

impl Caller {
    /// Who sends one of these tokens; `None` for nobody who is known.
    pub(crate) fn of(
        headers: &HeaderMap,
        programs: &[(Arc<str>, Secret)],
        operators: Option<&Secret>,
    ) -> Option<Self> {
        let given = headers.get(TOKEN).map(HeaderValue::as_bytes).or_else(|| bearer(headers));
        // All are compared, so that time does not tell which one is close.
        let is_operator = operators.is_some_and(|known| known.is(given));
        let program = programs.iter().fold(None, |found, (name, known)| match known.is(given) {
            true => Some(name),
            false => found,
        });
        match program {
            _ if is_operator => Some(Self::Operator),
            Some(name) => Some(Self::Program(name.clone())),
            None => None,
        }
    }

    /// Whether this one may settle what that one has made.
    pub(super) fn may_settle_of(&self, maker: &Self) -> bool {
        *maker == Self::Anybody || maker == self
    }
}

/// Where a token may stand apart from `Authorization`, which may belong to the request that is judged.
pub(super) const TOKEN: &str = "x-tidegate-token";

/// What is told to those who send none that is known.
pub(crate) const NEEDED: &str = "a token is needed; send `Authorization: Bearer TOKEN`";

impl Tokens {
    /// Those of a policy, as the environment has them now.
    pub(crate) fn of(policy: &Policy) -> Result<Self, Fault> {
        let decisions = policy.decisions.as_ref();
        let programs = decisions.iter().flat_map(|decisions| &decisions.tokens);
        let is_far = decisions.is_some_and(|decisions| !decisions.listen.ip().is_loopback());
        Ok(Self {
            programs: programs
                .map(|token| Ok((token.name.as_str().into(), Secret::read(&token.token)?)))
                .collect::<Result<_, Fault>>()?,
            operators: policy.admin.token.as_ref().map(Secret::read).transpose()?,
            reach: if is_far { Reach::Network } else { Reach::Machine },
        })
    }

    /// These, by name.
    #[cfg(test)]
    pub(super) fn given(programs: &[(&str, &str)]) -> Self {
        let programs = programs.iter().map(|(name, secret)| ((*name).into(), Secret((*secret).to_owned())));
        Self { programs: programs.collect(), ..Self::default() }
    }

    /// Who asks with these headers; 401 for nobody who may.
    pub(super) fn caller(&self, headers: &HeaderMap) -> Result<Caller, ApiError> {
        let known = Caller::of(headers, &self.programs, self.operators.as_ref());
        match known {
            Some(caller) => Ok(caller),
            None if self.programs.is_empty() => Ok(Caller::Anybody),
            None => Err(unauthorized(NEEDED)),
        }
    }

    /// Whether anybody who asks needs one.
    pub(super) fn are_needed(&self) -> bool {
        !self.programs.is_empty()
    }

    /// Whether this caller may do what operators do.
    pub(super) fn operator(&self, caller: &Caller, headers: &HeaderMap) -> Result<(), ApiError> {
        match (&self.operators, caller, self.reach) {
            (_, Caller::Operator, _) | (None, _, Reach::Machine) => Ok(()),
            (Some(_), _, _) if headers.contains_key(TOKEN) || bearer(headers).is_some() => {
                let problem = "this is for operators; send the token that the policy declares under `admin`";
                Err(ApiError::new(StatusCode::FORBIDDEN, problem))
            }
            (Some(_), _, _) => {
                Err(unauthorized("this is for operators; send their token as `Authorization: Bearer TOKEN`"))
            }
            (None, _, Reach::Network) => {
                let problem = "this is for operators, and the policy has no token for them; declare one, as in \
                               `admin: { token: $ADMIN_TOKEN }`";
                Err(ApiError::new(StatusCode::FORBIDDEN, problem))
            }
        }
    }
}

impl Secret {
    /// This.
    pub(crate) fn of(secret: String) -> Self {
        Self(secret)
    }

    /// What a variable holds now.
    pub(crate) fn read(variable: &Variable) -> Result<Self, Fault> {
        let held = env::var(&variable.0).ok().filter(|held| !held.trim().is_empty());
        held.map(|held| Self(held.trim().to_owned()))
            .ok_or_else(|| Fault::Token { variable: variable.0.clone() })
    }

    /// Whether this is it, in a time that does not tell how much of it is.
    pub(crate) fn is(&self, given: Option<&[u8]>) -> bool {
        given.is_some_and(|given| given.ct_eq(self.0.as_bytes()).into())
    }
}

/// What stands behind `Bearer`.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked("bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

pub(crate) fn unauthorized(detail: &'static str) -> ApiError {
    let scheme = HeaderValue::from_static("Bearer realm=\"tidegate\"");
    ApiError::new(StatusCode::UNAUTHORIZED, detail).with(header::WWW_AUTHENTICATE, scheme)
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

//! Who may ask, where that is not everybody.

use crate::decisions::{Caller, Secret};
use http::HeaderMap;
use std::sync::Arc;

/// What programs must know to ask: any of these, so that one can be replaced by another. Everybody may where there is none.
#[derive(Clone, Debug, Default)]
pub struct Callers {
    programs: Arc<[(Arc<str>, Secret)]>,
    operators: Option<Arc<Secret>>,
}

impl Callers {
    /// Those who know one of these.
    pub fn knowing(tokens: impl IntoIterator<Item = String>) -> Self {
        let programs = tokens.into_iter().enumerate();
        let programs = programs.map(|(place, token)| (place.to_string().into(), Secret::of(token)));
        Self { programs: programs.collect(), operators: None }
    }

    /// Operators may ask, too.
    #[must_use]
    pub(super) fn and_operators(self, token: Option<&str>) -> Self {
        Self { operators: token.map(|token| Arc::new(Secret::of(token.to_owned()))), ..self }
    }

    /// Who asks with these headers; `None` for one who may not.
    #[inline]
    pub(super) fn admit(&self, headers: &HeaderMap) -> Option<Caller> {
        if self.programs.is_empty() {
            return Some(Caller::Anybody);
        }
        Caller::of(headers, &self.programs, self.operators.as_deref())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a story ends where it goes wrong")]
mod tests {
    use super::*;

    #[test]
    fn any_of_the_tokens_will_do_and_no_other() {
        let callers = Callers::knowing(["old".to_owned(), "new".to_owned()]).and_operators(Some("boss"));
        let with = |name: &'static str, value: &str| {
            HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())])
        };
        assert_eq!(callers.admit(&with("authorization", "Bearer old")), Some(Caller::Program("0".into())));
        assert_eq!(callers.admit(&with("authorization", "bearer new")), Some(Caller::Program("1".into())));
        assert_eq!(callers.admit(&with("x-tidegate-token", "new")), Some(Caller::Program("1".into())));
        assert_eq!(callers.admit(&with("authorization", "Bearer boss")), Some(Caller::Operator));
        for (name, value) in [("authorization", "Bearer ne"), ("authorization", "new"), ("x-user", "new")] {
            assert_eq!(callers.admit(&with(name, value)), None, "{name}: {value}");
        }
        assert_eq!(Callers::default().admit(&HeaderMap::new()), Some(Caller::Anybody));
    }
}

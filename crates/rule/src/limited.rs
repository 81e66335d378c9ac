//! The error of a call that a rule refused.

use std::{borrow::Cow, error, fmt, sync::Arc, time::Duration};
use tidegate_core::{Decision, Quota, header::PolicyField};
use tidegate_overload::CallError;

/// A rule refused a call: which, why, and when it is worth trying again.
///
/// An application's own error takes it in by `From<Limited>`; that is all that the attributes need.
#[derive(Clone, Debug)]
pub struct Limited(Box<LimitedInner>);

#[derive(Clone, Debug)]
struct LimitedInner {
    rule: Arc<str>,
    message: Option<Arc<str>>,
    quota: Option<Quota>,
    cause: CallError,
}

impl Limited {
    /// A refusal by the rule with this name.
    pub fn new(rule: impl Into<Arc<str>>, cause: CallError) -> Self {
        Self(Box::new(LimitedInner { rule: rule.into(), message: None, quota: None, cause }))
    }

    /// The same, with what to tell whoever was refused.
    #[must_use]
    pub fn with_message(mut self, message: Option<Arc<str>>) -> Self {
        self.0.message = message;
        self
    }

    /// The same, with the quota that was used up.
    #[must_use]
    pub fn with_quota(mut self, quota: Option<Quota>) -> Self {
        self.0.quota = quota;
        self
    }

    /// The rule that refused.
    pub fn rule(&self) -> &str {
        &self.0.rule
    }

    /// What was declared to be told to whoever was refused.
    pub fn message(&self) -> Option<&str> {
        self.0.message.as_deref()
    }

    /// What whoever was refused may be told in a line: the message that was declared, or else which quota is used up. How a
    /// server protects itself is not for clients to know.
    pub fn client_message(&self) -> Cow<'_, str> {
        match (self.message(), self.cause()) {
            (Some(message), _) => message.into(),
            (None, CallError::Limited(_)) => self.to_string().into(),
            (None, _) => "the server cannot take this call now".into(),
        }
    }

    /// The quota that was used up, if it was one.
    pub fn quota(&self) -> Option<Quota> {
        self.0.quota
    }

    /// Why: a limit was reached, or the store that counts is away, or the server protects itself, or code declares the rule in
    /// two ways.
    ///
    /// ```
    /// use tidegate_overload::CallError;
    /// use tidegate_rule::Limited;
    ///
    /// fn is_our_own_trouble(limited: &Limited) -> bool {
    ///     !matches!(limited.cause(), CallError::Limited(_))
    /// }
    /// ```
    pub fn cause(&self) -> &CallError {
        &self.0.cause
    }

    /// The numbers, if it was a quota that refused.
    pub fn decision(&self) -> Option<&Decision> {
        match &self.0.cause {
            CallError::Limited(decision) => Some(decision),
            _ => None,
        }
    }

    /// The quota that was used up, as headers speak of it.
    pub fn label(&self) -> Option<PolicyField> {
        let (quota, decision) = (self.0.quota?, self.decision()?);
        Some(PolicyField::for_indexed_quota(&self.0.rule, decision.quota(), &quota))
    }

    /// When it is worth trying again, if that is known.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.cause.retry_after()
    }
}

/// The message that was declared, or else the reason.
impl fmt::Display for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.message() {
            Some(message) => f.write_str(message),
            None => write!(f, "{}: {}", self.0.rule, self.0.cause),
        }
    }
}

impl error::Error for Limited {}

/// What a function can return when it was refused.
#[diagnostic::on_unimplemented(
    message = "a call that is refused cannot be told by `{Self}`",
    label = "cannot carry a refusal",
    note = "return a `Result` whose error is `From<tidegate::Limited>`: `Result<_, tidegate::Limited>`, or an error of your \
            own with `impl From<tidegate::Limited> for …`",
    note = "or say what to return instead: `on_limit = path_of_a_function_with_the_same_arguments`",
    note = "or, if it is one of many in a block, leave it out: `#[limit(skip)]`"
)]
pub trait FromLimited {
    /// The answer of a call that was not made.
    fn from_limited(limited: Limited) -> Self;
}

#[diagnostic::do_not_recommend]
impl<T, E: From<Limited>> FromLimited for Result<T, E> {
    fn from_limited(limited: Limited) -> Self {
        Err(limited.into())
    }
}

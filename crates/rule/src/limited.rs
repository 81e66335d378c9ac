//! The error of a call that a rule rejected.

use std::{borrow::Cow, error, fmt, sync::Arc, time::Duration};
use tidegate_core::{
    Decision, Quota,
    header::{CostUnit, PolicyField},
};
use tidegate_overload::CallError;

/// A rule rejected a call: which rule, why, and when a retry makes sense.
///
/// Attributes only need an error type that implements `From<Limited>`.
#[derive(Clone, Debug)]
pub struct Limited(Box<LimitedInner>);

#[derive(Clone, Debug)]
struct LimitedInner {
    rule: Arc<str>,
    message: Option<Arc<str>>,
    quota: Option<Quota>,
    unit: CostUnit,
    /// Used if the cause has none.
    retry_after: Option<Duration>,
    cause: CallError,
}

impl Limited {
    /// Creates a rejection by the rule with this name.
    pub fn new(rule: impl Into<Arc<str>>, cause: CallError) -> Self {
        Self(Box::new(LimitedInner {
            rule: rule.into(),
            message: None,
            quota: None,
            unit: CostUnit::default(),
            retry_after: None,
            cause,
        }))
    }

    /// Sets the message for clients.
    #[must_use]
    pub fn with_message(mut self, message: Option<Arc<str>>) -> Self {
        self.0.message = message;
        self
    }

    /// Sets the quota that was exceeded.
    #[must_use]
    pub fn with_quota(mut self, quota: Option<Quota>) -> Self {
        self.0.quota = quota;
        self
    }

    /// Sets what that quota counts; requests by default.
    #[must_use]
    pub fn with_unit(mut self, unit: CostUnit) -> Self {
        self.0.unit = unit;
        self
    }

    /// Sets the time after which a retry makes sense, for a cause that does not have it.
    #[must_use]
    pub fn with_retry_after(mut self, retry_after: Option<Duration>) -> Self {
        self.0.retry_after = retry_after;
        self
    }

    /// The rule that rejected the call.
    pub fn rule(&self) -> &str {
        &self.0.rule
    }

    /// The declared message for clients.
    pub fn message(&self) -> Option<&str> {
        self.0.message.as_deref()
    }

    /// One line for clients: the declared message, or which quota is exceeded. Details about the protection
    /// of the server are not disclosed to clients.
    pub fn client_message(&self) -> Cow<'_, str> {
        match (self.message(), self.cause()) {
            (Some(message), _) => message.into(),
            (None, CallError::Limited(_)) => self.to_string().into(),
            (None, CallError::TimeLimitExceeded(_)) => "the call took too long".into(),
            (None, _) => "the server cannot take this call now".into(),
        }
    }

    /// The quota that was exceeded, if any.
    pub fn quota(&self) -> Option<Quota> {
        self.0.quota
    }

    /// The cause: a limit is exceeded, the store is unavailable, the server is overloaded, or code declares
    /// the rule twice with different settings.
    ///
    /// ```
    /// use tidegate_overload::CallError;
    /// use tidegate_rule::Limited;
    ///
    /// fn is_server_problem(limited: &Limited) -> bool {
    ///     !matches!(limited.cause(), CallError::Limited(_))
    /// }
    /// ```
    pub fn cause(&self) -> &CallError {
        &self.0.cause
    }

    /// The decision of the quota, if a quota denied the call.
    pub fn decision(&self) -> Option<&Decision> {
        match &self.0.cause {
            CallError::Limited(decision) => Some(decision),
            _ => None,
        }
    }

    /// The exceeded quota as a rate limit header.
    pub fn label(&self) -> Option<PolicyField> {
        let (quota, decision) = (self.0.quota?, self.decision()?);
        let field = PolicyField::for_indexed_quota(&self.0.rule, decision.quota(), &quota);
        Some(field.with_unit(self.0.unit))
    }

    /// The time after which a retry makes sense, if known.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.cause.retry_after().or(self.0.retry_after)
    }
}

/// The declared message, or else the cause.
impl fmt::Display for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.message() {
            Some(message) => f.write_str(message),
            None => write!(f, "{}: {}", self.0.rule, self.0.cause),
        }
    }
}

impl error::Error for Limited {}

/// Converts a rejection into the return value of a function.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot represent a rejected call",
    label = "no conversion from `tidegate::Limited`",
    note = "return a `Result` whose error implements `From<tidegate::Limited>`: `Result<_, tidegate::Limited>`, or your own \
            error type with `impl From<tidegate::Limited> for …`",
    note = "or call another function instead: `on_limit = path_of_a_function_with_the_same_arguments`",
    note = "or exclude a method of a block: `#[limit(skip)]`"
)]
pub trait FromLimited {
    /// The return value of a call that was not made.
    fn from_limited(limited: Limited) -> Self;
}

#[diagnostic::do_not_recommend]
impl<T, E: From<Limited>> FromLimited for Result<T, E> {
    fn from_limited(limited: Limited) -> Self {
        Err(limited.into())
    }
}

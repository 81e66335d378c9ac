//! The log events of this crate, one struct each.

/// The settings moved a rule of an interceptor to a store, which an interceptor cannot use.
pub(crate) struct InterceptorRuleInStore<'a> {
    pub(crate) rule: &'a str,
    pub(crate) fix: &'static str,
}

impl InterceptorRuleInStore<'_> {
    pub(crate) fn emit(self) {
        tracing::error!(rule = self.rule, fix = self.fix, "interceptor cannot use a store, rejecting calls");
    }
}

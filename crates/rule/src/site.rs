//! What attributes expand to: one static for each place in the code.
//!
//! A site makes its rule when it is first passed, under the settings as they are then, and the rule follows them from there
//! on.

use crate::{Declaration, Facts, Hold, Limited, Rule, RuleKey, Rules, request::Address};
use std::{
    net::IpAddr,
    sync::{Arc, OnceLock},
};
use tidegate_engine::{Breaker, Cause, Guard, Pass};

/// A place that is limited.
pub struct LimitSite {
    declare: fn() -> Declaration,
    rule: OnceLock<Option<Rule>>,
}

impl LimitSite {
    /// A site whose rule is declared when it is first passed.
    pub const fn new(declare: fn() -> Declaration) -> Self {
        Self { declare, rule: OnceLock::new() }
    }

    /// Takes `cost` for `key`.
    #[inline]
    pub async fn admit<K: RuleKey + ?Sized>(&self, key: &K, cost: u64) -> Result<(), Limited> {
        match self.rule() {
            Some(rule) => rule.admit(key, cost).await,
            None => Ok(()),
        }
    }

    /// Takes `cost` for `key`, blocking where there is something to wait for.
    #[inline]
    pub fn admit_blocking<K: RuleKey + ?Sized>(&self, key: &K, cost: u64) -> Result<(), Limited> {
        match self.rule() {
            Some(rule) => rule.admit_blocking(key, cost),
            None => Ok(()),
        }
    }

    /// Takes a slot of `key`.
    pub async fn hold<K: RuleKey + ?Sized>(&self, key: &K) -> Result<Option<Hold>, Limited> {
        match self.rule() {
            Some(rule) => rule.hold(key).await.map(Some),
            None => Ok(None),
        }
    }

    /// Takes a slot of `key`, blocking where there is something to wait for.
    pub fn hold_blocking<K: RuleKey + ?Sized>(&self, key: &K) -> Result<Option<Hold>, Limited> {
        self.rule().map(|rule| rule.hold_blocking(key)).transpose()
    }

    /// `None` if there is no memory for it, which is logged once.
    #[inline]
    fn rule(&self) -> Option<&Rule> {
        self.rule.get_or_init(|| self.make()).as_ref()
    }

    #[cold]
    fn make(&self) -> Option<Rule> {
        let declaration = (self.declare)();
        let name = declaration.name.clone();
        match Rules::global().rule(declaration) {
            Ok(rule) => Some(rule),
            Err(error) => {
                tracing::error!(rule = &*name, %error, "the rule cannot be made, and limits nothing");
                None
            }
        }
    }
}

/// A place that is guarded by a breaker.
pub struct BreakerSite {
    name: &'static str,
    make: fn() -> Breaker,
    breaker: OnceLock<Breaker>,
}

impl BreakerSite {
    /// A site whose breaker is made when it is first passed.
    pub const fn new(name: &'static str, make: fn() -> Breaker) -> Self {
        Self { name, make, breaker: OnceLock::new() }
    }

    /// Leave to make one call.
    #[inline]
    pub fn try_pass(&'static self) -> Result<Pass<&'static Breaker>, Limited> {
        let breaker = self.breaker.get_or_init(self.make);
        breaker.try_pass().map_err(|rejection| Limited::new(self.name, Cause::Rejected(rejection)))
    }
}

/// The client by its address, for `key = ip`. All callers of whom none is known share one key.
pub fn ip() -> Address {
    let ip = Facts::current().and_then(|facts| facts.ip());
    Address::of(ip.unwrap_or(IpAddr::from([0, 0, 0, 0])))
}

/// The client by its name, for `key = user`. All callers of whom none is known share one key.
pub fn user() -> Arc<str> {
    Facts::current().and_then(|facts| facts.user().map(Arc::from)).unwrap_or_default()
}

//! The policy that is in force now.

use super::{Compiler, PolicyError, PolicyGate};
use crate::model::Policy;
use arc_swap::{ArcSwap, Guard};
use std::sync::{Arc, Mutex, PoisonError};

/// The policy that is in force now, to be replaced while requests come in.
///
/// Requests that were let in by the policy before are settled by it, and count in the same rules.
#[derive(Debug)]
pub struct LivePolicy {
    compiler: Compiler,
    now: ArcSwap<PolicyGate>,
    /// One replaces it after the other.
    turn: Mutex<()>,
}

impl LivePolicy {
    /// Puts a first policy in force.
    pub fn new(compiler: Compiler, policy: &Policy) -> Result<Self, PolicyError> {
        let gate = compiler.compile(policy, None)?;
        Ok(Self { compiler, now: ArcSwap::from_pointee(gate), turn: Mutex::default() })
    }

    /// What is in force now.
    #[inline]
    pub fn now(&self) -> Guard<Arc<PolicyGate>> {
        self.now.load()
    }

    /// Puts another policy in force; one that is wrong changes nothing.
    pub fn replace(&self, policy: &Policy) -> Result<(), PolicyError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let next = self.compiler.compile(policy, Some(&self.now.load()))?;
        self.now.store(Arc::new(next));
        Ok(())
    }
}

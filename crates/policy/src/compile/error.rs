//! Errors of applying a policy.

use crate::{document::Diagnostic, model::Policy};
use std::{error, fmt};
use tidegate_core::SettingError;
use tidegate_rule::SettingsError;

/// The problems of a policy. Prints one line per problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    problems: Vec<PolicyProblem>,
}

/// A problem of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyProblem {
    /// The rule, if the problem is in one.
    pub rule: Option<String>,
    /// The path of keys, relative to the rule, or to the policy without a rule.
    pub path: Vec<String>,
    /// The problem.
    pub problem: String,
    /// The fix.
    pub fix: String,
}

impl PolicyError {
    /// The problems.
    pub fn problems(&self) -> &[PolicyProblem] {
        &self.problems
    }

    /// Converts diagnostics.
    pub fn from_diagnostics(found: Vec<Diagnostic>) -> Self {
        let problem = |found: Diagnostic| PolicyProblem {
            rule: None,
            path: found.path,
            problem: found.problem,
            fix: found.fix,
        };
        Self { problems: found.into_iter().map(problem).collect() }
    }

    /// The problems with their paths in a policy.
    pub fn diagnostics(&self, policy: &Policy) -> Vec<Diagnostic> {
        self.problems.iter().map(|problem| problem.diagnostic(policy)).collect()
    }

    pub(super) fn from_settings_error(error: &SettingsError) -> Self {
        let (rule, at, problem, fix) = match error {
            SettingsError::InvalidRule { rule, key, error } => {
                (Some(rule), vec![*key], error.problem().to_owned(), error.fix())
            }
            SettingsError::Rule { rule, error } => (Some(rule), vec!["quotas"], error.to_string(), ""),
            SettingsError::Store { name: Some(name), .. } => {
                (None, vec!["stores", name], error.to_string(), "")
            }
            SettingsError::Store { name: None, .. } | SettingsError::NoConnector => {
                (None, vec!["store"], error.to_string(), "")
            }
            _ => (None, Vec::new(), error.to_string(), ""),
        };
        let at = at.into_iter().map(str::to_owned).collect();
        Self { problems: vec![PolicyProblem { rule: rule.cloned(), path: at, problem, fix: fix.to_owned() }] }
    }
}

impl PolicyProblem {
    /// The problem with its path in a policy.
    pub(crate) fn diagnostic(&self, policy: &Policy) -> Diagnostic {
        let Self { rule, path: at, problem, fix } = self;
        let index = rule.as_ref().and_then(|rule| policy.rules.iter().position(|known| known.name == *rule));
        let (at, problem) = match (rule, index) {
            (Some(rule), Some(index)) => {
                let at = ["rules".to_owned(), index.to_string()].into_iter().chain(at.iter().cloned());
                (at.collect(), format!("rule `{rule}`: {problem}"))
            }
            _ => (at.clone(), problem.clone()),
        };
        let is_store = matches!(at.first().map(String::as_str), Some("store" | "stores"));
        let found = Diagnostic::new(at, problem, fix);
        if is_store { found.hide_value() } else { found }
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for PolicyProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(rule) = &self.rule {
            write!(f, "rule `{rule}`: ")?;
        }
        match &*self.fix {
            "" => f.write_str(&self.problem),
            fix => write!(f, "{}; {fix}", self.problem),
        }
    }
}

impl error::Error for PolicyError {}

/// Collects problems.
#[derive(Debug, Default)]
pub(super) struct ProblemCollector(Vec<PolicyProblem>);

impl ProblemCollector {
    pub(super) fn add(&mut self, rule: Option<&str>, error: &SettingError) {
        let (problem, fix) = (error.problem().to_owned(), error.fix().to_owned());
        self.0.push(PolicyProblem { rule: rule.map(str::to_owned), path: Vec::new(), problem, fix });
    }

    /// Adds a problem at this path of keys.
    pub(super) fn add_at(&mut self, at: &[&str], error: &SettingError) {
        self.add(None, error);
        if let Some(last) = self.0.last_mut() {
            last.path = at.iter().map(|key| (*key).to_owned()).collect();
        }
    }

    /// Returns the value, or records the error.
    pub(super) fn ok_or_record<T>(
        &mut self,
        rule: Option<&str>,
        result: Result<T, SettingError>,
    ) -> Option<T> {
        result.map_err(|error| self.add(rule, &error)).ok()
    }

    pub(super) fn into_result(self) -> Result<(), PolicyError> {
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(PolicyError { problems: self.0 }),
        }
    }
}

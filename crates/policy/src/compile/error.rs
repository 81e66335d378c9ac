//! Why a policy was not put in force.

use std::{error, fmt};
use tidegate_core::SettingError;
use tidegate_rule::SettingsError;

/// All that is wrong with a policy. Prints a line for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    problems: Vec<PolicyProblem>,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyProblem {
    /// The rule, if it is one.
    pub rule: Option<String>,
    /// What is wrong.
    pub problem: String,
    /// What to write instead.
    pub fix: String,
}

impl PolicyError {
    /// Each of them.
    pub fn problems(&self) -> &[PolicyProblem] {
        &self.problems
    }

    pub(super) fn of_settings(error: &SettingsError) -> Self {
        let problem = PolicyProblem { rule: None, problem: error.to_string(), fix: String::new() };
        Self { problems: vec![problem] }
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, problem) in self.problems.iter().enumerate() {
            if place > 0 {
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

/// What was found so far.
#[derive(Debug, Default)]
pub(super) struct Problems(Vec<PolicyProblem>);

impl Problems {
    pub(super) fn add(&mut self, rule: Option<&str>, error: &SettingError) {
        let (problem, fix) = (error.problem().to_owned(), error.fix().to_owned());
        self.0.push(PolicyProblem { rule: rule.map(str::to_owned), problem, fix });
    }

    /// What could be made, or nothing and a note of why.
    pub(super) fn take<T>(&mut self, rule: Option<&str>, made: Result<T, SettingError>) -> Option<T> {
        made.map_err(|error| self.add(rule, &error)).ok()
    }

    pub(super) fn none(self) -> Result<(), PolicyError> {
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(PolicyError { problems: self.0 }),
        }
    }
}

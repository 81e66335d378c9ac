//! A policy together with the text that it was read from, so that what is found later is reported in its place.

use crate::{
    compile::PolicyError,
    lint::LintWarning,
    model::Policy,
    problem::{Problem, Problems},
    source::{DiskFiles, FileSource, SourceSpan, Sources, SpannedError, SyntaxNode, SyntaxValue},
};
use std::path::Path;

/// A policy together with the text that it was read from.
///
/// ```
/// use std::path::Path;
/// use tidegate_policy::{Diagnostic, Document};
///
/// let files = |_: &Path| Ok(b"admin: 127.0.0.1:8080\n".to_vec());
/// let document = Document::read("policy.yaml", &files)?;
/// let taken = Diagnostic::new(["admin"], "this address is taken", "choose another port");
/// assert!(document.to_problems([taken]).to_string().starts_with("policy.yaml:1:8: this address is taken; choose"));
/// # Ok::<(), tidegate_policy::Problems>(())
/// ```
#[derive(Debug)]
pub struct Document {
    policy: Policy,
    root: SyntaxNode,
    sources: Sources,
}

/// Something that is wrong with a policy, found after it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The keys that lead to the value, with numbers for places in lists: `rules`, `0`, `quota`. As far as the text has them.
    pub path: Vec<String>,
    /// What is wrong.
    pub problem: String,
    /// What to do about it.
    pub fix: String,
    /// Whether the value may hold a password, and is not shown.
    pub is_secret: bool,
}

impl Diagnostic {
    /// Something wrong with the value at this place.
    pub fn new<K: Into<String>>(
        at: impl IntoIterator<Item = K>,
        problem: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        let at = at.into_iter().map(Into::into).collect();
        Self { path: at, problem: problem.into(), fix: fix.into(), is_secret: false }
    }

    /// The same, without showing the value.
    #[must_use]
    pub fn hide_value(self) -> Self {
        Self { is_secret: true, ..self }
    }
}

impl Document {
    /// Reads a file, and the files that it includes.
    pub fn read(path: impl AsRef<Path>, files: &dyn FileSource) -> Result<Self, Problems> {
        let (policy, root, sources) = Policy::read_with_sources(path.as_ref(), files)?;
        Ok(Self { policy, root, sources })
    }

    /// The same, from the disk.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, Problems> {
        Self::read(path, &DiskFiles)
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The policy, without its text.
    pub fn into_policy(self) -> Policy {
        self.policy
    }

    /// These, each in its place.
    pub fn to_problems(&self, found: impl IntoIterator<Item = Diagnostic>) -> Problems {
        let fault = |found: Diagnostic| {
            let fault = SpannedError::new(self.find_span(&found.path), found.problem, found.fix);
            if found.is_secret { fault.hide_value() } else { fault }
        };
        Problems::from_errors(found.into_iter().map(fault).collect(), &self.sources)
    }

    /// Why the policy cannot be put in force, each in its place.
    pub fn policy_problems(&self, error: &PolicyError) -> Problems {
        self.to_problems(error.diagnostics(&self.policy))
    }

    /// Advice, in its place.
    pub fn warning_problem(&self, advice: &LintWarning) -> Option<Problem> {
        let problem = match &*advice.rule {
            "" => advice.reason.clone(),
            rule => format!("rule `{rule}`: {}", advice.reason),
        };
        let fix = format!("{} ({})", advice.fix, advice.lint);
        self.to_problems([Diagnostic::new(&advice.path, problem, fix)]).into_iter().next()
    }

    /// The value that these keys lead to, or the last one on the way there.
    fn find_span(&self, at: &[String]) -> SourceSpan {
        let mut node = &self.root;
        for key in at {
            let next = match &node.value {
                SyntaxValue::Map(entries) => {
                    entries.iter().find(|(name, _)| name.text == *key).map(|(_, node)| node)
                }
                SyntaxValue::List(items) => key.parse::<usize>().ok().and_then(|place| items.get(place)),
                // Where a list is wanted, one of it will do.
                _ => None,
            };
            match next {
                Some(next) => node = next,
                None if key.parse::<usize>().is_ok() => {}
                None => break,
            }
        }
        node.span
    }
}

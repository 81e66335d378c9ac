//! A policy with its source, so that problems found after parsing have a position.

use crate::{
    compile::PolicyError,
    lint::LintWarning,
    model::Policy,
    problem::{Problem, Problems},
    source::{DiskFiles, FileSource, SourceSpan, Sources, SpannedError, SyntaxNode, SyntaxValue},
};
use std::path::Path;

/// A policy with its source.
///
/// ```
/// use std::path::Path;
/// use tidegate_policy::{Diagnostic, Document};
///
/// let files = |_: &Path| Ok(b"admin: 127.0.0.1:8080\n".to_vec());
/// let document = Document::read("policy.yaml", &files)?;
/// let in_use = Diagnostic::new(["admin"], "address already in use", "use another port");
/// assert!(document.to_problems([in_use]).to_string().starts_with("policy.yaml:1:8: address already in use; use"));
/// # Ok::<(), tidegate_policy::Problems>(())
/// ```
#[derive(Debug)]
pub struct Document {
    policy: Policy,
    root: SyntaxNode,
    sources: Sources,
}

/// A problem of a policy that was found after parsing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The path of keys to the value, with indexes in lists: `rules`, `0`, `quota`. Keys that the source lacks are ignored.
    pub path: Vec<String>,
    /// The problem.
    pub problem: String,
    /// The fix.
    pub fix: String,
    /// Whether the value may contain a password, and is not shown.
    pub is_secret: bool,
}

impl Diagnostic {
    /// A problem of the value at this path.
    pub fn new<K: Into<String>>(
        at: impl IntoIterator<Item = K>,
        problem: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        let at = at.into_iter().map(Into::into).collect();
        Self { path: at, problem: problem.into(), fix: fix.into(), is_secret: false }
    }

    /// Hides the value.
    #[must_use]
    pub fn hide_value(self) -> Self {
        Self { is_secret: true, ..self }
    }
}

impl Document {
    /// Reads a file and the files that it includes.
    pub fn read(path: impl AsRef<Path>, files: &dyn FileSource) -> Result<Self, Problems> {
        let (policy, root, sources) = Policy::read_with_sources(path.as_ref(), files)?;
        Ok(Self { policy, root, sources })
    }

    /// Reads a file from disk, and the files that it includes.
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

    /// Converts diagnostics to problems with positions.
    pub fn to_problems(&self, found: impl IntoIterator<Item = Diagnostic>) -> Problems {
        let fault = |found: Diagnostic| {
            let fault = SpannedError::new(self.find_span(&found.path), found.problem, found.fix);
            if found.is_secret { fault.hide_value() } else { fault }
        };
        Problems::from_errors(found.into_iter().map(fault).collect(), &self.sources)
    }

    /// Converts the error of applying the policy to problems with positions.
    pub fn policy_problems(&self, error: &PolicyError) -> Problems {
        self.to_problems(error.diagnostics(&self.policy))
    }

    /// Converts a warning to a problem with its position.
    pub fn warning_problem(&self, warning: &LintWarning) -> Option<Problem> {
        let problem = match &*warning.rule {
            "" => warning.reason.clone(),
            rule => format!("rule `{rule}`: {}", warning.reason),
        };
        let fix = format!("{} ({})", warning.fix, warning.lint);
        self.to_problems([Diagnostic::new(&warning.path, problem, fix)]).into_iter().next()
    }

    /// Returns the span of the value at this path, or of its closest parent.
    fn find_span(&self, at: &[String]) -> SourceSpan {
        let mut node = &self.root;
        for key in at {
            let next = match &node.value {
                SyntaxValue::Map(entries) => {
                    entries.iter().find(|(name, _)| name.text == *key).map(|(_, node)| node)
                }
                SyntaxValue::List(items) => key.parse::<usize>().ok().and_then(|index| items.get(index)),
                // A single item may be written without a list.
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

//! Errors of descriptor files.

/// An error in a descriptor file: `basic.yaml: descriptor has empty key`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {problem}")]
pub struct DescriptorError {
    file: String,
    problem: String,
}

impl DescriptorError {
    /// The name of the file or of the xDS resource.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The problem. Errors that envoyproxy/ratelimit reports, too, have the same text.
    pub fn problem(&self) -> &str {
        &self.problem
    }

    pub(super) fn new(file: &str, problem: impl Into<String>) -> Self {
        Self { file: file.to_owned(), problem: problem.into() }
    }
}

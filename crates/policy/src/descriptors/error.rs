//! Why files of descriptors were refused.

/// Why files of descriptors were refused: `basic.yaml: descriptor has empty key`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {problem}")]
pub struct DescriptorError {
    file: String,
    problem: String,
}

impl DescriptorError {
    /// The name of the file, or of what else it was read from.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// What is wrong with it, in the words of envoyproxy/ratelimit where it knows the mistake.
    pub fn problem(&self) -> &str {
        &self.problem
    }

    pub(super) fn new(file: &str, problem: impl Into<String>) -> Self {
        Self { file: file.to_owned(), problem: problem.into() }
    }
}

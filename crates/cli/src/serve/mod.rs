//! The parts of `tidegate serve`.

pub(crate) mod example;
pub(crate) mod report;
pub(crate) mod service;

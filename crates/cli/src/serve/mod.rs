//! The parts of `tidegate serve`.

pub(crate) mod demo;
pub(crate) mod report;
pub(crate) mod service;
pub(crate) mod traffic;

//! What `tidegate serve` says and shows.

pub(crate) mod example;
pub(crate) mod report;
pub(crate) mod service;

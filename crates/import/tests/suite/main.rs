//! The integration tests of the importer, in one binary.

mod import;
mod losses;
mod nginx;
#[path = "../../../policy/tests/suite/requests.rs"]
#[allow(dead_code, reason = "the tests of policies use more of it")]
mod requests;

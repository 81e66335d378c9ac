//! Imports, in one program: it is built and linked once.

mod import;
mod losses;
mod nginx;
#[path = "../../../policy/tests/suite/requests.rs"]
#[allow(dead_code, reason = "the tests of policies use more of it")]
mod requests;

//! What must compile, what must not, and what is said then.

#![cfg(feature = "macros")]

#[test]
fn the_compiler_says_what_to_add() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/pass/*.rs");
    cases.compile_fail("tests/ui/fail/*.rs");
}

//! What must not compile, and what is said then: what to add.

#[test]
fn the_compiler_says_what_to_add() {
    trybuild::TestCases::new().compile_fail("tests/fail/*.rs");
}

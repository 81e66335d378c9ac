//! What must not compile, and what is said then: what to add.

#[test]
fn invalid_attributes_fail_to_compile() {
    trybuild::TestCases::new().compile_fail("tests/fail/*.rs");
}

//! Programs that must not compile, and their errors.

#[test]
fn invalid_attributes_fail_to_compile() {
    trybuild::TestCases::new().compile_fail("tests/fail/*.rs");
}

use tidegate::{Limited, breaker, limit};

struct NoConversion;

#[limit("10/s")]
fn returns_number() -> u32 {
    7
}

#[limit("10/s")]
fn nothing() {}

#[limit("10/s")]
async fn no_from(text: &str) -> Result<usize, NoConversion> {
    Ok(text.len())
}

#[limit("10/s", on_limit = other_arguments)]
fn fallback(id: u64) -> u64 {
    id
}

fn other_arguments(id: &str) -> u64 {
    id.len() as u64
}

#[breaker(on_limit = option_fallback)]
fn returns_option(id: u64) -> Option<u64> {
    Some(id)
}

fn option_fallback(_: u64) -> Option<u64> {
    None
}

#[limit("10/s", on_limit = with_rest)]
fn with_rest((id, ..): (u64, u8, u8)) -> u64 {
    id
}

struct ConstructorBlock;

#[limit("10/s")]
impl ConstructorBlock {
    fn new() -> Self {
        Self
    }

    fn fine(&self) -> Result<(), Limited> {
        Ok(())
    }
}

fn main() {}

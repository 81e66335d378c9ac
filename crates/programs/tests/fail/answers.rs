use tidegate::{Limited, breaker, limit};

struct Failure;

#[limit("10/s")]
fn a_number() -> u32 {
    7
}

#[limit("10/s")]
fn nothing() {}

#[limit("10/s")]
async fn no_from(text: &str) -> Result<usize, Failure> {
    Ok(text.len())
}

#[limit("10/s", on_limit = other_arguments)]
fn fallback(id: u64) -> u64 {
    id
}

fn other_arguments(id: &str) -> u64 {
    id.len() as u64
}

#[breaker(on_limit = maybe)]
fn maybe_not(id: u64) -> Option<u64> {
    Some(id)
}

fn maybe(_: u64) -> Option<u64> {
    None
}

#[limit("10/s", on_limit = with_rest)]
fn with_rest((id, ..): (u64, u8, u8)) -> u64 {
    id
}

struct Block;

#[limit("10/s")]
impl Block {
    fn new() -> Self {
        Self
    }

    fn fine(&self) -> Result<(), Limited> {
        Ok(())
    }
}

fn main() {}

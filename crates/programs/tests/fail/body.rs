// Errors in a body keep their spans.

use tidegate::{Limited, breaker, concurrency, limit};

#[limit("10/s", key = id)]
#[concurrency(3)]
#[breaker]
async fn type_error_in_body(id: u64) -> Result<u64, Limited> {
    let text: &str = id;
    Ok(text.len())
}

fn main() {}

use tidegate::{Limited, concurrency, limit};

#[limit("10/s brust 20")]
fn misspelled() -> Result<(), Limited> {
    Ok(())
}

#[limit("10 per fortnight", "1000/h", "0/s")]
fn two_invalid_quotas() -> Result<(), Limited> {
    Ok(())
}

#[limit("100/min", algorithm = "slding-log")]
fn unknown_algorithm() -> Result<(), Limited> {
    Ok(())
}

#[limit("100/min burst 20", algorithm = "sliding-log")]
fn two_algorithms() -> Result<(), Limited> {
    Ok(())
}

#[limit("100/min", wait = "50 parsecs")]
fn bad_time() -> Result<(), Limited> {
    Ok(())
}

#[limit("3 at once")]
fn concurrency_in_limit() -> Result<(), Limited> {
    Ok(())
}

#[concurrency("3/s")]
fn rate_in_concurrency() -> Result<(), Limited> {
    Ok(())
}

#[concurrency(0)]
fn zero_permits() -> Result<(), Limited> {
    Ok(())
}

#[limit]
fn missing_quota() -> Result<(), Limited> {
    Ok(())
}

#[limit(10)]
fn bare_number() -> Result<(), Limited> {
    Ok(())
}

fn main() {}

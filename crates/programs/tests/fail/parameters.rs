use tidegate::{Limited, breaker, concurrency, limit};

#[limit("10/s", kee = 1, messaeg = "no")]
fn misspelt(id: u64) -> Result<u64, Limited> {
    Ok(id)
}

#[limit("10/s", banana = 1)]
fn unknown() -> Result<(), Limited> {
    Ok(())
}

#[limit("10/s", key = id, key = id)]
fn twice(id: u64) -> Result<u64, Limited> {
    Ok(id)
}

#[limit("10/s", shadow = true, wait, message = 5)]
fn values() -> Result<(), Limited> {
    Ok(())
}

#[concurrency(3, cost = 2)]
fn slots_cost_one() -> Result<(), Limited> {
    Ok(())
}

#[limit("10/s", share)]
fn alone() -> Result<(), Limited> {
    Ok(())
}

#[limit("10/s", on_limit = fallback, or = fallback)]
fn both() -> Result<(), Limited> {
    Ok(())
}

#[limit("10/s", on_limit = |id| id)]
fn closure(id: u64) -> u64 {
    id
}

#[breaker(failure_rate = "0%", over = "half an hour", probes = 0, slow_rate = "10%", longest = "5s")]
fn breaks() -> Result<(), Limited> {
    Ok(())
}

#[breaker("10/s")]
fn has_no_quota() -> Result<(), Limited> {
    Ok(())
}

#[breaker(backoff = 2, longest = "5s")]
fn too_short() -> Result<(), Limited> {
    Ok(())
}

#[limit("10/s", key = ())]
fn no_key(id: u64) -> Result<u64, Limited> {
    Ok(id)
}

#[limit(10/s)]
fn unquoted() -> Result<(), Limited> {
    Ok(())
}

#[limit(100/min burst 20, key = id)]
fn unquoted_burst(id: u64) -> Result<u64, Limited> {
    Ok(id)
}

#[limit("10/s", burst = 20, fallback = guess, name = "x", timeout = "1s")]
fn words_of_others() -> Result<(), Limited> {
    Ok(())
}

#[limit("10/s", on_limit = guess)]
async fn fallback_is_not_async(id: u64) -> u64 {
    id
}

fn guess(id: u64) -> u64 {
    id
}

fn main() {}

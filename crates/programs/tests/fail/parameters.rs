use tidegate::{Limited, breaker, concurrency, limit};

#[limit("10/s", kee = 1, messaeg = "no")]
fn misspelled(id: u64) -> Result<u64, Limited> {
    Ok(id)
}

#[limit("10/s", banana = 1)]
fn unknown() -> Result<(), Limited> {
    Ok(())
}

#[limit("10/s", key = id, key = id)]
fn duplicate(id: u64) -> Result<u64, Limited> {
    Ok(id)
}

#[limit("10/s", shadow = true, wait, message = 5)]
fn invalid_values() -> Result<(), Limited> {
    Ok(())
}

#[concurrency(3, cost = 2)]
fn concurrency_has_no_cost() -> Result<(), Limited> {
    Ok(())
}

#[limit("10/s", shared)]
fn share_without_block() -> Result<(), Limited> {
    Ok(())
}

#[limit("10/s", on_limit = fallback, map_err = fallback)]
fn two_rejection_modes() -> Result<(), Limited> {
    Ok(())
}

#[limit("10/s", on_limit = |id| id)]
fn closure(id: u64) -> u64 {
    id
}

#[breaker(failure_rate = "0%", window_size = "half an hour", half_open_calls = 0, slow_call_rate = "10%", max_open_duration = "5s")]
fn invalid_breaker_values() -> Result<(), Limited> {
    Ok(())
}

#[breaker("10/s")]
fn has_no_quota() -> Result<(), Limited> {
    Ok(())
}

#[breaker(backoff = 2, max_open_duration = "5s")]
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
fn foreign_parameter_names() -> Result<(), Limited> {
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

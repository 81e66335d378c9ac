use tidegate::{Limited, retry, time_limit};

#[retry(attempts = 3)]
async fn unknown() -> Result<(), Limited> {
    Ok(())
}

#[retry("3/s", max = "two", backoff = 50, budget = "lots", hedge_after = "soon")]
async fn invalid_values() -> Result<(), Limited> {
    Ok(())
}

#[retry(max = 1000, time_limit = "0s")]
async fn out_of_range() -> Result<(), Limited> {
    Ok(())
}

#[retry(backoff = "1s", max_backoff = "10ms")]
async fn contradiction() -> Result<(), Limited> {
    Ok(())
}

#[retry(max = 0, hedge_after = "p95")]
async fn hedge_without_retries() -> Result<(), Limited> {
    Ok(())
}

#[retry]
fn blocking() -> Result<(), Limited> {
    Ok(())
}

#[retry]
#[retry(max = 3)]
async fn twice() -> Result<(), Limited> {
    Ok(())
}

#[retry]
async fn exclusive(list: &mut Vec<u64>) -> Result<(), Limited> {
    list.push(1);
    Ok(())
}

struct Client;

impl Client {
    #[retry]
    async fn consumes(self) -> Result<(), Limited> {
        Ok(())
    }
}

struct NotClone;

#[retry]
async fn not_clone(value: NotClone) -> Result<(), Limited> {
    drop(value);
    Ok(())
}

#[retry]
async fn no_result() -> u64 {
    7
}

#[time_limit]
async fn no_time() -> Result<(), Limited> {
    Ok(())
}

#[time_limit("2 bananas")]
async fn not_a_time() -> Result<(), Limited> {
    Ok(())
}

#[time_limit(2)]
async fn number() -> Result<(), Limited> {
    Ok(())
}

#[time_limit("0s")]
async fn zero() -> Result<(), Limited> {
    Ok(())
}

#[time_limit("1s", "2s")]
async fn two_times() -> Result<(), Limited> {
    Ok(())
}

#[time_limit("1s", on_limit = zero)]
async fn fallback() -> Result<(), Limited> {
    Ok(())
}

#[time_limit("1s")]
fn not_async() -> Result<(), Limited> {
    Ok(())
}

fn main() {}

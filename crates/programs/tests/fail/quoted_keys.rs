use tidegate::{Limited, concurrency, limit};

struct Account {
    id: u64,
}

#[limit("10/s", key = "user.id")]
fn quoted_field(user: Account) -> Result<u64, Limited> {
    Ok(user.id)
}

#[limit("10/s", key = "ip")]
fn quoted_word() -> Result<(), Limited> {
    Ok(())
}

#[limit("10/s", key = ("user.id", &"ip"))]
fn quoted_parts(user: Account) -> Result<u64, Limited> {
    Ok(user.id)
}

#[concurrency(3, key = "all of them")]
fn quoted_text() -> Result<(), Limited> {
    Ok(())
}

fn main() {}

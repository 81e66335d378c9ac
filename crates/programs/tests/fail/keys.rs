use tidegate::{Limited, limit};

struct Account {
    id: u64,
}

#[limit("10/s", key = user)]
fn not_a_key(user: Account) -> Result<u64, Limited> {
    Ok(user.id)
}

#[limit("10/s", key = (user.id, user))]
async fn not_a_key_in_a_tuple(user: Account) -> Result<u64, Limited> {
    Ok(user.id)
}

#[limit("10/s", key = user.name)]
fn no_such_field(user: Account) -> Result<u64, Limited> {
    Ok(user.id)
}

#[limit("10/s", key = missing)]
fn no_such_argument(user: Account) -> Result<u64, Limited> {
    Ok(user.id)
}

#[limit("10/s", cost = items.len())]
fn cost(items: &[u8]) -> Result<usize, Limited> {
    Ok(items.len())
}

fn main() {}

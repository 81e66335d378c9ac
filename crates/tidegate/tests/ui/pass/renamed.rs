// The crate may be known under another name.

mod mine {
    pub mod gate {
        pub use tidegate::*;
    }
}

use mine::gate::{Limited, breaker as guard, concurrency as slots, limit as rate};

#[rate("10/s", crate = mine::gate)]
#[slots(3, crate = crate::mine::gate)]
#[guard(crate = mine::gate)]
fn renamed() -> Result<(), Limited> {
    Ok(())
}

type Answer<T> = Result<T, Failure>;

#[derive(Debug)]
struct Failure;

impl From<Limited> for Failure {
    fn from(_: Limited) -> Self {
        Failure
    }
}

// An alias of `Result` is one.
#[rate("10/h burst 1", crate = mine::gate)]
fn aliased() -> Answer<u8> {
    Ok(1)
}

fn main() {
    renamed().unwrap();
    aliased().unwrap();
    aliased().unwrap_err();
}

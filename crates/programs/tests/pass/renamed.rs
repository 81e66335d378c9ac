// The crate may be re-exported under another name.

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

type AliasedResult<T> = Result<T, AliasedError>;

#[derive(Debug)]
struct AliasedError;

impl From<Limited> for AliasedError {
    fn from(_: Limited) -> Self {
        AliasedError
    }
}

// An alias of `Result` works too.
#[rate("10/h burst 1", crate = mine::gate)]
fn aliased() -> AliasedResult<u8> {
    Ok(1)
}

struct LimitedBlock;

#[mine::gate::limit("10/h burst 2", shared, crate = mine::gate)]
#[mine::gate::concurrency(1, crate = mine::gate)]
impl LimitedBlock {
    fn one(&self) -> AliasedResult<u8> {
        Ok(1)
    }

    #[mine::gate::limit(skip, crate = mine::gate)]
    fn two(&self) -> AliasedResult<u8> {
        Ok(self.one()? + self.one()?)
    }
}

macro_rules! limited {
    ($name:ident, $key:expr, $quota:literal, |$argument:ident| $body:expr) => {
        #[rate($quota, key = $key, crate = mine::gate)]
        fn $name($argument: u64) -> AliasedResult<u64> {
            Ok($body)
        }
    };
}

limited!(by_macro, 7_u64, "10/h burst 1", |id| id + 1);

fn main() {
    LimitedBlock.two().unwrap();
    LimitedBlock.one().unwrap_err();
    by_macro(1).unwrap();
    by_macro(2).unwrap_err();
    renamed().unwrap();
    aliased().unwrap();
    aliased().unwrap_err();
}

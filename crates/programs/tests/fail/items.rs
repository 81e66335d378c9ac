use tidegate::{Limited, limit};

#[limit("10/s")]
struct Shop;

#[limit("10/s")]
const fn constant() -> Result<(), Limited> {
    Ok(())
}

#[limit("10/s")]
unsafe fn dangerous() -> Result<(), Limited> {
    Ok(())
}

trait Sells {
    #[limit("10/s")]
    fn sell(&self) -> Result<(), Limited>;
}

#[limit("10/s")]
mod shop {}

#[limit("10/s")]
impl Shop {}

fn main() {}

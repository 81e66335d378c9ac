//! A request as rules see it, whatever wire it came by.

mod address;
mod head;
pub mod key;

pub use address::Address;
pub use head::{Head, Reply};
pub use key::{Key, KeyValue};

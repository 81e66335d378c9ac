//! What layers and middleware share that knows no wire: how calls are judged, who is let in, whose guard it is.
//!
//! A surface shows each of these the [`Head`](crate::request::Head) of a request, and has its own builders in front of them.

mod door;
mod finder;
mod guards;
mod judge;
mod terms;

pub use door::{Barred, Door, Guest};
pub use finder::FactsFinder;
pub use guards::{GuardSource, Guards, GuardsBuilder};
pub use judge::{Until, called, served};
pub use terms::{Classify, Line, Terms};

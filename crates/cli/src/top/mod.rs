//! Live statistics of a gateway in a terminal.
//!
//! ```text
//!   gateway ──snapshots──▶ feed ──▶ view (two snapshots, an order) ──▶ table ──text──▶ screen
//! ```
//!
//! Only `screen` depends on the terminal; `table` is a pure function from snapshots to text.

mod feed;
mod number;
mod screen;
mod table;
mod view;

pub(crate) use feed::{Feed, FeedEvent, KeySelection};
pub(crate) use screen::{Screen, read_keys};
pub(crate) use table::{Frame, draw};
pub(crate) use view::{SortOrder, View};

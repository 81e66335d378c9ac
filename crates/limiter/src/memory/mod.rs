//! State in this process: a table of cells, and three ways to count in one.

mod cell;
mod charge;
mod grip;
#[cfg(all(test, loom))]
mod loom;
mod plan;
mod resets;
mod several;
mod sketch;
mod slots;
mod space;
mod table;
mod wide;
mod word;

pub(crate) use charge::Charge;
pub(crate) use plan::{Plan, Plans};
pub(crate) use resets::Resets;
pub(crate) use several::{decide_together, reserve_together};
pub(crate) use sketch::Sketch;
pub(crate) use slots::SlotTable;
pub(crate) use space::Space;
pub(crate) use table::Table;
pub(crate) use wide::{Counts, Former, Hold, Layout, Question};
pub(crate) use word::{UNUSED, Word};

//! State in this process: a table of cells with three representations of state.

mod batch;
mod cell;
mod charge;
mod key_table;
mod locked_cell;
#[cfg(all(test, loom))]
mod loom;
mod multi_word;
mod permits;
mod plan;
mod resets;
mod single_word;
mod snapshot;
mod table;

pub(crate) use batch::{decide_batch, reserve_batch};
pub(crate) use charge::CellCharge;
pub(crate) use key_table::KeyTable;
pub(crate) use multi_word::{CellRequest, PermitHold, PreviousState, QuotaUnit, StateLayout};
pub(crate) use permits::PermitTable;
pub(crate) use plan::{WordPlan, WordPlans};
pub(crate) use resets::ResetCounters;
pub(crate) use single_word::{SingleWord, UNUSED_WORD};
pub(crate) use snapshot::StateSnapshot;
pub(crate) use table::CellTable;

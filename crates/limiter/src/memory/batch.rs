//! One decision over keys of several limiters: all are charged or none.

use super::{
    cell::Cell,
    charge::{CellCharge, CellKind},
    key_table::{CellRef, KeyTable},
    locked_cell::LockedCell,
    multi_word::{CellRequest, PermitHold},
    table::StripeLock,
};
use crate::{clock::Clock, limiter::LocalCheck, sync::MutexGuard};
use tidegate_core::{Decision, Demand, Effect, Micros};

/// Decides without receipts. Slots are only checked, because without receipts they could not be released.
pub(crate) fn decide_batch(checks: &[LocalCheck<'_>]) -> Vec<Decision> {
    take_batch(checks, PermitHold::Nothing).into_iter().map(|(decision, _)| decision).collect()
}

/// Decides, acquires slots too, and returns the receipts of each check. If any check is denied, nothing is charged.
pub(crate) fn reserve_batch(checks: &[LocalCheck<'_>]) -> Vec<(Decision, CellCharge)> {
    take_batch(checks, PermitHold::Permit)
}

/// Locks the cells of all checks, probes all, and charges only if all grant.
///
/// Cells are always locked in the same order (by limiter, then by position), so that two batches cannot deadlock.
fn take_batch(checks: &[LocalCheck<'_>], hold: PermitHold) -> Vec<(Decision, CellCharge)> {
    let Some(first) = checks.first() else { return Vec::new() };
    let clock = first.memory.clock();
    loop {
        if let Some(taken) = try_batch(checks, hold, clock) {
            return taken;
        }
    }
}

/// `None` if a cell was reassigned to another key before it was locked.
fn try_batch(
    checks: &[LocalCheck<'_>],
    hold: PermitHold,
    clock: &Clock,
) -> Option<Vec<(Decision, CellCharge)>> {
    let now = clock.now();
    let mut _stripes = Vec::new();
    let mut cells = match locate_cells(checks, StripeLock::Unlocked, now) {
        Some(cells) => cells,
        None => {
            _stripes = lock_stripes(checks);
            locate_cells(checks, StripeLock::Locked, now)?
        }
    };
    cells.cells.sort_by_key(BatchCell::lock_order);

    // Lock each cell once: checks of the same key of the same limiter share the cell and add up their costs.
    let mut entries: Vec<BatchEntry<'_>> = Vec::with_capacity(cells.cells.len());
    let mut last = None;
    for batch_cell in cells.cells {
        let BatchCell { key_table, cell, cell_kind, index } = batch_cell;
        let check = &checks[index];
        match entries.last_mut() {
            Some(entry) if last == Some(batch_cell.lock_order()) => {
                entry.demand.cost = entry.demand.cost.saturating_add(check.cost);
                entry.demand.max_wait = entry.demand.max_wait.min(check.max_wait);
                entry.indices.push(index);
            }
            _ => entries.push(BatchEntry {
                cell: key_table.lock_cell(cell, hold, now)?,
                demand: Demand::with_max_wait(check.cost, check.max_wait),
                tier: check.tier,
                cell_kind,
                indices: vec![index],
            }),
        }
        last = Some(batch_cell.lock_order());
    }

    // Probe all, then charge all or none. Read the clock after locking, so that it is later than the times in the cells.
    let now = clock.now();
    let mut taken = cells.denied;
    let mut granted = taken.iter().all(Option::is_none);
    for BatchEntry { cell, tier, .. } in entries.iter_mut().filter(|entry| entry.demand.cost > 0) {
        cell.begin(now, *tier);
    }
    for effect in [Effect::Peek, Effect::Charge] {
        if effect == Effect::Charge && !granted {
            break;
        }
        for BatchEntry { cell, demand, tier, cell_kind, indices } in &mut entries {
            let request = CellRequest { demand: Demand { effect, ..*demand }, hold, tier: *tier };
            let mut charge = CellCharge { cell_kind: *cell_kind, ..CellCharge::new(&request) };
            let decision = cell.decide(now, request, &mut charge);
            granted &= decision.is_granted();
            for index in indices {
                taken[*index] = Some((decision, charge.cap_cost(checks[*index].cost)));
            }
        }
    }
    let unlimited = || (Decision::unlimited(), CellCharge::new(&CellRequest::new(Demand::new(0))));
    Some(taken.into_iter().map(|taken| taken.unwrap_or_else(unlimited)).collect())
}

/// A locked cell, and the combined demand of its checks.
struct BatchEntry<'a> {
    cell: LockedCell<'a>,
    demand: Demand,
    tier: usize,
    cell_kind: CellKind,
    indices: Vec<usize>,
}

/// The cells of the checks.
struct BatchCells<'a> {
    cells: Vec<BatchCell<'a>>,
    /// The denials of checks that have no cell.
    denied: Vec<Option<(Decision, CellCharge)>>,
}

/// The cell of one check.
#[derive(Clone, Copy)]
struct BatchCell<'a> {
    key_table: &'a KeyTable,
    cell: Cell<'a>,
    cell_kind: CellKind,
    /// The index of the check.
    index: usize,
}

impl BatchCell<'_> {
    /// By limiter, then by position in its table.
    fn lock_order(&self) -> (usize, usize) {
        (address(self.key_table), self.cell.position())
    }
}

fn address(key_table: &KeyTable) -> usize {
    std::ptr::from_ref(key_table) as usize
}

/// Finds the cells of all checks; `None` if one is shared and its stripe is not locked.
fn locate_cells<'a>(checks: &[LocalCheck<'a>], stripe: StripeLock, now: Micros) -> Option<BatchCells<'a>> {
    let mut cells = BatchCells { cells: Vec::with_capacity(checks.len()), denied: vec![None; checks.len()] };
    let mut is_shared = false;
    for (index, check) in checks.iter().enumerate() {
        let key_table = check.memory.key_table();
        match key_table.locate(check.owner, stripe, now, check.memory.overflow()) {
            CellRef::Shared(..) if stripe == StripeLock::Unlocked => is_shared = true,
            CellRef::Own(cell) => {
                cells.cells.push(BatchCell { key_table, cell, cell_kind: CellKind::Own, index });
            }
            CellRef::Shared(cell, _) => {
                cells.cells.push(BatchCell { key_table, cell, cell_kind: CellKind::Shared, index });
            }
            CellRef::TableFull => {
                let charge = CellCharge::new(&CellRequest::new(Demand::new(check.cost)));
                cells.denied[index] = Some((key_table.deny_table_full(), charge));
            }
        }
    }
    (!is_shared).then_some(cells)
}

/// Locks the stripes of all keys, limiter by limiter, so that no key moves to another cell.
fn lock_stripes<'a>(checks: &[LocalCheck<'a>]) -> Vec<MutexGuard<'a, ()>> {
    let mut key_tables: Vec<&KeyTable> = checks.iter().map(|check| check.memory.key_table()).collect();
    key_tables.sort_by_key(|key_table| address(key_table));
    key_tables.dedup_by_key(|key_table| address(key_table));
    let stripes = key_tables.into_iter().flat_map(|key_table| {
        let owners = checks.iter().filter(move |check| std::ptr::eq(check.memory.key_table(), key_table));
        key_table.table().lock_stripes(owners.map(|check| check.owner))
    });
    stripes.collect()
}

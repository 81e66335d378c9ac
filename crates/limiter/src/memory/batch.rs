//! One decision over keys of several limiters: all are charged or none.

use super::{
    cell::Cell,
    charge::{CellCharge, CellKind},
    key_table::{CellRef, KeyTable},
    locked_cell::LockedCell,
    multi_word::{CellRequest, SlotHold},
    table::StripeLock,
};
use crate::{clock::Clock, limiter::LocalCheck, sync::MutexGuard};
use tidegate_core::{Decision, Demand, Effect, Micros};

/// Decides without keeping receipts. Slots are only looked at: nobody would give them back.
pub(crate) fn decide_batch(checks: &[LocalCheck<'_>]) -> Vec<Decision> {
    take_batch(checks, SlotHold::Nothing).into_iter().map(|(decision, _)| decision).collect()
}

/// Decides, takes slots too, and keeps the receipts of each check. Nothing was charged where any of them is denied.
pub(crate) fn reserve_batch(checks: &[LocalCheck<'_>]) -> Vec<(Decision, CellCharge)> {
    take_batch(checks, SlotHold::Permit)
}

/// Locks the cells of all checks, looks at every answer, and charges only if all grant.
///
/// Cells are locked in one order everywhere (by limiter, then by place), so two such decisions never wait for
/// each other in a circle.
fn take_batch(checks: &[LocalCheck<'_>], hold: SlotHold) -> Vec<(Decision, CellCharge)> {
    let Some(first) = checks.first() else { return Vec::new() };
    let clock = first.memory.clock();
    loop {
        if let Some(taken) = try_batch(checks, hold, clock) {
            return taken;
        }
    }
}

/// `None` when a cell went to another key before it could be locked.
fn try_batch(
    checks: &[LocalCheck<'_>],
    hold: SlotHold,
    clock: &Clock,
) -> Option<Vec<(Decision, CellCharge)>> {
    let now = clock.now();
    let mut _stripes = Vec::new();
    let mut spots = match locate_cells(checks, StripeLock::Unlocked, now) {
        Some(spots) => spots,
        None => {
            _stripes = lock_stripes(checks);
            locate_cells(checks, StripeLock::Locked, now)?
        }
    };
    spots.cells.sort_by_key(BatchCell::lock_order);

    // Lock each once: checks for the same key of the same limiter share the cell and add up their costs.
    let mut grips: Vec<BatchEntry<'_>> = Vec::with_capacity(spots.cells.len());
    let mut last = None;
    for place in spots.cells {
        let BatchCell { key_table: space, cell, cell_kind: counted, index } = place;
        let check = &checks[index];
        match grips.last_mut() {
            Some(grip) if last == Some(place.lock_order()) => {
                grip.demand.cost = grip.demand.cost.saturating_add(check.cost);
                grip.demand.max_wait = grip.demand.max_wait.min(check.max_wait);
                grip.indices.push(index);
            }
            _ => grips.push(BatchEntry {
                cell: space.lock_cell(cell, hold, now)?,
                demand: Demand::with_max_wait(check.cost, check.max_wait),
                tier: check.tier,
                cell_kind: counted,
                indices: vec![index],
            }),
        }
        last = Some(place.lock_order());
    }

    // Look at all, then charge all or none; at a moment after everything that the cells have seen.
    let now = clock.now();
    let mut taken = spots.denied;
    let mut granted = taken.iter().all(Option::is_none);
    for effect in [Effect::Probe, Effect::Charge] {
        if effect == Effect::Charge && !granted {
            break;
        }
        for BatchEntry { cell, demand, tier, cell_kind: counted, indices } in &mut grips {
            let question = CellRequest { demand: Demand { effect, ..*demand }, hold, tier: *tier };
            let mut charge = CellCharge { cell_kind: *counted, ..CellCharge::new(&question) };
            let decision = cell.decide(now, question, &mut charge);
            granted &= decision.is_granted();
            for index in indices {
                taken[*index] = Some((decision, charge.cap_cost(checks[*index].cost)));
            }
        }
    }
    let unlimited = || (Decision::unlimited(), CellCharge::new(&CellRequest::new(Demand::new(0))));
    Some(taken.into_iter().map(|taken| taken.unwrap_or_else(unlimited)).collect())
}

/// A cell that is locked, and what its checks want of it together.
struct BatchEntry<'a> {
    cell: LockedCell<'a>,
    demand: Demand,
    tier: usize,
    cell_kind: CellKind,
    indices: Vec<usize>,
}

/// Where the checks are counted.
struct BatchCells<'a> {
    cells: Vec<BatchCell<'a>>,
    /// The answers to those that are counted nowhere.
    denied: Vec<Option<(Decision, CellCharge)>>,
}

/// The cell of one check.
#[derive(Clone, Copy)]
struct BatchCell<'a> {
    key_table: &'a KeyTable,
    cell: Cell<'a>,
    cell_kind: CellKind,
    /// Which check.
    index: usize,
}

impl BatchCell<'_> {
    /// By limiter, then by place in its table.
    fn lock_order(&self) -> (usize, usize) {
        (address(self.key_table), self.cell.position())
    }
}

fn address(space: &KeyTable) -> usize {
    std::ptr::from_ref(space) as usize
}

/// Finds the cells of all checks; `None` when one is shared and its stripe is not held.
fn locate_cells<'a>(checks: &[LocalCheck<'a>], stripe: StripeLock, now: Micros) -> Option<BatchCells<'a>> {
    let mut spots = BatchCells { cells: Vec::with_capacity(checks.len()), denied: vec![None; checks.len()] };
    let mut is_shared = false;
    for (index, check) in checks.iter().enumerate() {
        let space = check.memory.key_table();
        match space.locate(check.owner, stripe, now, check.memory.overflow()) {
            CellRef::Shared(..) if stripe == StripeLock::Unlocked => is_shared = true,
            CellRef::Own(cell) => {
                spots.cells.push(BatchCell { key_table: space, cell, cell_kind: CellKind::Own, index });
            }
            CellRef::Shared(cell, _) => {
                spots.cells.push(BatchCell { key_table: space, cell, cell_kind: CellKind::Shared, index });
            }
            CellRef::Full => {
                let charge = CellCharge::new(&CellRequest::new(Demand::new(check.cost)));
                spots.denied[index] = Some((space.deny_full(), charge));
            }
        }
    }
    (!is_shared).then_some(spots)
}

/// Keeps all keys of the checks where they are: locks the stripes of one limiter after the other.
fn lock_stripes<'a>(checks: &[LocalCheck<'a>]) -> Vec<MutexGuard<'a, ()>> {
    let mut spaces: Vec<&KeyTable> = checks.iter().map(|check| check.memory.key_table()).collect();
    spaces.sort_by_key(|space| address(space));
    spaces.dedup_by_key(|space| address(space));
    let stripes = spaces.into_iter().flat_map(|space| {
        let own = checks.iter().filter(move |check| std::ptr::eq(check.memory.key_table(), space));
        space.table().lock_stripes(own.map(|check| check.owner))
    });
    stripes.collect()
}

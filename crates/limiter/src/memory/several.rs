//! One decision over keys of several limiters: all are charged or none.

use super::{
    cell::Cell,
    charge::{Charge, Counted},
    grip::Gripped,
    space::{Space, Spot},
    table::Stripe,
    wide::{Hold, Question},
};
use crate::{clock::Clock, limiter::LocalCheck, sync::MutexGuard};
use tidegate_core::{Decision, Demand, Effect, Micros};

/// Decides without keeping receipts. Slots are only looked at: nobody would give them back.
pub(crate) fn decide_together(asks: &[LocalCheck<'_>]) -> Vec<Decision> {
    take_together(asks, Hold::Nothing).into_iter().map(|(decision, _)| decision).collect()
}

/// Decides, takes slots too, and keeps the receipts of each ask. Nothing was charged where any of them is denied.
pub(crate) fn reserve_together(asks: &[LocalCheck<'_>]) -> Vec<(Decision, Charge)> {
    take_together(asks, Hold::Permit)
}

/// Locks the cells of all asks, looks at every answer, and charges only if all grant.
///
/// Cells are locked in one order everywhere (by limiter, then by place), so two such decisions never wait for
/// each other in a circle.
fn take_together(asks: &[LocalCheck<'_>], hold: Hold) -> Vec<(Decision, Charge)> {
    let Some(first) = asks.first() else { return Vec::new() };
    let clock = first.memory.clock();
    loop {
        if let Some(taken) = try_together(asks, hold, clock) {
            return taken;
        }
    }
}

/// `None` when a cell went to another key before it could be locked.
fn try_together(asks: &[LocalCheck<'_>], hold: Hold, clock: &Clock) -> Option<Vec<(Decision, Charge)>> {
    let now = clock.now();
    let mut _stripes = Vec::new();
    let mut spots = match find(asks, Stripe::Free, now) {
        Some(spots) => spots,
        None => {
            _stripes = lock_stripes(asks);
            find(asks, Stripe::Held, now)?
        }
    };
    spots.places.sort_by_key(Place::order);

    // Lock each once: asks for the same key of the same limiter share the cell and add up their costs.
    let mut grips: Vec<Grip<'_>> = Vec::with_capacity(spots.places.len());
    let mut last = None;
    for place in spots.places {
        let Place { space, cell, counted, index } = place;
        let ask = &asks[index];
        match grips.last_mut() {
            Some(grip) if last == Some(place.order()) => {
                grip.demand.cost = grip.demand.cost.saturating_add(ask.cost);
                grip.demand.max_wait = grip.demand.max_wait.min(ask.max_wait);
                grip.indices.push(index);
            }
            _ => grips.push(Grip {
                cell: space.hold(cell, hold, now)?,
                demand: Demand::with_max_wait(ask.cost, ask.max_wait),
                tier: ask.tier,
                counted,
                indices: vec![index],
            }),
        }
        last = Some(place.order());
    }

    // Look at all, then charge all or none; at a moment after everything that the cells have seen.
    let now = clock.now();
    let mut taken = spots.without_room;
    let mut granted = taken.iter().all(Option::is_none);
    for effect in [Effect::Probe, Effect::Charge] {
        if effect == Effect::Charge && !granted {
            break;
        }
        for Grip { cell, demand, tier, counted, indices } in &mut grips {
            let question = Question { demand: Demand { effect, ..*demand }, hold, tier: *tier };
            let mut charge = Charge { counted: *counted, ..Charge::of(&question) };
            let decision = cell.decide(now, question, &mut charge);
            granted &= decision.is_granted();
            for index in indices {
                taken[*index] = Some((decision, charge.part(asks[*index].cost)));
            }
        }
    }
    let unlimited = || (Decision::unlimited(), Charge::of(&Question::plain(Demand::new(0))));
    Some(taken.into_iter().map(|taken| taken.unwrap_or_else(unlimited)).collect())
}

/// A cell that is locked, and what its asks want of it together.
struct Grip<'a> {
    cell: Gripped<'a>,
    demand: Demand,
    tier: usize,
    counted: Counted,
    indices: Vec<usize>,
}

/// Where the asks are counted.
struct Spots<'a> {
    places: Vec<Place<'a>>,
    /// The answers to those that are counted nowhere.
    without_room: Vec<Option<(Decision, Charge)>>,
}

/// The cell of one ask.
#[derive(Clone, Copy)]
struct Place<'a> {
    space: &'a Space,
    cell: Cell<'a>,
    counted: Counted,
    /// Which ask.
    index: usize,
}

impl Place<'_> {
    /// By limiter, then by place in its table.
    fn order(&self) -> (usize, usize) {
        (address(self.space), self.cell.position())
    }
}

fn address(space: &Space) -> usize {
    std::ptr::from_ref(space) as usize
}

/// Finds the cells of all asks; `None` when one is shared and its stripe is not held.
fn find<'a>(asks: &[LocalCheck<'a>], stripe: Stripe, now: Micros) -> Option<Spots<'a>> {
    let mut spots = Spots { places: Vec::with_capacity(asks.len()), without_room: vec![None; asks.len()] };
    let mut is_shared = false;
    for (index, ask) in asks.iter().enumerate() {
        let space = ask.memory.space();
        match space.spot(ask.owner, stripe, now, ask.memory.overflow()) {
            Spot::Shared(..) if stripe == Stripe::Free => is_shared = true,
            Spot::Own(cell) => spots.places.push(Place { space, cell, counted: Counted::Own, index }),
            Spot::Shared(cell, _) => {
                spots.places.push(Place { space, cell, counted: Counted::Shared, index });
            }
            Spot::NoRoom => {
                let charge = Charge::of(&Question::plain(Demand::new(ask.cost)));
                spots.without_room[index] = Some((space.no_room(), charge));
            }
        }
    }
    (!is_shared).then_some(spots)
}

/// Keeps all keys of the asks where they are: locks the stripes of one limiter after the other.
fn lock_stripes<'a>(asks: &[LocalCheck<'a>]) -> Vec<MutexGuard<'a, ()>> {
    let mut spaces: Vec<&Space> = asks.iter().map(|ask| ask.memory.space()).collect();
    spaces.sort_by_key(|space| address(space));
    spaces.dedup_by_key(|space| address(space));
    let stripes = spaces.into_iter().flat_map(|space| {
        let own = asks.iter().filter(move |ask| std::ptr::eq(ask.memory.space(), space));
        space.table().lock_stripes(own.map(|ask| ask.owner))
    });
    stripes.collect()
}

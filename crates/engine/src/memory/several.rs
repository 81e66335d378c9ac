//! One decision over keys of several limiters: all are charged or none.

use super::{
    cell::Cell,
    space::{Gripped, Space, Spot},
    table::Stripe,
};
use crate::{clock::Clock, limiter::Ask, sync::MutexGuard};
use tidegate_core::{Decision, Demand, Effect, Micros};

/// Locks the cells of all asks, looks at every answer, and charges only if all grant.
///
/// Cells are locked in one order everywhere (by limiter, then by place), so two such decisions never wait for
/// each other in a circle.
pub(crate) fn decide_together(asks: &[Ask<'_>]) -> Vec<Decision> {
    let Some(first) = asks.first() else { return Vec::new() };
    let clock = first.limiter.clock();
    loop {
        if let Some(decisions) = try_together(asks, clock) {
            return decisions;
        }
    }
}

/// `None` when a cell went to another key before it could be locked.
fn try_together(asks: &[Ask<'_>], clock: &Clock) -> Option<Vec<Decision>> {
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
    let mut grips: Vec<(Gripped<'_>, u64, Vec<usize>)> = Vec::with_capacity(spots.places.len());
    let mut last = None;
    for place in spots.places {
        let Place { space, cell, index } = place;
        match grips.last_mut() {
            Some((_, cost, indices)) if last == Some(place.order()) => {
                *cost = cost.saturating_add(asks[index].cost);
                indices.push(index);
            }
            _ => grips.push((space.hold(cell, now)?, asks[index].cost, vec![index])),
        }
        last = Some(place.order());
    }

    // Look at all, then charge all or none; at a moment after everything that the cells have seen.
    let now = clock.now();
    let mut decisions = spots.without_room;
    let mut granted = decisions.iter().all(Option::is_none);
    for effect in [Effect::Probe, Effect::Charge] {
        if effect == Effect::Charge && !granted {
            break;
        }
        for (grip, cost, indices) in &mut grips {
            let decision = grip.decide(now, Demand { effect, ..Demand::now(*cost) });
            granted &= decision.is_granted();
            indices.iter().for_each(|index| decisions[*index] = Some(decision));
        }
    }
    Some(decisions.into_iter().map(|decision| decision.unwrap_or_else(Decision::unlimited)).collect())
}

/// Where the asks are counted.
struct Spots<'a> {
    places: Vec<Place<'a>>,
    /// The answers to those that are counted nowhere.
    without_room: Vec<Option<Decision>>,
}

/// The cell of one ask.
#[derive(Clone, Copy)]
struct Place<'a> {
    space: &'a Space,
    cell: Cell<'a>,
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
fn find<'a>(asks: &[Ask<'a>], stripe: Stripe, now: Micros) -> Option<Spots<'a>> {
    let mut spots = Spots { places: Vec::with_capacity(asks.len()), without_room: vec![None; asks.len()] };
    for (index, ask) in asks.iter().enumerate() {
        let space = ask.limiter.space();
        match space.spot(ask.owner, stripe, now, ask.limiter.overflow()) {
            Spot::Shared(..) if stripe == Stripe::Free => return None,
            Spot::Own(cell) | Spot::Shared(cell, _) => spots.places.push(Place { space, cell, index }),
            Spot::NoRoom => spots.without_room[index] = Some(space.no_room()),
        }
    }
    Some(spots)
}

/// Keeps all keys of the asks where they are: locks the stripes of one limiter after the other.
fn lock_stripes<'a>(asks: &[Ask<'a>]) -> Vec<MutexGuard<'a, ()>> {
    let mut spaces: Vec<&Space> = asks.iter().map(|ask| ask.limiter.space()).collect();
    spaces.sort_by_key(|space| address(space));
    spaces.dedup_by_key(|space| address(space));
    let stripes = spaces.into_iter().flat_map(|space| {
        let own = asks.iter().filter(move |ask| std::ptr::eq(ask.limiter.space(), space));
        space.table().lock_stripes(own.map(|ask| ask.owner))
    });
    stripes.collect()
}

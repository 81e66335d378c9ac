//! One decision over keys of several limiters: all are charged or none.

use super::space::{Gripped, Spot};
use crate::limiter::Ask;
use tidegate_core::{Decision, Demand, Effect, Micros};

/// Locks the cells of all asks, looks at every answer, and charges only if all grant.
///
/// Cells are locked in one order everywhere (by limiter, then by place), so two such decisions never wait for
/// each other in a circle.
pub(crate) fn decide_together(asks: &[Ask<'_>]) -> Vec<Decision> {
    let Some(first) = asks.first() else { return Vec::new() };
    let now = first.limiter.clock().now();
    loop {
        if let Some(decisions) = try_together(asks, now) {
            return decisions;
        }
    }
}

/// `None` when a cell went to another key before it could be locked.
fn try_together(asks: &[Ask<'_>], now: Micros) -> Option<Vec<Decision>> {
    // Find the cells, in the order in which they are locked.
    let mut places = Vec::with_capacity(asks.len());
    let mut decisions: Vec<Option<Decision>> = vec![None; asks.len()];
    for (index, ask) in asks.iter().enumerate() {
        match ask.limiter.space().spot(ask.owner, now, ask.limiter.overflow()) {
            // The guard of a shared cell is not kept: locks of several keys could form a circle.
            Spot::Own(cell) | Spot::Shared(cell, _) => {
                let space = std::ptr::from_ref(ask.limiter.space()) as usize;
                places.push((space, cell.position(), cell, index));
            }
            Spot::NoRoom => decisions[index] = Some(ask.limiter.space().no_room()),
        }
    }
    places.sort_by_key(|(space, position, ..)| (*space, *position));

    // Lock each once: asks for the same key of the same limiter share the cell and add up their costs.
    let mut grips: Vec<(Gripped<'_>, u64, Vec<usize>)> = Vec::with_capacity(places.len());
    let mut last = None;
    for (space, position, cell, index) in places {
        match grips.last_mut() {
            Some((_, cost, indices)) if last == Some((space, position)) => {
                *cost = cost.saturating_add(asks[index].cost);
                indices.push(index);
            }
            _ => grips.push((asks[index].limiter.space().hold(cell, now)?, asks[index].cost, vec![index])),
        }
        last = Some((space, position));
    }

    // Look at all, then charge all or none.
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

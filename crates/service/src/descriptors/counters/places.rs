//! Limits with quotas of their own: a limiter for each place in the files.

use super::{CountedKey, Hold, Home, Reserved, Shelf};
use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};
use tidegate_core::{CarryOver, Decision, Quota};
use tidegate_limiter::{BuildError, Capacity, Check, CombinedReservation, Limiter, StoreError, reserve_all};

/// The limiter of one place. It is made when it is first asked for, so that files may have more limits than are used, and it
/// stays when files are read again.
#[derive(Clone, Debug)]
pub(crate) struct PlaceLimiter {
    cell: Arc<Cell>,
}

#[derive(Debug)]
struct Cell {
    home: Home,
    name: String,
    terms: PlaceTerms,
    /// What it counts by; whoever makes the limiter or changes it holds this.
    quotas: Mutex<Vec<Quota>>,
    limiter: OnceLock<Limiter>,
}

/// How the limiter of a place counts, besides its quotas.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PlaceTerms {
    pub(crate) capacity: Capacity,
    /// In which store.
    pub(crate) shelf: Shelf,
    /// For how long tokens of the store may lie here, if that is said of this place.
    pub(crate) lease: Option<Duration>,
}

impl PlaceLimiter {
    pub(crate) fn new(home: &Home, place: &str, terms: PlaceTerms, quotas: &[Quota]) -> Self {
        let name = format!("descriptors.{place}");
        let (home, quotas) = (home.clone(), Mutex::new(quotas.to_vec()));
        Self { cell: Arc::new(Cell { home, name, terms, quotas, limiter: OnceLock::new() }) }
    }

    /// The same limiter under these quotas: keys keep what they have used. `None` where that cannot be done.
    pub(crate) fn changed(&self, terms: PlaceTerms, quotas: &[Quota]) -> Option<Self> {
        let PlaceTerms { shelf, lease, .. } = self.cell.terms;
        if (shelf, lease) != (terms.shelf, terms.lease) {
            return None;
        }
        let mut known = self.cell.quotas.lock().unwrap_or_else(PoisonError::into_inner);
        if *known != quotas {
            if let Some(limiter) = self.cell.limiter.get() {
                limiter.change_all(quotas, CarryOver::Keep).ok()?;
            }
            *known = quotas.to_vec();
        }
        Some(self.clone())
    }

    pub(crate) fn get(&self) -> Result<&Limiter, BuildError> {
        if let Some(limiter) = self.cell.limiter.get() {
            return Ok(limiter);
        }
        let quotas = self.cell.quotas.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(limiter) = self.cell.limiter.get() {
            return Ok(limiter);
        }
        let Cell { home, name, terms, .. } = &*self.cell;
        let mut builder = home.builder(name, terms.capacity, terms.shelf);
        if let Some(ahead) = home.ahead(terms.lease) {
            builder = builder.prefetch(ahead);
        }
        let limiter = builder.build_all(&quotas)?;
        Ok(self.cell.limiter.get_or_init(|| limiter))
    }

    /// Whether tokens of the store are taken ahead.
    pub(crate) fn supply(&self) -> Supply {
        match self.cell.home.store.is_some() && self.cell.home.ahead(self.cell.terms.lease).is_some() {
            true => Supply::Ahead,
            false => Supply::Asked,
        }
    }

    /// Forgets what was counted of a key.
    pub(crate) async fn reset(&self, key: CountedKey<'_>) -> Result<(), StoreError> {
        // One that was never asked may have been, elsewhere.
        let limiter = self.get().map_err(|error| StoreError::Rejected(error.to_string()))?;
        limiter.key(&key).reset().await
    }
}

/// Where tokens come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Supply {
    /// They are asked for.
    Asked,
    /// Some lie here already.
    Ahead,
}

/// What is asked of one limiter.
#[derive(Debug)]
pub(crate) struct Charge<'a> {
    pub(crate) limiter: &'a Limiter,
    pub(crate) key: CountedKey<'a>,
    pub(crate) hits: u64,
    pub(crate) manner: Manner,
    pub(crate) supply: Supply,
}

/// What a limit that is over does to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// It refuses it.
    Refuse,
    /// It refuses it if all others of this kind do.
    RefuseTogether,
    /// Nothing.
    Watch,
}

/// Why a request is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// For good.
    Count,
    /// To be settled later: all or none.
    Hold,
}

/// What has been said of a request before its limiters are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    /// It is refused: nothing is charged any more.
    Refused,
    /// A limit of those that refuse together has room.
    RoomTogether,
    /// Nothing.
    Nothing,
}

impl Charge<'_> {
    fn check(&self) -> Check {
        self.limiter.prepare(&self.key).cost(self.hits)
    }

    async fn look(&self) -> Decision {
        self.limiter.key(&self.key).peek(self.hits).await
    }

    async fn alone(&self) -> Option<CombinedReservation> {
        reserve_all(vec![self.check()]).await.pop().flatten()
    }
}

/// Charges all, or none if the request is refused by any of them; those that only watch are charged if it is not. Says what
/// each decided, and what is held of it.
pub(crate) async fn charge_all(
    charges: &[Charge<'_>],
    before: Before,
    purpose: Purpose,
) -> (Vec<Decision>, Reserved) {
    if let Some(decision) = spend_ahead(charges, before, purpose).await {
        return (vec![decision], Vec::new());
    }
    let mut decisions: Vec<Option<Decision>> = vec![None; charges.len()];
    let mut held: Vec<CombinedReservation> = Vec::with_capacity(charges.len());
    let of = |manner| charges.iter().enumerate().filter(move |(_, charge)| charge.manner == manner);
    let mut after = before;

    // Those that refuse by themselves, all at once.
    let checks: Vec<_> = of(Manner::Refuse).map(|(_, charge)| charge.check()).collect();
    if after != Before::Refused && !checks.is_empty() {
        for ((place, _), claim) in of(Manner::Refuse).zip(reserve_all(checks).await) {
            let Some(claim) = claim else { continue };
            decisions[place] = Some(*claim.decision());
            if !claim.decision().is_granted() {
                after = Before::Refused;
            }
            held.push(claim);
        }
    }

    // Those of which one that has room is enough.
    if after != Before::Refused {
        let mut asked = 0;
        for (place, charge) in of(Manner::RefuseTogether) {
            asked += 1;
            let Some(claim) = charge.alone().await else { continue };
            decisions[place] = Some(*claim.decision());
            if claim.decision().is_granted() {
                after = Before::RoomTogether;
                held.push(claim);
            }
        }
        if asked > 0 && after == Before::Nothing {
            after = Before::Refused;
            // What was granted is given back below, and has to be looked at again.
            decisions.iter_mut().for_each(|decision| *decision = decision.filter(|it| !it.is_granted()));
        }
    }

    let mut reserved: Reserved = held.into_iter().map(Hold::of).collect();
    match after {
        Before::Refused => {
            for hold in reserved.drain(..) {
                hold.give_back().await;
            }
        }
        Before::RoomTogether | Before::Nothing => {
            for (place, charge) in of(Manner::Watch) {
                let Some(claim) = charge.alone().await else { continue };
                decisions[place] = Some(*claim.decision());
                reserved.push(Hold::of(claim));
            }
        }
    }
    let mut all = Vec::with_capacity(charges.len());
    for (charge, decision) in charges.iter().zip(decisions) {
        all.push(match decision {
            Some(decision) => decision,
            None => charge.look().await,
        });
    }
    (all, reserved)
}

/// Tokens that lie here are spent by a request that nobody else decides, and by none that may want to give them back.
async fn spend_ahead(charges: &[Charge<'_>], before: Before, purpose: Purpose) -> Option<Decision> {
    let [only] = charges else { return None };
    let is_spent = only.supply == Supply::Ahead && only.manner == Manner::Refuse;
    match (before, purpose) {
        (Before::Nothing | Before::RoomTogether, Purpose::Count) if is_spent => {
            Some(only.limiter.decide(&only.key.to_string(), only.hits).await)
        }
        _ => None,
    }
}

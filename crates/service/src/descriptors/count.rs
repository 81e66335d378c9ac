//! Counts what a request costs, and compares it with the limits that apply.

use super::{
    DescriptorFault, DescriptorService, DomainAsk, OverLimit,
    counters::{Before, Charge, Count, CountedKey, Hits, Hold, Manner, Purpose, Reserved, charge_all},
    force::{How, LimitState, Limited, Subject},
    metrics::{Hit, Shadow, Source, near},
    settings::{Counting, WhenOver},
    verdict::{Finding, refuses},
};
use std::time::Duration;
use tidegate_core::{Decision, Micros, header::ceil_seconds};
use tidegate_limiter::FailureMode;
use tidegate_policy::descriptors::CalendarUnit;

impl DescriptorService {
    /// Counts what is to be counted, and says what was found of each subject that is limited, and what is held.
    pub(super) async fn count(
        &self,
        ask: &DomainAsk,
        subjects: &[Subject<'_>],
        purpose: Purpose,
    ) -> Result<(Vec<Option<Finding>>, Reserved), DescriptorFault> {
        let mut counted = self.compare(ask, subjects, purpose).await?;
        let mut findings: Vec<Option<Finding>> =
            counted.iter().map(|compared| compared.as_ref().map(|it| it.finding.clone())).collect();
        let mut reserved = Vec::new();
        if has_limiters(subjects) {
            let before = before(subjects, &findings);
            reserved = self.charge(ask, subjects, (before, purpose), &mut findings).await?;
        }
        let over = |finding: &Option<Finding>| finding.as_ref().map(|finding| finding.over);
        let refused = refuses(subjects.iter().zip(findings.iter().map(over)));
        for (compared, finding) in counted.iter_mut().zip(&mut findings) {
            let Some(compared) = compared else { continue };
            let is_over = compared.finding.over == OverLimit::Yes;
            let stays = match (purpose, self.settings.counting) {
                (Purpose::Count, Counting::Theirs) => true,
                (Purpose::Hold, _) | (_, Counting::Atomic) => !is_over && refused == OverLimit::No,
            };
            match std::mem::replace(&mut compared.held, Hold::Nothing) {
                Hold::Nothing => {}
                hold if stays => reserved.push(hold),
                hold => hold.give_back().await,
            }
            if !stays && !is_over {
                let given_back = std::mem::take(&mut compared.hit.hits);
                compared.hit.after = compared.hit.after.saturating_sub(given_back);
                if let Some(finding) = finding {
                    finding.remaining = compared.hit.limit.saturating_sub(compared.hit.after);
                }
            }
        }
        self.take_note(ask, subjects, &counted, purpose);
        Ok((findings, reserved))
    }

    /// Counts for operators, and remembers who is over.
    fn take_note(
        &self,
        ask: &DomainAsk,
        subjects: &[Subject<'_>],
        counted: &[Option<Compared>],
        purpose: Purpose,
    ) {
        for (subject, compared) in subjects.iter().zip(counted) {
            let (Subject::Limited(limited), Some(compared)) = (subject, compared) else { continue };
            limited.counts.hit(compared.hit);
            if let (Some(over), How::Compare { unit, .. }, Some(ends)) =
                (&self.over, &limited.how, compared.over_until)
                && purpose == Purpose::Count
            {
                let key = CountedKey { domain: &ask.domain, entries: &limited.counted };
                over.put(key, *unit, compared.hit.limit, (self.settings.clock.now(), ends));
            }
        }
    }

    /// Counts those whose counts are compared with a number.
    async fn compare(
        &self,
        ask: &DomainAsk,
        subjects: &[Subject<'_>],
        purpose: Purpose,
    ) -> Result<Vec<Option<Compared>>, DescriptorFault> {
        let hits_of = |place: usize| hits(ask, place);
        let mut all: Vec<Option<Compared>> = subjects.iter().map(|_| None).collect();
        let (mut places, mut hits) = (Vec::new(), Vec::new());
        for (place, subject) in subjects.iter().enumerate() {
            let Subject::Limited(limited) = subject else { continue };
            let key = CountedKey { domain: &ask.domain, entries: &limited.counted };
            match limited.how {
                How::Compare { requests, unit } => match self.known_over(key, unit, requests) {
                    Some(count) => {
                        let remembered =
                            self.compared(limited, (requests, unit), hits_of(place), (count, Hold::Nothing));
                        all[place] = Some(remembered.remembered());
                    }
                    None => {
                        places.push(place);
                        hits.push(Hits { key, unit, hits: hits_of(place) });
                    }
                },
                How::Ban { unit } => {
                    let count = Count::Known { after: hits_of(place), ends: None };
                    all[place] =
                        Some(self.compared(limited, (0, unit), hits_of(place), (count, Hold::Nothing)));
                }
                How::Unlimited | How::Charge(_) => {}
            }
        }
        if hits.is_empty() {
            return Ok(all);
        }
        let is_theirs = purpose == Purpose::Count && self.settings.counting == Counting::Theirs;
        if is_theirs && self.settings.when_over == WhenOver::CountOver {
            let is_over = all.iter().flatten().any(|known| known.finding.over == OverLimit::Yes);
            let limits = places.iter().map(|place| subjects.get(*place));
            self.stop(&mut hits, &limits.collect::<Vec<_>>(), is_over).await?;
        }
        let counts: Vec<(Count, Hold)> = match is_theirs {
            true => self.units.count(&hits).await.into_iter().map(|count| (count, Hold::Nothing)).collect(),
            false => self.units.hold(&hits).await,
        };
        if counts.iter().any(|(count, _)| *count == Count::Closed) || counts.len() != places.len() {
            return Err(away());
        }
        for (place, count) in places.into_iter().zip(counts) {
            let Some(Subject::Limited(limited)) = subjects.get(place) else { continue };
            let How::Compare { requests, unit } = limited.how else { continue };
            all[place] = Some(self.compared(limited, (requests, unit), hits_of(place), count));
        }
        Ok(all)
    }

    /// `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`: where a key of a request is known to be over, no other is counted; where one
    /// would go over, only such are. What the keys are at is looked up first, so that one that comes twice is taken as it is
    /// before both.
    async fn stop(
        &self,
        hits: &mut [Hits<'_>],
        subjects: &[Option<&Subject<'_>>],
        is_over: bool,
    ) -> Result<(), DescriptorFault> {
        if is_over {
            hits.iter_mut().for_each(|hit| hit.hits = 0);
            return Ok(());
        }
        let looked_up: Vec<_> = hits.iter().map(|hit| Hits { hits: 0, ..*hit }).collect();
        let counts = self.units.count(&looked_up).await;
        if counts.contains(&Count::Closed) || counts.len() != hits.len() {
            return Err(away());
        }
        let goes_over = |((hit, subject), count): ((&Hits<'_>, &Option<&Subject<'_>>), &Count)| {
            let Some(Subject::Limited(Limited { how: How::Compare { requests, .. }, .. })) = subject else {
                return false;
            };
            match (*count, self.settings.outage) {
                (Count::Local { after, .. }, FailureMode::Local { nodes }) => {
                    after.saturating_add(hit.hits) > share(*requests, nodes).into()
                }
                (Count::Known { after, .. } | Count::Local { after, .. }, _) => {
                    after.saturating_add(hit.hits) > (*requests).into()
                }
                (Count::Open | Count::Closed, _) => false,
            }
        };
        let over: Vec<bool> = hits.iter().zip(subjects).zip(&counts).map(goes_over).collect();
        if over.contains(&true) {
            for (hit, _) in hits.iter_mut().zip(over).filter(|(_, over)| !over) {
                hit.hits = 0;
            }
        }
        Ok(())
    }

    /// A count that is over this limit, of a key that is known to be.
    fn known_over(&self, key: CountedKey<'_>, unit: CalendarUnit, requests: u32) -> Option<Count> {
        let (over, now) = (self.over.as_ref()?, self.settings.clock.now());
        let ends = over.find(key, unit, requests.into(), now)?;
        Some(Count::Known { after: u64::MAX, ends: Some(ends.since(now).get()) })
    }

    fn compared(
        &self,
        limited: &Limited<'_>,
        told: (u32, CalendarUnit),
        hits: u64,
        (count, held): (Count, Hold),
    ) -> Compared {
        let (limit, (after, ends)) = match (count, self.settings.outage) {
            (Count::Local { after, ends }, FailureMode::Local { nodes }) => {
                (share(told.0, nodes), (after, ends))
            }
            (Count::Known { after, ends } | Count::Local { after, ends }, _) => (told.0, (after, ends)),
            (Count::Open | Count::Closed, _) => (told.0, (0, None)),
        };
        let limit = u64::from(limit);
        let over = if after > limit { OverLimit::Yes } else { OverLimit::No };
        let finding = Finding {
            over,
            told,
            quota: 0,
            remaining: limit.saturating_sub(after),
            reset: Some(self.window_end(ends.map(Micros::new), told.1)),
        };
        let over_until = match (count, over) {
            (Count::Known { ends: Some(ends), .. }, OverLimit::Yes) => {
                Some(self.settings.clock.now().plus(Micros::new(ends)))
            }
            _ => None,
        };
        let near = near(limit, self.settings.near_limit_ratio);
        let hit = Hit { hits, after, limit, near, shadow: shadow(limited), source: Source::Counted };
        Compared { finding, hit, held, over_until }
    }

    /// Asks those that are decided by limiters.
    async fn charge(
        &self,
        ask: &DomainAsk,
        subjects: &[Subject<'_>],
        (before, purpose): (Before, Purpose),
        findings: &mut [Option<Finding>],
    ) -> Result<Reserved, DescriptorFault> {
        let mut charges = Vec::new();
        let mut places = Vec::new();
        for (place, subject) in subjects.iter().enumerate() {
            let Subject::Limited(limited) = subject else { continue };
            let How::Charge(limiter) = &limited.how else { continue };
            let key = CountedKey { domain: &ask.domain, entries: &limited.counted };
            let supply = limiter.supply();
            let limiter = limiter.get().map_err(|error| DescriptorFault::Unavailable(error.to_string()))?;
            charges.push(Charge { limiter, key, hits: hits(ask, place), manner: limited.manner, supply });
            places.push((place, limited));
        }
        let (decisions, reserved) = charge_all(&charges, before, purpose).await;
        if decisions.iter().any(Decision::is_fail_closed) {
            return Err(away());
        }
        for ((place, limited), decision) in places.into_iter().zip(decisions) {
            let finding = self.decided(limited, &decision);
            let (hits, limit) = (hits(ask, place), u64::from(finding.told.0));
            let after = match finding.over {
                OverLimit::Yes => limit.saturating_add(hits),
                OverLimit::No => limit.saturating_sub(finding.remaining),
            };
            let near = near(limit, self.settings.near_limit_ratio);
            let shadow = shadow(limited);
            limited.counts.hit(Hit { hits, after, limit, near, shadow, source: Source::Counted });
            findings[place] = Some(finding);
        }
        Ok(reserved)
    }

    /// What a limiter's decision says.
    fn decided(&self, limited: &Limited<'_>, decision: &Decision) -> Finding {
        let told = limited.state.map(LimitState::amounts).unwrap_or_default();
        let quota = decision.quota().min(told.len().saturating_sub(1));
        let told = told.get(quota).copied().unwrap_or((u32::MAX, CalendarUnit::Second));
        let wait = match decision.is_granted() {
            true => {
                Some(decision.refill_after()).filter(|wait| *wait != Micros::ZERO && *wait != Micros::MAX)
            }
            false => decision.retry_after(),
        };
        let unit = limited.state.and_then(LimitState::unit);
        let reset = match (wait, unit) {
            (None, Some(unit)) => Some(self.window_end(None, unit)),
            (wait, _) => wait.map(|wait| Duration::from_secs(ceil_seconds(wait))),
        };
        let over = if decision.is_granted() { OverLimit::No } else { OverLimit::Yes };
        let remaining = if over == OverLimit::Yes { 0 } else { decision.remaining().min(told.0.into()) };
        Finding { over, told, quota, remaining, reset }
    }

    /// When a window ends, in whole seconds of which there is always one; where nobody knows, by our own clock.
    fn window_end(&self, ends: Option<Micros>, unit: CalendarUnit) -> Duration {
        let length = Micros::from_secs(unit.seconds()).get();
        let ends = ends.unwrap_or_else(|| Micros::new(length - self.settings.clock.now().get() % length));
        Duration::from_secs(ceil_seconds(ends))
    }
}

/// A count that was compared with a number.
struct Compared {
    finding: Finding,
    hit: Hit,
    /// What can still be given back.
    held: Hold,
    /// When the window ends of a key that is over.
    over_until: Option<Micros>,
}

impl Compared {
    /// The same, of a key that nobody was asked about.
    fn remembered(self) -> Self {
        let after = self.hit.limit.saturating_add(self.hit.hits);
        let hit = Hit { after, source: Source::Remembered, ..self.hit };
        Self { hit, over_until: None, ..self }
    }
}

/// What one descriptor costs.
fn hits(ask: &DomainAsk, place: usize) -> u64 {
    let own = ask.descriptors.get(place).and_then(|asked| asked.hits);
    own.unwrap_or_else(|| ask.hits.max(1).into())
}

fn has_limiters(subjects: &[Subject<'_>]) -> bool {
    let is_limiter =
        |subject: &Subject<'_>| matches!(subject, Subject::Limited(Limited { how: How::Charge(_), .. }));
    subjects.iter().any(is_limiter)
}

/// What is known before limiters are asked.
fn before(subjects: &[Subject<'_>], findings: &[Option<Finding>]) -> Before {
    let over = |finding: &Option<Finding>| finding.as_ref().map(|finding| finding.over);
    let known = subjects.iter().zip(findings.iter().map(over));
    let is_together = |manner: Manner| manner == Manner::RefuseTogether;
    let has_room = known.clone().any(|(subject, over)| match subject {
        Subject::Limited(limited) if is_together(limited.manner) => over == Some(OverLimit::No),
        subject => subject.keeps_group_open(),
    });
    // One that is to be asked may have room, and then those that refuse together do not.
    let may_have_room = known.clone().any(|(subject, over)| {
        matches!(subject, Subject::Limited(limited) if is_together(limited.manner)) && over.is_none()
    });
    let refused = match may_have_room {
        true => refuses(known.filter(
            |(subject, _)| matches!(subject, Subject::Limited(limited) if limited.manner == Manner::Refuse),
        )),
        false => refuses(known),
    };
    match (refused, has_room) {
        (OverLimit::Yes, _) => Before::Refused,
        (OverLimit::No, true) => Before::RoomTogether,
        (OverLimit::No, false) => Before::Nothing,
    }
}

fn shadow(limited: &Limited<'_>) -> Shadow {
    if limited.manner == Manner::Watch { Shadow::Yes } else { Shadow::No }
}

/// What one of so many processes may let through.
fn share(requests: u32, nodes: u64) -> u32 {
    let part = u64::from(requests) / nodes.max(1);
    u32::try_from(part).unwrap_or(u32::MAX).max(requests.min(1))
}

pub(super) fn away() -> DescriptorFault {
    DescriptorFault::Unavailable("the store that counts is away or late".to_owned())
}

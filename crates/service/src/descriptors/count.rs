//! Counts the hits of a request and compares the counters with the limits that apply.

use super::{
    DecisionError, DescriptorService, DomainRequest, LimitCode,
    active_config::{CountingMethod, LimitMatch, LimitState, MatchedLimit},
    counters::{
        CountPurpose, CountReservation, CountReservations, DescriptorKey, KeyHits, LimitAction,
        LimiterCharge, PriorResult, UnitCount, charge_all,
    },
    metrics::{HitSource, LimitHit, ShadowMode, near_limit},
    settings::{CountingMode, OverLimitCounting},
    verdict::{LimitFinding, decide_overall},
};
use std::time::Duration;
use tidegate_core::{Decision, Micros, header::ceil_seconds};
use tidegate_limiter::FailureMode;
use tidegate_policy::descriptors::CalendarUnit;

impl DescriptorService {
    /// Counts the request. Returns a finding per limited descriptor, and the reservations that can still be cancelled.
    pub(super) async fn count(
        &self,
        request: &DomainRequest,
        subjects: &[LimitMatch<'_>],
        purpose: CountPurpose,
    ) -> Result<(Vec<Option<LimitFinding>>, CountReservations), DecisionError> {
        let mut counted = self.count_units(request, subjects, purpose).await?;
        let mut findings: Vec<Option<LimitFinding>> =
            counted.iter().map(|compared| compared.as_ref().map(|it| it.finding.clone())).collect();
        let mut reserved = Vec::new();
        if has_limiters(subjects) {
            let prior = prior_result(subjects, &findings);
            reserved = self.charge_limiters(request, subjects, (prior, purpose), &mut findings).await?;
        }
        let code = |finding: &Option<LimitFinding>| finding.as_ref().map(|finding| finding.code);
        let overall_code = decide_overall(subjects.iter().zip(findings.iter().map(code)));
        for (compared, finding) in counted.iter_mut().zip(&mut findings) {
            let Some(compared) = compared else { continue };
            let is_over = compared.finding.code == LimitCode::OverLimit;
            let is_reserved = match (purpose, self.settings.counting) {
                (CountPurpose::Count, CountingMode::Reference) => true,
                (CountPurpose::Reserve, _) | (_, CountingMode::Atomic) => {
                    !is_over && overall_code == LimitCode::Ok
                }
            };
            match std::mem::replace(&mut compared.reservation, CountReservation::None) {
                CountReservation::None => {}
                reservation if is_reserved => reserved.push(reservation),
                reservation => reservation.cancel().await,
            }
            if !is_reserved && !is_over {
                let released = std::mem::take(&mut compared.hit.hits);
                compared.hit.after = compared.hit.after.saturating_sub(released);
                if let Some(finding) = finding {
                    finding.remaining = compared.hit.limit.saturating_sub(compared.hit.after);
                }
            }
        }
        self.record_metrics(request, subjects, &counted, purpose);
        Ok((findings, reserved))
    }

    /// Updates the metrics and caches keys that are over their limit.
    fn record_metrics(
        &self,
        request: &DomainRequest,
        subjects: &[LimitMatch<'_>],
        counted: &[Option<ComparedCount>],
        purpose: CountPurpose,
    ) {
        for (subject, compared) in subjects.iter().zip(counted) {
            let (LimitMatch::Limited(limited), Some(compared)) = (subject, compared) else { continue };
            limited.counters.record(compared.hit);
            if let (Some(over), CountingMethod::Count { unit, .. }, Some(ends)) =
                (&self.over_limit_keys, &limited.method, compared.over_until)
                && purpose == CountPurpose::Count
            {
                let key = DescriptorKey { domain: &request.domain, entries: &limited.counted_entries };
                over.insert(key, *unit, compared.hit.limit, (self.settings.clock.now(), ends));
            }
        }
    }

    /// Counts the descriptors whose counter is compared with a number.
    async fn count_units(
        &self,
        request: &DomainRequest,
        subjects: &[LimitMatch<'_>],
        purpose: CountPurpose,
    ) -> Result<Vec<Option<ComparedCount>>, DecisionError> {
        let hits_of = |index: usize| descriptor_hits(request, index);
        let mut compared: Vec<Option<ComparedCount>> = subjects.iter().map(|_| None).collect();
        let (mut indices, mut hits) = (Vec::new(), Vec::new());
        for (index, subject) in subjects.iter().enumerate() {
            let LimitMatch::Limited(limited) = subject else { continue };
            let key = DescriptorKey { domain: &request.domain, entries: &limited.counted_entries };
            match limited.method {
                CountingMethod::Count { requests, unit } => match self.cached_over_limit(key, unit, requests)
                {
                    Some(count) => {
                        let cached = self.compare_count(
                            limited,
                            (requests, unit),
                            hits_of(index),
                            (count, CountReservation::None),
                        );
                        compared[index] = Some(cached.into_cached());
                    }
                    None => {
                        indices.push(index);
                        hits.push(KeyHits { key, unit, hits: hits_of(index) });
                    }
                },
                CountingMethod::Ban { unit } => {
                    let count = UnitCount::Counted { after: hits_of(index), ends: None };
                    compared[index] = Some(self.compare_count(
                        limited,
                        (0, unit),
                        hits_of(index),
                        (count, CountReservation::None),
                    ));
                }
                CountingMethod::Unlimited | CountingMethod::Limiter(_) => {}
            }
        }
        if hits.is_empty() {
            return Ok(compared);
        }
        let is_reference =
            purpose == CountPurpose::Count && self.settings.counting == CountingMode::Reference;
        if is_reference && self.settings.over_limit_counting == OverLimitCounting::CountOverLimit {
            let is_over = compared.iter().flatten().any(|known| known.finding.code == LimitCode::OverLimit);
            let limits = indices.iter().map(|index| subjects.get(*index));
            self.skip_increments(&mut hits, &limits.collect::<Vec<_>>(), is_over).await?;
        }
        let counts: Vec<(UnitCount, CountReservation)> = match is_reference {
            true => self
                .counters
                .count(&hits)
                .await
                .into_iter()
                .map(|count| (count, CountReservation::None))
                .collect(),
            false => self.counters.reserve(&hits).await,
        };
        if counts.iter().any(|(count, _)| *count == UnitCount::FailClosed) || counts.len() != indices.len() {
            return Err(store_unavailable());
        }
        for (index, count) in indices.into_iter().zip(counts) {
            let Some(LimitMatch::Limited(limited)) = subjects.get(index) else { continue };
            let CountingMethod::Count { requests, unit } = limited.method else { continue };
            compared[index] = Some(self.compare_count(limited, (requests, unit), hits_of(index), count));
        }
        Ok(compared)
    }

    /// `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`: if a key of the request is already over its limit, counts no other key; if
    /// keys would go over, counts only those. Looks up the counters first, so a duplicate key is compared with its count
    /// before the request.
    async fn skip_increments(
        &self,
        hits: &mut [KeyHits<'_>],
        subjects: &[Option<&LimitMatch<'_>>],
        is_over: bool,
    ) -> Result<(), DecisionError> {
        if is_over {
            hits.iter_mut().for_each(|hit| hit.hits = 0);
            return Ok(());
        }
        let lookups: Vec<_> = hits.iter().map(|hit| KeyHits { hits: 0, ..*hit }).collect();
        let counts = self.counters.count(&lookups).await;
        if counts.contains(&UnitCount::FailClosed) || counts.len() != hits.len() {
            return Err(store_unavailable());
        }
        let goes_over = |((hit, subject), count): ((&KeyHits<'_>, &Option<&LimitMatch<'_>>), &UnitCount)| {
            let Some(LimitMatch::Limited(MatchedLimit {
                method: CountingMethod::Count { requests, .. },
                ..
            })) = subject
            else {
                return false;
            };
            match (*count, self.settings.outage) {
                (UnitCount::Local { after, .. }, FailureMode::Local { nodes }) => {
                    after.saturating_add(hit.hits) > local_share(*requests, nodes).into()
                }
                (UnitCount::Counted { after, .. } | UnitCount::Local { after, .. }, _) => {
                    after.saturating_add(hit.hits) > (*requests).into()
                }
                (UnitCount::FailOpen | UnitCount::FailClosed, _) => false,
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

    /// Returns a count over the limit if the local cache lists the key as over it.
    fn cached_over_limit(
        &self,
        key: DescriptorKey<'_>,
        unit: CalendarUnit,
        requests: u32,
    ) -> Option<UnitCount> {
        let (over, now) = (self.over_limit_keys.as_ref()?, self.settings.clock.now());
        let ends = over.find(key, unit, requests.into(), now)?;
        Some(UnitCount::Counted { after: u64::MAX, ends: Some(ends.saturating_sub(now).get()) })
    }

    fn compare_count(
        &self,
        limited: &MatchedLimit<'_>,
        declared_limit: (u32, CalendarUnit),
        hits: u64,
        (count, hold): (UnitCount, CountReservation),
    ) -> ComparedCount {
        let (limit, (after, ends)) = match (count, self.settings.outage) {
            (UnitCount::Local { after, ends }, FailureMode::Local { nodes }) => {
                (local_share(declared_limit.0, nodes), (after, ends))
            }
            (UnitCount::Counted { after, ends } | UnitCount::Local { after, ends }, _) => {
                (declared_limit.0, (after, ends))
            }
            (UnitCount::FailOpen | UnitCount::FailClosed, _) => (declared_limit.0, (0, None)),
        };
        let limit = u64::from(limit);
        let code = if after > limit { LimitCode::OverLimit } else { LimitCode::Ok };
        let finding = LimitFinding {
            code,
            declared: declared_limit,
            quota: 0,
            remaining: limit.saturating_sub(after),
            reset: Some(self.window_end(ends.map(Micros::new), declared_limit.1)),
        };
        let over_until = match (count, code) {
            (UnitCount::Counted { ends: Some(ends), .. }, LimitCode::OverLimit) => {
                Some(self.settings.clock.now().saturating_add(Micros::new(ends)))
            }
            _ => None,
        };
        let near = near_limit(limit, self.settings.near_limit_ratio);
        let hit = LimitHit {
            hits,
            after,
            limit,
            near_limit: near,
            shadow: shadow_mode(limited),
            source: HitSource::Counter,
        };
        ComparedCount { finding, hit, reservation: hold, over_until }
    }

    /// Charges the descriptors that limiters decide.
    async fn charge_limiters(
        &self,
        request: &DomainRequest,
        subjects: &[LimitMatch<'_>],
        (prior, purpose): (PriorResult, CountPurpose),
        findings: &mut [Option<LimitFinding>],
    ) -> Result<CountReservations, DecisionError> {
        let mut charges = Vec::new();
        let mut indices = Vec::new();
        for (index, subject) in subjects.iter().enumerate() {
            let LimitMatch::Limited(limited) = subject else { continue };
            let CountingMethod::Limiter(limiter) = &limited.method else { continue };
            let key = DescriptorKey { domain: &request.domain, entries: &limited.counted_entries };
            let token_source = limiter.token_source();
            let limiter = limiter.get().map_err(|error| DecisionError::Unavailable(error.to_string()))?;
            charges.push(LimiterCharge {
                limiter,
                key,
                hits: descriptor_hits(request, index),
                action: limited.action,
                token_source,
            });
            indices.push((index, limited));
        }
        let (decisions, reserved) = charge_all(&charges, prior, purpose).await;
        if decisions.iter().any(Decision::is_fail_closed) {
            return Err(store_unavailable());
        }
        for ((index, limited), decision) in indices.into_iter().zip(decisions) {
            let finding = self.decision_finding(limited, &decision);
            let (hits, limit) = (descriptor_hits(request, index), u64::from(finding.declared.0));
            let after = match finding.code {
                LimitCode::OverLimit => limit.saturating_add(hits),
                LimitCode::Ok => limit.saturating_sub(finding.remaining),
            };
            let near = near_limit(limit, self.settings.near_limit_ratio);
            let shadow = shadow_mode(limited);
            limited.counters.record(LimitHit {
                hits,
                after,
                limit,
                near_limit: near,
                shadow,
                source: HitSource::Counter,
            });
            findings[index] = Some(finding);
        }
        Ok(reserved)
    }

    /// Converts the decision of a limiter.
    fn decision_finding(&self, limited: &MatchedLimit<'_>, decision: &Decision) -> LimitFinding {
        let amounts = limited.state.map(LimitState::amounts).unwrap_or_default();
        let quota = decision.quota().min(amounts.len().saturating_sub(1));
        let declared = amounts.get(quota).copied().unwrap_or((u32::MAX, CalendarUnit::Second));
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
        let code = if decision.is_granted() { LimitCode::Ok } else { LimitCode::OverLimit };
        let remaining =
            if code == LimitCode::OverLimit { 0 } else { decision.remaining().min(declared.0.into()) };
        LimitFinding { code, declared, quota, remaining, reset }
    }

    /// Returns the time until the window ends, in whole seconds and at least one. Uses the local clock if the store did not
    /// report it.
    fn window_end(&self, ends: Option<Micros>, unit: CalendarUnit) -> Duration {
        let length = Micros::from_secs(unit.seconds()).get();
        let ends = ends.unwrap_or_else(|| Micros::new(length - self.settings.clock.now().get() % length));
        Duration::from_secs(ceil_seconds(ends))
    }
}

/// A counter that was compared with its limit.
struct ComparedCount {
    finding: LimitFinding,
    hit: LimitHit,
    /// Can still be cancelled.
    reservation: CountReservation,
    /// The end of the window, if the key is over its limit.
    over_until: Option<Micros>,
}

impl ComparedCount {
    /// The same for a key that the local cache decided.
    fn into_cached(self) -> Self {
        let after = self.hit.limit.saturating_add(self.hit.hits);
        let hit = LimitHit { after, source: HitSource::LocalCache, ..self.hit };
        Self { hit, over_until: None, ..self }
    }
}

/// Returns the hits of one descriptor.
fn descriptor_hits(request: &DomainRequest, index: usize) -> u64 {
    request.descriptors.get(index).map_or(1, |descriptor| request.hits_of(descriptor))
}

fn has_limiters(subjects: &[LimitMatch<'_>]) -> bool {
    let is_limiter = |subject: &LimitMatch<'_>| {
        matches!(subject, LimitMatch::Limited(MatchedLimit { method: CountingMethod::Limiter(_), .. }))
    };
    subjects.iter().any(is_limiter)
}

/// Summarizes the findings before the limiters are charged.
fn prior_result(subjects: &[LimitMatch<'_>], findings: &[Option<LimitFinding>]) -> PriorResult {
    let code = |finding: &Option<LimitFinding>| finding.as_ref().map(|finding| finding.code);
    let known = subjects.iter().zip(findings.iter().map(code));
    let is_group_member = |action: LimitAction| action == LimitAction::DenyWithGroup;
    let has_capacity = known.clone().any(|(subject, over)| match subject {
        LimitMatch::Limited(limited) if is_group_member(limited.action) => over == Some(LimitCode::Ok),
        subject => subject.always_has_capacity(),
    });
    // A limiter that is not charged yet may have capacity, and then the quota group does not deny.
    let may_have_capacity = known.clone().any(|(subject, over)| {
        matches!(subject, LimitMatch::Limited(limited) if is_group_member(limited.action)) && over.is_none()
    });
    let overall_code = match may_have_capacity {
        true => decide_overall(known.filter(
            |(subject, _)| matches!(subject, LimitMatch::Limited(limited) if limited.action == LimitAction::Deny),
        )),
        false => decide_overall(known),
    };
    match (overall_code, has_capacity) {
        (LimitCode::OverLimit, _) => PriorResult::Denied,
        (LimitCode::Ok, true) => PriorResult::GroupAllowed,
        (LimitCode::Ok, false) => PriorResult::Undecided,
    }
}

fn shadow_mode(limited: &MatchedLimit<'_>) -> ShadowMode {
    if limited.action == LimitAction::Shadow { ShadowMode::Enabled } else { ShadowMode::Disabled }
}

/// The share of the limit for one of `nodes` processes.
fn local_share(requests: u32, nodes: u64) -> u32 {
    let part = u64::from(requests) / nodes.max(1);
    u32::try_from(part).unwrap_or(u32::MAX).max(requests.min(1))
}

pub(super) fn store_unavailable() -> DecisionError {
    DecisionError::Unavailable("store unavailable".to_owned())
}

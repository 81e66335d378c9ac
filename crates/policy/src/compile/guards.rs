//! What one rule holds beside its quotas: lists, bans, a breaker, an adaptive limit, bandwidth.

use super::{
    keys::{CLASSES, Keys, Tier, bans_follow, is_always_there, rank},
    rules::Limiting,
};
use crate::{
    credentials::is_in_key,
    matching::{CompiledExpression, Lists, Matcher, table, told},
    model::{self, Access, Adaptive, BreakerTerms, Enforcement, Rule},
};
use std::{fmt, sync::Arc};
use tidegate_access::{AccessControl, AccessList, Bans, Stance};
use tidegate_bandwidth::{Bandwidth, Bandwidths};
use tidegate_core::{Micros, SettingError, Share};
use tidegate_limiter::{Clock, Refused, Slots, Waiter};
use tidegate_overload::{
    AdaptiveLimit, Breaker, BreakerSettings, Guard as _, Pass, PriorityLimit, Rejection, Report,
    adaptive::{Anchored, Bounds},
    priority::{Arrival, Class},
};
use tidegate_rule::{
    KeyQueue, Mode, Queue, is_chosen,
    request::{Head, Key, KeyValue, Missing, TrustedProxies},
    surface::RequestAccess,
};

/// A rule as it is asked.
pub(crate) struct PolicyRule {
    pub(crate) source: Rule,
    pub(crate) matcher: Matcher,
    /// Its place in the gate, if it has quotas.
    pub(crate) limit: Option<usize>,
    pub(crate) limiting: Option<Limiting>,
    /// The expressions of its keys.
    pub(crate) expressions: Vec<Arc<CompiledExpression>>,
    /// What the policy names.
    pub(crate) key: Key,
    /// The same, and what requests without it are counted by.
    pub(crate) counted_by: Key,
    /// What takes one value of a header, a cookie or a parameter: its key, its tiers, its cost, its priority.
    pub(crate) single: Vec<Key>,
    /// Whether its key may hold a credential.
    pub(crate) has_credential: bool,
    pub(crate) proxies: TrustedProxies,
    pub(crate) control: Option<Arc<AccessControl>>,
    pub(crate) door: Option<RequestAccess>,
    pub(crate) breaker: Option<Arc<Breaker>>,
    pub(crate) adaptive: Option<InFlight>,
    pub(crate) class: Option<Arc<Tier>>,
    /// Who may wait, where anybody may.
    pub(crate) queue: Option<Queue>,
    pub(crate) down: Option<Arc<Bandwidths>>,
    pub(crate) up: Option<Arc<Bandwidths>>,
}

/// A permit of a guard, which is reported how the call went.
pub(crate) enum GuardPermit {
    Breaker(Pass<Arc<Breaker>>),
    Adaptive(Pass<Arc<AdaptiveLimit>>),
    Classes(Pass<Arc<PriorityLimit>>),
}

/// As many in flight as the upstream can take.
#[derive(Clone)]
pub(crate) enum InFlight {
    /// The first who comes, or who waits in line: the more important first.
    Line(Arc<AdaptiveLimit>),
    /// Nobody waits, and the less important are shed first.
    Classes(Arc<PriorityLimit>),
}

/// Why a guard did not let a request through.
#[derive(Clone, Copy)]
pub(crate) enum Stopped {
    /// It must not be called.
    Rejected(Rejection),
    /// There is a line to stand in.
    Full,
    /// It stood in line.
    Refused(Refused),
}

impl From<Rejection> for Stopped {
    fn from(rejection: Rejection) -> Self {
        Self::Rejected(rejection)
    }
}

impl GuardPermit {
    pub(crate) fn report(self, report: Report) {
        match self {
            Self::Breaker(pass) => pass.report(report),
            Self::Adaptive(pass) => pass.report(report),
            Self::Classes(pass) => pass.report(report),
        }
    }
}

impl PolicyRule {
    pub(crate) fn name(&self) -> &str {
        &self.source.name
    }

    /// How often an expression of it could not be worked out.
    pub(crate) fn failures(&self) -> u64 {
        let keys = self.expressions.iter().map(|expression| expression.failures());
        keys.fold(self.matcher.failures(), u64::saturating_add)
    }

    pub(crate) fn has_only_quotas(&self) -> bool {
        self.door.is_none() && !self.has_guards() && self.down.is_none() && self.up.is_none()
    }

    pub(crate) fn has_guards(&self) -> bool {
        self.breaker.is_some() || self.adaptive.is_some()
    }

    /// What it does with this request, apart from its quotas.
    pub(crate) fn mode(&self, head: &dyn Head) -> Mode {
        match &self.source.enforcement {
            Enforcement::All(mode) => *mode,
            Enforcement::Part(share) => {
                let is_chosen =
                    self.key_of(head).is_some_and(|key| is_chosen(&self.source.name, &key, *share));
                if is_chosen { Mode::Enforce } else { Mode::Shadow }
            }
        }
    }

    pub(crate) fn key_of<'a>(&self, head: &'a dyn Head) -> Option<KeyValue<'a>> {
        match (self.counted_by.find(head), self.source.missing) {
            (None, Missing::Share | Missing::Address) => Some(KeyValue::All),
            (found, _) => found,
        }
    }

    /// Whether a request has several values where this rule takes one, and is refused for it.
    pub(crate) fn refuses_duplicates(&self, head: &dyn Head) -> bool {
        self.single.iter().any(|key| key.has_duplicates(head)) && self.mode(head) == Mode::Enforce
    }

    /// Whom a ban of this rule is for, by a request; `None` where that is not known.
    pub(crate) fn banned_as(&self, head: &dyn Head) -> Option<String> {
        let door = self.door.as_ref()?;
        let address = || door.who(head).map(|address| address.to_string());
        door.ban_key(head).map(String::from).or_else(address)
    }

    /// The class of a request.
    pub(crate) fn class_of(&self, head: &dyn Head) -> usize {
        self.class.as_ref().map_or(NORMAL, |class| class(head))
    }

    /// Takes leave of all its guards. Who has not got all of them gives back what it has.
    pub(crate) fn pass(&self, class: usize, taken: &mut Vec<GuardPermit>) -> Result<(), Stopped> {
        if let Some(breaker) = &self.breaker {
            taken.push(GuardPermit::Breaker(breaker.try_pass_owned()?));
        }
        match &self.adaptive {
            None => {}
            Some(InFlight::Classes(limit)) => {
                taken.push(GuardPermit::Classes(limit.try_pass_owned(Arrival::of(class))?));
            }
            Some(InFlight::Line(limit)) => match limit.try_pass_owned() {
                Ok(pass) => taken.push(GuardPermit::Adaptive(pass)),
                Err(rejection) if self.source.wait.is_zero() => return Err(rejection.into()),
                Err(_) => return Err(Stopped::Full),
            },
        }
        Ok(())
    }

    /// Where a request of this key waits, if it may.
    pub(crate) fn queue_of(&self, head: &dyn Head) -> Option<KeyQueue> {
        let queue = self.queue.as_ref()?;
        Some(queue.of_key(&self.key_of(head).unwrap_or(KeyValue::All)))
    }

    /// The same, standing in line where there is one.
    pub(crate) async fn pass_in_line(
        &self,
        class: usize,
        queue: Option<&KeyQueue>,
        taken: &mut Vec<GuardPermit>,
    ) -> Result<(), Stopped> {
        if let Some(InFlight::Line(limit)) = self.adaptive.as_ref().filter(|_| !self.source.wait.is_zero()) {
            let pass = match limit.try_pass_owned() {
                Ok(pass) => pass,
                Err(_) => {
                    let _waiting = queue.map(KeyQueue::enter).transpose().map_err(Stopped::Refused)?;
                    let waiter = Waiter::new(1).deadline(self.source.wait).priority(rank(class));
                    limit.pass_owned(waiter).await.map_err(Stopped::Refused)?
                }
            };
            taken.push(GuardPermit::Adaptive(pass));
            // Asked last, so that no probe of it waits.
            if let Some(breaker) = &self.breaker {
                taken.push(GuardPermit::Breaker(breaker.try_pass_owned()?));
            }
            return Ok(());
        }
        self.pass(class, taken)
    }

    /// The byte rates of this request: what it is sent, and what it sends.
    pub(crate) fn bandwidth(&self, head: &dyn Head) -> (Option<Bandwidth>, Option<Bandwidth>) {
        if self.down.is_none() && self.up.is_none() {
            return (None, None);
        }
        let Some(key) = self.key_of(head) else { return (None, None) };
        let of = |rates: &Option<Arc<Bandwidths>>| rates.as_ref().map(|rates| rates.key(&key));
        (of(&self.down), of(&self.up))
    }

    /// Takes over what lists say now.
    pub(crate) fn relist(&self, lists: &Lists) -> Result<(), SettingError> {
        if let (Some(control), Some(access)) = (&self.control, &self.source.access) {
            control.replace(access_list(access, lists)?);
        }
        Ok(())
    }
}

impl fmt::Debug for PolicyRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyRule").field("name", &self.source.name).finish_non_exhaustive()
    }
}

/// How many may wait at once for a rule that does not say, over all keys.
const IN_LINE: u64 = 10_000;

/// The class of requests that have none.
pub(crate) const NORMAL: usize = 2;

/// What a rule holds, made anew or taken over from the rule of this name before.
pub(crate) struct Making<'a> {
    pub(crate) before: Option<&'a PolicyRule>,
    pub(crate) lists: &'a Lists,
    pub(crate) proxies: &'a TrustedProxies,
    pub(crate) clock: Option<&'a Clock>,
    /// To be done when nothing can go wrong any more.
    pub(crate) commits: &'a mut Vec<Box<dyn FnOnce()>>,
}

impl Making<'_> {
    pub(crate) fn rule(
        &mut self,
        source: &Rule,
        matcher: Matcher,
        keys: &Keys<'_>,
    ) -> Result<PolicyRule, SettingError> {
        let control = source.access.as_ref().map(|access| self.control(access)).transpose()?;
        let key = keys.key(&source.key)?;
        let door = control.as_ref().map(|control| {
            let access = RequestAccess::new(control.clone()).behind(self.proxies.clone());
            match bans_follow(&source.key) {
                true => access.ban_by(key.clone()),
                false => access,
            }
        });
        let class = source.priority.as_ref().map(|class| keys.class(class)).transpose()?;
        let rates = source.bandwidth.as_ref();
        let before =
            |of: fn(&PolicyRule) -> &Option<Arc<Bandwidths>>| self.before.and_then(|rule| of(rule).clone());
        let (old_down, old_up) = (before(|rule| &rule.down), before(|rule| &rule.up));
        Ok(PolicyRule {
            source: source.clone(),
            matcher,
            limit: None,
            limiting: None,
            expressions: Vec::new(),
            proxies: self.proxies.clone(),
            counted_by: match source.missing {
                Missing::Address if !is_always_there(&source.key) => key.clone().or(keys.client()),
                _ => key.clone(),
            },
            key,
            single: Vec::new(),
            has_credential: is_in_key(&source.key, keys.user),
            control,
            door,
            breaker: source.breaker.as_ref().map(|terms| self.breaker(terms)).transpose()?,
            adaptive: source.adaptive.as_ref().map(|terms| self.adaptive(terms, source)).transpose()?,
            class,
            queue: (!source.wait.is_zero()).then(|| self.queue(source.queue.as_ref())),
            down: rates.and_then(|rates| rates.down).map(|rate| self.rates(rate, old_down)).transpose()?,
            up: rates.and_then(|rates| rates.up).map(|rate| self.rates(rate, old_up)).transpose()?,
        })
    }

    /// Bans outlive a change of the list.
    fn control(&mut self, access: &Access) -> Result<Arc<AccessControl>, SettingError> {
        let list = access_list(access, self.lists)?;
        let known =
            self.before.filter(|rule| rule.source.access.as_ref().map(|old| &old.ban) == Some(&access.ban));
        if let Some(control) = known.and_then(|rule| rule.control.clone()) {
            let (list, kept) = (list, control.clone());
            self.commits.push(Box::new(move || kept.replace(list)));
            return Ok(control);
        }
        let mut bans = Bans::builder();
        if let Some(rule) = &access.ban {
            bans = bans.automatic(rule.clone());
        }
        if let Some(clock) = self.clock {
            bans = bans.clock(clock.clone());
        }
        let bans = bans.build().map_err(|error| told(&error.to_string(), "give another `ban`"))?;
        Ok(Arc::new(AccessControl::new(list, bans)))
    }

    /// Whoever waits stays in line.
    fn queue(&mut self, said: Option<&model::Queue>) -> Queue {
        let count = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let most = said.map_or(IN_LINE, |queue| queue.most);
        let in_all = said.and_then(|queue| queue.in_all).unwrap_or(most.max(IN_LINE));
        let (most, in_all) = (count(most), count(in_all));
        match self.before.and_then(|rule| rule.queue.clone()) {
            None => Queue::new(most, in_all),
            Some(queue) => {
                let kept = queue.clone();
                self.commits.push(Box::new(move || kept.change(most, in_all)));
                queue
            }
        }
    }

    fn breaker(&self, terms: &BreakerTerms) -> Result<Arc<Breaker>, SettingError> {
        let known = self.before.filter(|rule| rule.source.breaker.as_ref() == Some(terms));
        if let Some(breaker) = known.and_then(|rule| rule.breaker.clone()) {
            return Ok(breaker);
        }
        let settings = breaker_settings(terms)?;
        Ok(Arc::new(match self.clock {
            Some(clock) => Breaker::with_clock(settings, clock.clone()),
            None => Breaker::new(settings),
        }))
    }

    fn adaptive(&self, terms: &Adaptive, source: &Rule) -> Result<InFlight, SettingError> {
        let has_line = !source.wait.is_zero() || source.priority.is_none();
        let known = self.before.filter(|rule| {
            let had_line = matches!(rule.adaptive, Some(InFlight::Line(_)));
            rule.source.adaptive.as_ref() == Some(terms) && had_line == has_line
        });
        if let Some(adaptive) = known.and_then(|rule| rule.adaptive.clone()) {
            return Ok(adaptive);
        }
        let (least, most) = (count(terms.least.unwrap_or(1))?, count(terms.most.unwrap_or(1_000))?);
        let initial = 20.clamp(least.min(most), most.max(least));
        let target = Micros::from(terms.target);
        let controller = Anchored::new(target)?.bounds(Bounds::new(least, initial, most)?);
        if has_line {
            // The queue of the rule says who may wait.
            let mut slots = Slots::builder().waiting_places(usize::MAX);
            if let Some(clock) = self.clock {
                slots = slots.clock(clock.clone());
            }
            return AdaptiveLimit::with_slots(controller, slots).map(Arc::new).map(InFlight::Line);
        }
        let classes: Result<Vec<_>, _> =
            CLASSES.iter().map(|(name, share)| Ok(Class::new(*name, Share::percent(*share)?))).collect();
        let mut builder = PriorityLimit::builder(classes?);
        if let Some(clock) = self.clock {
            builder = builder.clock(clock.clone());
        }
        builder.build_adaptive(controller).map(Arc::new).map(InFlight::Classes)
    }

    fn rates(
        &mut self,
        rate: tidegate_core::Quota,
        before: Option<Arc<Bandwidths>>,
    ) -> Result<Arc<Bandwidths>, SettingError> {
        let mut builder = Bandwidth::builder();
        if let Some(clock) = self.clock {
            builder = builder.clock(clock.clone());
        }
        // Made in any case: what cannot be is found out before anything changes.
        let made = builder.build_by_key(rate);
        let made =
            made.map_err(|error| SettingError::new(format!("bandwidth `{rate}`: {error}"), "write `1MB/s`"))?;
        match before {
            None => Ok(Arc::new(made)),
            Some(before) => {
                let kept = before.clone();
                // What it refused, `made` would have refused, too.
                self.commits.push(Box::new(move || _ = kept.change(rate)));
                Ok(before)
            }
        }
    }
}

fn count(number: u64) -> Result<u32, SettingError> {
    u32::try_from(number)
        .map_err(|_| SettingError::new(format!("{number} in flight"), "give a smaller number"))
}

/// The breaker that terms mean, which upstreams have, too.
pub fn breaker_settings(terms: &BreakerTerms) -> Result<BreakerSettings, SettingError> {
    let mut settings = BreakerSettings::builder();
    if let Some(rate) = terms.failure_rate {
        settings = settings.failure_rate(rate);
    }
    match (terms.slow_rate, terms.slow) {
        (rate, Some(slow)) => settings = settings.slow_calls(rate.unwrap_or(Share::ALL), slow),
        (Some(_), None) => {
            return Err(SettingError::new(
                "a rate of slow calls, and nothing is slow",
                "say from when: `slow: 1s`",
            ));
        }
        (None, None) => {}
    }
    if let Some(calls) = terms.over {
        settings = settings.over_calls(count(calls)?);
    }
    if let Some(calls) = terms.least {
        settings = settings.min_calls(calls);
    }
    if let Some(time) = terms.open {
        settings = settings.open_for(time);
    }
    if let Some(probes) = terms.probes {
        settings = settings.probes(count(probes)?);
    }
    settings.build()
}

fn access_list(access: &Access, lists: &Lists) -> Result<AccessList, SettingError> {
    let deny = lists.entries(&access.deny, Stance::Deny)?;
    let allow = lists.entries(&access.allow, Stance::Allow)?;
    table(deny.into_iter().chain(allow))
}

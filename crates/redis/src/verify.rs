//! The twin check: random traces of every algorithm, decided by the server and by this process side by side.
//!
//! Both are told the same time, so any difference is a mistake: in a twin, in the server, or in what lies between.

use crate::store::RedisStore;
use std::{collections::VecDeque, error, fmt, sync::Arc};
use tidegate_core::{
    Decision, Demand, Effect, Inherit, Kind, LARGEST_EXACT, Micros, Quota, Rate, Receipt, Step,
    algorithm::{
        Concurrency, FixedWindow, LeakyBucket, SlidingLog, SlidingStrict, SlidingWindow, Smooth, TokenBucket,
        WarmUp, WindowStart,
    },
};
use tidegate_engine::{
    StoreError,
    store::{Charged, Choice, Inquiry, Limit, Place, Reply, Request, Slots},
};

/// How much to compare.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Steps over all algorithms.
    pub steps: u64,
    /// The same seed tells the same traces.
    pub seed: u64,
}

/// What was compared, without a difference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// All steps.
    pub steps: u64,
    /// Questions that were answered.
    pub decisions: u64,
    /// Of these, how many went the short way, without receipts.
    pub checks: u64,
    /// Of these, how many were denied.
    pub denied: u64,
    /// Of these, how many were granted after a delay.
    pub delayed: u64,
    /// Charges that were given back.
    pub refunds: u64,
    /// Keys that were forgotten.
    pub resets: u64,
    /// Quotas that were replaced by others.
    pub changes: u64,
    /// Permits that were renewed.
    pub renewals: u64,
    /// Quotas that were tried.
    pub quotas: u64,
}

/// Why a check ended early.
#[derive(Debug)]
#[non_exhaustive]
pub enum VerifyError {
    /// The server decided otherwise.
    Differs(Box<Difference>),
    /// The server did not answer.
    Store(StoreError),
}

/// Two answers to one question.
#[derive(Debug)]
pub struct Difference {
    /// The quotas that applied.
    pub quotas: Vec<Quota>,
    /// The last steps, the one that differs last.
    pub story: Vec<String>,
    /// What this process says.
    pub memory: String,
    /// What the server says.
    pub redis: String,
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(error) => write!(f, "{error}"),
            Self::Differs(difference) => {
                let Difference { quotas, story, memory, redis } = &**difference;
                writeln!(f, "memory and Redis differ under {}", show(quotas))?;
                story.iter().try_for_each(|line| writeln!(f, "  {line}"))?;
                write!(f, "  memory: {memory}\n  redis:  {redis}")
            }
        }
    }
}

impl error::Error for VerifyError {}

/// Keys that are compared at a time.
const SIDE_BY_SIDE: usize = 64;
/// Time has an end; no story gets there.
const LONGEST_PAUSE: Micros = Micros::from_secs(400 * 86_400);
/// Steps of one key before it starts over with other quotas.
const STORY: u64 = 48;

/// Runs random traces against the server and against this process, and removes its keys afterwards. `progress` is told
/// how many steps are done.
pub async fn verify(
    store: &RedisStore,
    plan: Plan,
    mut progress: impl FnMut(u64),
) -> Result<Compared, VerifyError> {
    let mut dice = Dice(plan.seed.wrapping_mul(2).wrapping_add(1));
    let mut done = Compared::default();
    let mut round = 0;
    let outcome = loop {
        if done.steps >= plan.steps {
            break Ok(());
        }
        round += 1;
        let mut pairs: Vec<_> = (0..SIDE_BY_SIDE).map(|index| Pair::new(&mut dice, round, index)).collect();
        done.quotas += pairs.iter().map(|pair| pair.limit.quotas().len() as u64).sum::<u64>();
        let ended = tell(store, &mut pairs, &mut dice, &mut done, &mut progress).await;
        let places: Vec<_> = pairs.iter().map(Pair::place).collect();
        let tags = pairs.iter().flat_map(|pair| pair.tags.iter().map(|tag| (pair.limit.name(), *tag)));
        if let Err(error) = store.remove(&places, tags).await {
            break Err(VerifyError::Store(error));
        }
        if let Err(error) = ended {
            break Err(error);
        }
    };
    outcome.map(|()| done)
}

/// One story for each pair, all at the same times.
async fn tell(
    store: &RedisStore,
    pairs: &mut [Pair],
    dice: &mut Dice,
    done: &mut Compared,
    progress: &mut impl FnMut(u64),
) -> Result<(), VerifyError> {
    let mut now = Micros::new(1_700_000_000_000_000 + dice.below(1_000_000_000));
    for _ in 0..STORY {
        let pause = pairs[dice.below(SIDE_BY_SIDE as u64) as usize].pause(dice, now);
        now = now.plus(pause.min(LONGEST_PAUSE));
        // Plain questions about one quota go a shorter way, if there are no others among them.
        let plainly = dice.one_in(3);
        let mut asked = Vec::new();
        for (index, _) in pairs.iter().enumerate().filter(|(_, pair)| !plainly || pair.is_plain()) {
            // There some keys are asked several times in a row, and some again later.
            let often = if plainly && dice.one_in(3) { 1 + dice.below(4) as usize } else { 1 };
            asked.extend(std::iter::repeat_n(index, often));
            if plainly && index > 0 && dice.one_in(8) {
                asked.extend(asked.get(asked.len() / 2).copied());
            }
        }
        let deeds: Vec<_> = asked.iter().map(|index| pairs[*index].choose(dice, plainly, done)).collect();
        let requests: Vec<_> =
            asked.iter().zip(&deeds).map(|(index, deed)| pairs[*index].request(deed)).collect();
        let replies = store.perform_at(&requests, now).await;
        for ((index, deed), reply) in asked.into_iter().zip(deeds).zip(replies) {
            let reply = reply.map_err(VerifyError::Store)?;
            pairs[index].compare(now, &deed, reply, done).map_err(VerifyError::Differs)?;
            done.steps += 1;
        }
        progress(done.steps);
    }
    Ok(())
}

/// One key in both places.
struct Pair {
    limit: Arc<Limit>,
    /// The quotas that wrote the states, where these are not those of the limit any more.
    before: Option<Arc<Limit>>,
    key: String,
    /// Of all quotas that it ever had.
    tags: Vec<u16>,
    states: Vec<Vec<u64>>,
    outstanding: Vec<Taken>,
    /// What was taken before a reset or a change, and cannot be given back.
    settled: Vec<Taken>,
    last_wait: Micros,
    last_reset: Micros,
    story: VecDeque<String>,
}

/// A charge as both sides know it.
#[derive(Clone)]
struct Taken {
    place: Place,
    charged: Charged,
    receipts: Vec<Receipt>,
}

impl Taken {
    /// Whether it is a slot and nothing else.
    fn is_slot(&self) -> bool {
        matches!(self.place.limit.quotas(), [quota] if is_concurrency(quota))
    }
}

/// What one step does.
enum Deed {
    Check(u64),
    Decide(Demand),
    TakeUpTo(u64),
    Refund(Taken, u64),
    RefundSettled(Taken),
    Reset,
    Renew(Taken),
}

impl Pair {
    fn new(dice: &mut Dice, round: u64, index: usize) -> Self {
        let count = if dice.one_in(5) { 1 + dice.below(3) as usize } else { 1 };
        // Often several levels together, which go the shorter way.
        let kind = dice.one_in(2).then_some(0);
        let quotas: Vec<_> = (0..count).map(|_| dice.quota(kind.filter(|_| count > 1))).collect();
        // A rule of its own: two quotas in a few tens of thousands have the same tag.
        let name = format!("verify-{round}-{index}");
        let limit = Limit::new(&name, quotas, Choice::All, Inherit::Additive);
        let states = limit.quotas().iter().map(|quota| vec![0; quota.width()]).collect();
        let tags = limit.tags().to_vec();
        let story = VecDeque::from([format!("start with {}", show(limit.quotas()))]);
        Self {
            limit: Arc::new(limit),
            before: None,
            tags,
            key: format!("{:x}-{round}-{index}", dice.next()),
            states,
            outstanding: Vec::new(),
            settled: Vec::new(),
            last_wait: Micros::ZERO,
            last_reset: Micros::ZERO,
            story,
        }
    }

    fn place(&self) -> Place {
        Place { limit: self.limit.clone(), key: self.key.clone(), tier: 0 }
    }

    /// A time until the next step that is worth a look.
    fn pause(&self, dice: &mut Dice, now: Micros) -> Micros {
        let quota = &self.limit.quotas()[0];
        let period = quota.rate().map_or(Micros::from_secs(1), Rate::period);
        match dice.below(10) {
            0..=2 => Micros::ZERO,
            3 => Micros::new(1),
            4 => Micros::new(period.get() * dice.below(13) / 12),
            5 => self.last_wait,
            6 => self.last_wait.since(Micros::new(1)),
            7 => Micros::new(period.get() - now.get() % period.get().max(1)),
            8 => self.last_reset,
            _ => Micros::new(dice.below(period.get().max(1)) / 10),
        }
    }

    fn is_plain(&self) -> bool {
        let is_level = |quota: &Quota| matches!(quota.kind(), Kind::TokenBucket(_) | Kind::LeakyBucket(_));
        self.limit.quotas().iter().all(is_level)
    }

    fn choose(&mut self, dice: &mut Dice, plainly: bool, done: &mut Compared) -> Deed {
        if dice.one_in(24) && !plainly {
            self.change(dice);
            done.changes += 1;
        }
        let limit = self.limit.quotas().iter().map(Quota::limit).min().unwrap_or(1);
        let cost = match dice.below(8) {
            0..=3 => 1,
            4 => 1 + dice.below(3),
            5 => 1 + dice.below(limit),
            6 => limit,
            _ => limit.saturating_add(1 + dice.below(3)),
        };
        let patience = match dice.below(3) {
            0 => Micros::new(dice.below(2_000_000)),
            1 => self.last_wait,
            _ => Micros::MAX,
        };
        if plainly {
            return Deed::Check(cost);
        }
        match dice.below(20) {
            9 | 10 => Deed::Decide(Demand::within(cost, patience)),
            11 => Deed::Decide(Demand::within(cost, patience).on_credit()),
            12 => Deed::Decide(Demand::forced(cost)),
            13 => Deed::Decide(Demand::probe(dice.below(cost + 1))),
            14 => Deed::TakeUpTo(cost),
            15 if !self.settled.is_empty() => {
                Deed::RefundSettled(self.settled.swap_remove(dice.below(self.settled.len() as u64) as usize))
            }
            15..=17 if !self.outstanding.is_empty() => {
                let which = dice.below(self.outstanding.len() as u64) as usize;
                let taken = self.outstanding.swap_remove(which);
                let most = taken.receipts.iter().map(|receipt| receipt.cost).max().unwrap_or(1);
                Deed::Refund(taken, if dice.one_in(3) { most } else { 1 + dice.below(most) })
            }
            18 if self.outstanding.iter().any(Taken::is_slot) => {
                let which = self.outstanding.iter().position(Taken::is_slot).unwrap_or_default();
                Deed::Renew(self.outstanding.swap_remove(which))
            }
            19 if dice.one_in(3) => Deed::Reset,
            _ => Deed::Decide(Demand::now(cost)),
        }
    }

    /// Goes on under other quotas, mostly of the same algorithms.
    fn change(&mut self, dice: &mut Dice) {
        let how = [Inherit::Additive, Inherit::AsIs, Inherit::Proportionally, Inherit::Reset];
        let how = how[dice.below(4) as usize];
        let kind = |quota: &Quota| quota.kind().index() as u64;
        let quotas: Vec<_> = self
            .limit
            .quotas()
            .iter()
            .map(|old| {
                let same = (!dice.one_in(6)).then(|| kind(old));
                // Tags are short: two quotas in a few tens of thousands have the same one.
                loop {
                    let quota = dice.quota(same);
                    if !self.tags.contains(&quota.tag()) {
                        return quota;
                    }
                }
            })
            .collect();
        self.tags.extend(quotas.iter().map(Quota::tag));
        self.note(format!("change to {}, {how:?}", show(&quotas)));
        let limit = Arc::new(Limit::new(self.limit.name(), quotas, Choice::All, how));
        let old = std::mem::replace(&mut self.limit, limit);
        self.before.get_or_insert(old);
    }

    /// What is outstanding cannot be given back any more.
    fn settle(&mut self) {
        self.settled.append(&mut self.outstanding);
        self.settled.truncate(4);
    }

    fn note(&mut self, line: String) {
        self.story.push_back(line);
        if self.story.len() > 60 {
            self.story.pop_front();
        }
    }

    fn request(&self, deed: &Deed) -> Request {
        let place = self.place();
        let slots = Slots::Take;
        match deed {
            Deed::Check(cost) => {
                let (demand, slots) = (Demand::now(*cost), Slots::Look);
                Request::Decide(vec![Inquiry { place, demand, slots, receipt: false }])
            }
            Deed::Decide(demand) => {
                Request::Decide(vec![Inquiry { place, demand: *demand, slots, receipt: true }])
            }
            Deed::TakeUpTo(most) => {
                Request::TakeUpTo(Inquiry { place, demand: Demand::now(*most), slots, receipt: true })
            }
            Deed::Refund(taken, cost) => {
                Request::Refund { place: taken.place.clone(), charge: taken.charged.clone(), cost: *cost }
            }
            Deed::RefundSettled(taken) => {
                let cost = taken.receipts.iter().map(|receipt| receipt.cost).max().unwrap_or(1);
                Request::Refund { place: taken.place.clone(), charge: taken.charged.clone(), cost }
            }
            Deed::Reset => Request::Reset(place),
            Deed::Renew(taken) => Request::Renew { place: taken.place.clone(), receipt: taken.receipts[0] },
        }
    }
}

/// What both sides make of a step.
impl Pair {
    /// Does the step in this process, and compares.
    fn compare(
        &mut self,
        now: Micros,
        deed: &Deed,
        reply: Reply,
        done: &mut Compared,
    ) -> Result<(), Box<Difference>> {
        if matches!(deed, Deed::Check(_) | Deed::Decide(_) | Deed::TakeUpTo(_)) {
            self.carry_over(now);
        }
        match (deed, reply) {
            (Deed::Check(cost), Reply::Decided(answers)) => {
                self.note(format!("at {}us check {cost}", now.get()));
                let mut steps = self.decide(now, Demand::now(*cost));
                // Nobody asked for receipts.
                steps.iter_mut().for_each(|step| step.receipt = Receipt::default());
                done.checks += 1;
                self.decided(&steps, &answers[0], done)
            }
            (Deed::Decide(demand), Reply::Decided(answers)) => {
                self.note(format!("at {}us {demand:?}", now.get()));
                let steps = self.decide(now, *demand);
                self.decided(&steps, &answers[0], done)
            }
            (Deed::TakeUpTo(most), Reply::Decided(answers)) => {
                self.note(format!("at {}us up to {most}", now.get()));
                let steps = self.take_up_to(now, *most);
                self.decided(&steps, &answers[0], done)
            }
            (Deed::Refund(taken, cost), Reply::Done) => {
                self.note(format!("at {}us refund {cost} of {:?}", now.get(), taken.charged));
                self.refund(now, taken, *cost, |_| true);
                done.refunds += 1;
                Ok(())
            }
            (Deed::RefundSettled(taken), Reply::Done) => {
                self.note(format!("at {}us refund settled {:?}", now.get(), taken.charged));
                self.refund(now, taken, u64::MAX, |slot| slot);
                Ok(())
            }
            (Deed::Reset, Reply::Done) => {
                self.note(format!("at {}us reset", now.get()));
                let writer = self.before.clone().unwrap_or_else(|| self.limit.clone());
                for (quota, words) in writer.quotas().iter().zip(&mut self.states) {
                    if !is_concurrency(quota) {
                        words.fill(0);
                    }
                }
                self.settle();
                done.resets += 1;
                Ok(())
            }
            (Deed::Renew(taken), Reply::Renewed(redis)) => {
                self.note(format!("at {}us renew {:?}", now.get(), taken.receipts));
                let quota = self.before.as_ref().unwrap_or(&self.limit).quotas()[0];
                let renew = |words: &mut Vec<u64>| quota.renew(words.as_mut_slice(), now, taken.receipts[0]);
                let memory = if is_concurrency(&quota) { renew(&mut self.states[0]) } else { None };
                done.renewals += 1;
                if memory != redis {
                    return Err(self.difference(&memory, &redis));
                }
                if let Some(receipt) = memory {
                    let charged = Charged { receipts: vec![receipt], ..taken.charged.clone() };
                    self.outstanding.push(Taken {
                        charged,
                        receipts: vec![receipt],
                        place: taken.place.clone(),
                    });
                }
                Ok(())
            }
            (_, reply) => Err(self.difference(&"an answer of its kind", &reply)),
        }
    }

    /// Turns the states of earlier quotas into states of the current ones.
    fn carry_over(&mut self, now: Micros) {
        let Some(before) = self.before.take() else { return };
        self.settle();
        let pairs = self.limit.quotas().iter().zip(before.quotas());
        for ((new, old), words) in pairs.zip(&mut self.states) {
            let look = old.decide(words.as_mut_slice(), now, Demand::probe(0)).decision;
            if look.reset_after() == Micros::ZERO {
                *words = vec![0; new.width()];
                continue;
            }
            words.resize(old.width().max(new.width()), 0);
            new.inherit(old, words.as_mut_slice(), now, self.limit.inherit());
            words.truncate(new.width());
        }
    }

    fn each(&mut self, now: Micros, demand: Demand) -> Vec<Step> {
        let states = self.limit.quotas().iter().zip(&mut self.states);
        states.map(|(quota, words)| quota.decide(words.as_mut_slice(), now, demand)).collect()
    }

    /// All are charged or none.
    fn decide(&mut self, now: Micros, demand: Demand) -> Vec<Step> {
        if self.states.len() > 1 && demand.effect == Effect::Charge {
            let looks = self.each(now, Demand { effect: Effect::Probe, ..demand });
            if !looks.iter().all(|step| step.decision.is_granted()) {
                return looks;
            }
        }
        self.each(now, demand)
    }

    fn take_up_to(&mut self, now: Micros, most: u64) -> Vec<Step> {
        let looks = self.each(now, Demand::probe(1));
        if !looks.iter().all(|step| step.decision.is_allowed()) {
            return looks;
        }
        let least = looks.iter().map(|step| step.decision.remaining().max(1)).min().unwrap_or(1);
        self.decide(now, Demand::now(least.min(most)))
    }

    /// Gives back what was taken from those quotas that `counts` says yes to, told whether it is a slot.
    fn refund(&mut self, now: Micros, taken: &Taken, cost: u64, counts: impl Fn(bool) -> bool) {
        let writer = self.before.clone().unwrap_or_else(|| self.limit.clone());
        let states = writer.quotas().iter().zip(&mut self.states);
        for (((quota, words), receipt), taker) in states.zip(&taken.receipts).zip(taken.place.limit.quotas())
        {
            let is_slot = is_concurrency(quota) && is_concurrency(taker);
            if receipt.cost > 0 && counts(is_slot) {
                quota.refund(words.as_mut_slice(), now, *receipt, cost);
            }
        }
    }

    fn decided(
        &mut self,
        steps: &[Step],
        answer: &tidegate_engine::store::Answer,
        done: &mut Compared,
    ) -> Result<(), Box<Difference>> {
        for (memory, redis) in steps.iter().zip(&answer.steps) {
            if memory != redis {
                return Err(self.difference(memory, redis));
            }
        }
        done.decisions += 1;
        let decisions: Vec<&Decision> = steps.iter().map(|step| &step.decision).collect();
        let granted = decisions.iter().all(|decision| decision.is_granted());
        done.denied += u64::from(!granted);
        done.delayed += u64::from(granted && decisions.iter().any(|decision| !decision.is_allowed()));
        self.last_wait = decisions.iter().map(|decision| decision.wait()).max().unwrap_or_default();
        self.last_reset = decisions.iter().map(|decision| decision.reset_after()).max().unwrap_or_default();
        let receipts: Vec<_> = steps.iter().map(|step| step.receipt).collect();
        if receipts.iter().any(|receipt| receipt.cost > 0) {
            self.outstanding.push(Taken { place: self.place(), charged: answer.charged(), receipts });
        }
        Ok(())
    }

    fn difference(&self, memory: &dyn fmt::Debug, redis: &dyn fmt::Debug) -> Box<Difference> {
        Box::new(Difference {
            quotas: self.limit.quotas().to_vec(),
            story: self.story.iter().cloned().collect(),
            memory: format!("{memory:?}"),
            redis: format!("{redis:?}"),
        })
    }
}

fn show(quotas: &[Quota]) -> String {
    let quotas: Vec<_> = quotas.iter().map(|quota| format!("`{quota}`")).collect();
    quotas.join(" and ")
}

fn is_concurrency(quota: &Quota) -> bool {
    matches!(quota.kind(), Kind::Concurrency(_))
}

/// Chance that can be repeated: xorshift64*.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    fn among(&mut self, values: &[u64]) -> u64 {
        values[self.below(values.len() as u64) as usize]
    }

    fn rate(&mut self) -> Rate {
        let amounts = [1, 2, 3, 5, 7, 10, 60, 100, 1_000, 65_537, 999_983, 1_500_000, 12_500_000_000];
        let periods = [
            7,
            60,
            1_000,
            33_333,
            100_000,
            1_000_000,
            10_000_000,
            60_000_000,
            3_600_000_000,
            86_400_000_000,
            604_800_000_000,
        ];
        Rate::new(self.among(&amounts), Micros::new(self.among(&periods)))
    }

    /// A quota of the algorithm with this place in [`Kind::names`], or of any.
    fn quota(&mut self, kind: Option<u64>) -> Quota {
        let names = Kind::names().count() as u64;
        loop {
            let kind = kind.unwrap_or_else(|| self.below(names));
            let rate = self.rate();
            let some = self.among(&[1, 2, 3, 5, 10, 100, 1_000, 1_000_000]);
            let few = 1 + self.below(40);
            let made = match kind {
                0 => TokenBucket::new(rate, some).map(Kind::TokenBucket),
                1 => LeakyBucket::new(rate, some, self.below(some + 1)).map(Kind::LeakyBucket),
                2 if self.one_in(2) => FixedWindow::new(rate, WindowStart::FirstHit).map(Kind::FixedWindow),
                2 if self.one_in(2) => FixedWindow::new(rate, WindowStart::Epoch).map(Kind::FixedWindow),
                2 => FixedWindow::new(rate, WindowStart::Calendar).map(Kind::FixedWindow),
                3 => SlidingWindow::new(rate).map(Kind::SlidingWindow),
                4 => SlidingStrict::new(rate, few).map(Kind::SlidingStrict),
                5 => SlidingLog::new(Rate::new(few, rate.period())).map(Kind::SlidingLog),
                6 if self.one_in(2) => Smooth::with_burst(rate, some).map(Kind::Smooth),
                6 => Smooth::new(rate).map(Kind::Smooth),
                7 => {
                    let warm_up = Micros::new(self.among(&[1_000, 500_000, 4_000_000, 60_000_000]));
                    WarmUp::new(rate, warm_up, 1.0 + self.below(50) as f64 / 10.0).map(Kind::WarmUp)
                }
                _ => Concurrency::with_lease(few, rate.period()).map(Kind::Concurrency),
            };
            // A cost that no double holds exactly is beyond what both can agree on.
            if let Some(kind) = made.ok().filter(|kind| kind.limit() < LARGEST_EXACT / 4) {
                return kind.into();
            }
        }
    }
}

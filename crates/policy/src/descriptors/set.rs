//! All domains.

use super::{
    Amount, DescriptorError, DescriptorLimit, Domain, RawDescriptor, RawDomain, RawLimit, Unit, read,
    tree::{Added, push},
};
use foldhash::fast::RandomState;
use std::{collections::HashMap, sync::Arc, time::Duration};
use tidegate_core::Quota;

/// All domains, read from files of the form that envoyproxy/ratelimit reads.
///
/// ```
/// use tidegate_policy::descriptors::{DescriptorFile, DescriptorSet, Entry, Merge};
///
/// let text = "
/// domain: shop
/// descriptors:
///   - key: user
///     rate_limit: { unit: minute, requests_per_unit: 100 }
///   - key: path
///     value: /search*
///     descriptors:
///       - key: user
///         rate_limit: { quotas: [5/s burst 20, 1000/h sliding-window] }
/// ";
/// let file = DescriptorFile { name: "shop.yaml".to_owned(), text: text.to_owned() };
/// let set = DescriptorSet::read(&[file], Merge::Refuse)?;
/// let entry = |key: &str, value: &str| Entry { key: key.to_owned(), value: value.to_owned() };
/// let descriptor = [entry("path", "/search/all"), entry("user", "alice")];
/// let found = set.domain("shop").and_then(|domain| domain.find(&descriptor)).unwrap();
/// assert_eq!(&*found.limit.place, "shop.path_/search*.user");
/// # Ok::<(), tidegate_policy::descriptors::DescriptorError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct DescriptorSet {
    domains: Vec<Domain>,
    by_name: HashMap<Box<str>, usize, RandomState>,
}

/// A file of descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescriptorFile {
    /// What errors call it.
    pub name: String,
    /// What it says.
    pub text: String,
}

/// What becomes of a domain that several files speak of (`MERGE_DOMAIN_CONFIG`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Merge {
    /// It is an error.
    #[default]
    Refuse,
    /// What one says is added to what the others say.
    Join,
}

/// A tree that is deeper is a mistake, or is meant to overflow a stack.
pub(super) const DEEPEST: usize = 32;

/// What the names of all places may take, in bytes: each has those above it in it, so a long one far above many would unfold.
const MOST_NAMES: usize = 64 * 1024 * 1024;

impl DescriptorSet {
    /// Reads files: all of them, or the first error.
    pub fn read(files: &[DescriptorFile], merge: Merge) -> Result<Self, DescriptorError> {
        let mut domains = Vec::new();
        for file in files {
            domains.extend(read::domains(file)?);
        }
        Self::build(domains, merge)
    }

    /// Takes what was said, if nothing is wrong with it.
    pub fn build<T: AsRef<str>>(
        domains: impl IntoIterator<Item = RawDomain<T>>,
        merge: Merge,
    ) -> Result<Self, DescriptorError> {
        let mut builder = Builder { set: Self::default(), names: 0 };
        for domain in domains {
            builder.take(&domain, merge)?;
        }
        Ok(builder.set)
    }

    /// The domain of this name.
    pub fn domain(&self, name: &str) -> Option<&Domain> {
        self.domains.get(*self.by_name.get(name)?)
    }

    /// All of them, in the order of the files.
    pub fn domains(&self) -> impl Iterator<Item = &Domain> {
        self.domains.iter()
    }

    /// All limits, in the order of the files.
    pub fn limits(&self) -> impl Iterator<Item = &Arc<DescriptorLimit>> {
        self.domains.iter().flat_map(Domain::limits)
    }

    /// A line for each limit, as `/rlconfig` shows them.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.limits().map(|limit| {
            let amount = match &limit.amount {
                Amount::Unlimited => "unit=UNKNOWN requests_per_unit=0".to_owned(),
                Amount::PerUnit { requests, unit } => format!("unit={unit} requests_per_unit={requests}"),
                Amount::Quotas(quotas) => {
                    let quotas: Vec<_> = quotas.iter().map(ToString::to_string).collect();
                    format!("quotas=[{}]", quotas.join("; "))
                }
            };
            let flags = limit.flags;
            format!(
                "{}: {amount}, shadow_mode: {}, quota_mode: {}",
                limit.place, flags.shadow_mode, flags.quota_mode
            )
        })
    }
}

struct Builder {
    set: DescriptorSet,
    names: usize,
}

/// What is being added to.
struct Spot<'a> {
    source: &'a str,
    domain: usize,
    parent: usize,
    depth: usize,
}

impl Builder {
    fn take<T: AsRef<str>>(&mut self, raw: &RawDomain<T>, merge: Merge) -> Result<(), DescriptorError> {
        let (source, name) = (raw.source.as_ref(), raw.domain.as_ref());
        if name.is_empty() {
            return Err(DescriptorError::new(source, "config file cannot have empty domain"));
        }
        let domain = match (self.set.by_name.get(name), merge) {
            (Some(_), Merge::Refuse) => {
                let problem = format!("duplicate domain '{name}' in config file");
                return Err(DescriptorError::new(source, problem));
            }
            (Some(domain), Merge::Join) => *domain,
            (None, _) => {
                self.set.domains.push(Domain::new(name));
                let domain = self.set.domains.len() - 1;
                self.set.by_name.insert(name.into(), domain);
                domain
            }
        };
        let mut place = name.to_owned();
        let spot = Spot { source, domain, parent: Domain::ROOT, depth: 0 };
        self.add_all(&spot, &mut place, &raw.descriptors)
    }

    /// Adds descriptors below a place, of which `place` is the name.
    fn add_all<T: AsRef<str>>(
        &mut self,
        spot: &Spot<'_>,
        place: &mut String,
        descriptors: &[RawDescriptor<T>],
    ) -> Result<(), DescriptorError> {
        let error = |problem: String| DescriptorError::new(spot.source, problem);
        if spot.depth >= DEEPEST && !descriptors.is_empty() {
            return Err(error(format!("descriptors are more than {DEEPEST} levels deep; use fewer")));
        }
        let length = place.len();
        for raw in descriptors {
            let (key, value, flags) = (raw.key.as_ref(), raw.value.as_ref(), raw.flags);
            if key.is_empty() {
                return Err(error("descriptor has empty key".to_owned()));
            }
            push(place, key, value);
            self.names += place.len();
            if self.names > MOST_NAMES {
                let problem =
                    "the names of all descriptors take more than 64 MiB; use shorter keys and values";
                return Err(error(problem.to_owned()));
            }
            let Some(domain) = self.set.domains.get_mut(spot.domain) else { return Ok(()) };
            let id = match domain.add(spot.parent, key, value, flags) {
                Added::New(id) => id,
                Added::Twice => {
                    return Err(error(format!("duplicate descriptor composite key '{place}'")));
                }
            };
            if let Some(limit) = &raw.rate_limit {
                domain.put(id, Arc::new(checked(limit, place, raw).map_err(&error)?));
            }
            let composite = place.get(length + 1..).unwrap_or_default();
            if flags.share_threshold && !composite.contains('*') {
                return Err(error(format!(
                    "share_threshold can only be used with wildcard values (containing '*'), but found key '{composite}'"
                )));
            }
            let below = Spot { parent: id, depth: spot.depth + 1, ..*spot };
            self.add_all(&below, place, &raw.descriptors)?;
            place.truncate(length);
        }
        Ok(())
    }
}

/// What a limit of a descriptor says, which stands at this place.
fn checked<T: AsRef<str>>(
    limit: &RawLimit<T>,
    place: &str,
    descriptor: &RawDescriptor<T>,
) -> Result<DescriptorLimit, String> {
    let amount = amount(limit)?;
    let name = limit.name.as_ref();
    for replaced in limit.replaces.iter().map(AsRef::as_ref) {
        if replaced.is_empty() {
            return Err("should not have an empty replaces entry".to_owned());
        }
        if replaced == name {
            return Err("replaces should not contain name of same descriptor".to_owned());
        }
    }
    Ok(DescriptorLimit {
        place: place.into(),
        lease: lease(limit)?,
        amount,
        name: (!name.is_empty()).then(|| name.into()),
        replaces: limit.replaces.iter().map(|replaced| replaced.as_ref().to_owned()).collect(),
        flags: descriptor.flags,
        metadata: descriptor.metadata.clone().map(Arc::new),
    })
}

fn amount<T: AsRef<str>>(raw: &RawLimit<T>) -> Result<Amount, String> {
    let said = raw.unit.as_ref();
    let unit = Unit::of_name(said);
    if !raw.quotas.is_empty() {
        if raw.unlimited {
            return Err("should not specify quotas when unlimited".to_owned());
        }
        if !said.is_empty() || raw.requests_per_unit.is_some() {
            return Err(
                "should not specify quotas besides unit and requests_per_unit; leave either out".to_owned()
            );
        }
        let quotas: Result<_, _> = raw.quotas.iter().map(|text| quota(text.as_ref())).collect();
        return Ok(Amount::Quotas(quotas?));
    }
    match (raw.unlimited, unit) {
        (true, Some(_)) => Err("should not specify rate limit unit when unlimited".to_owned()),
        (true, None) => Ok(Amount::Unlimited),
        (false, Some(unit)) => {
            Ok(Amount::PerUnit { requests: raw.requests_per_unit.unwrap_or_default(), unit })
        }
        (false, None) => Err(format!("invalid rate limit unit '{said}'")),
    }
}

/// How long tokens may lie elsewhere than in the store.
fn lease<T: AsRef<str>>(raw: &RawLimit<T>) -> Result<Option<Duration>, String> {
    let said = raw.lease.as_ref();
    if said.is_empty() {
        return Ok(None);
    }
    if raw.quotas.is_empty() {
        return Err("should not specify lease without quotas; use quotas such as [100/min]".to_owned());
    }
    // A time is written as the period of a quota.
    let is_time = said.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let quota: Option<Quota> = format!("1 per {said}").parse().ok().filter(|_| is_time);
    let time = quota.and_then(|quota| Some(Duration::from(quota.rate()?.period())));
    match time.filter(|time| LEASES.contains(time)) {
        Some(time) => Ok(Some(time)),
        None => Err(format!("invalid lease '{said}'; use a time from 2ms to 1min, such as '200ms'")),
    }
}

const LEASES: std::ops::RangeInclusive<Duration> = Duration::from_millis(2)..=Duration::from_secs(60);

fn quota(text: &str) -> Result<Quota, String> {
    let quota: Quota = text.parse().map_err(|error: tidegate_core::QuotaError| {
        format!("invalid quota '{text}': {}; {}", error.problem(), error.fix())
    })?;
    match quota.rate() {
        Some(_) => Ok(quota),
        // Nobody tells when a request of a descriptor has ended.
        None => {
            Err(format!("invalid quota '{text}': descriptors are counted by rate; use one such as '100/min'"))
        }
    }
}

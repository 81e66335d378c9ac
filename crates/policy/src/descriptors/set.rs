//! All domains.

use super::{
    CalendarUnit, DescriptorAmount, DescriptorError, DescriptorLimit, Domain, RawDescriptor, RawDomain,
    RawLimit, read,
    tree::{AddResult, push_step},
};
use foldhash::fast::RandomState;
use std::{collections::HashMap, sync::Arc, time::Duration};
use tidegate_core::Quota;

/// All domains, read from files of the form that envoyproxy/ratelimit reads.
///
/// ```
/// use tidegate_policy::descriptors::{DescriptorEntry, DescriptorFile, DescriptorSet, DomainMerge};
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
/// let set = DescriptorSet::read(&[file], DomainMerge::Reject)?;
/// let entry = |key: &str, value: &str| DescriptorEntry { key: key.to_owned(), value: value.to_owned() };
/// let descriptor = [entry("path", "/search/all"), entry("user", "alice")];
/// let found = set.domain("shop").and_then(|domain| domain.find(&descriptor)).unwrap();
/// assert_eq!(&*found.limit.path, "shop.path_/search*.user");
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
pub enum DomainMerge {
    /// It is an error.
    #[default]
    Reject,
    /// What one says is added to what the others say.
    Combine,
}

/// A tree that is deeper is a mistake, or is meant to overflow a stack.
pub(super) const MAX_DESCRIPTOR_DEPTH: usize = 32;

/// What the names of all places may take, in bytes: each has those above it in it, so a long one far above many would unfold.
const MAX_NAME_BYTES: usize = 64 * 1024 * 1024;

impl DescriptorSet {
    /// Reads files: all of them, or the first error.
    pub fn read(files: &[DescriptorFile], merge: DomainMerge) -> Result<Self, DescriptorError> {
        let mut domains = Vec::new();
        for file in files {
            domains.extend(read::read_domains(file)?);
        }
        Self::build(domains, merge)
    }

    /// Takes what was said, if nothing is wrong with it.
    pub fn build<T: AsRef<str>>(
        domains: impl IntoIterator<Item = RawDomain<T>>,
        merge: DomainMerge,
    ) -> Result<Self, DescriptorError> {
        let mut builder = DescriptorSetBuilder { set: Self::default(), name_bytes: 0 };
        for domain in domains {
            builder.add_domain(&domain, merge)?;
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
    pub fn config_lines(&self) -> impl Iterator<Item = String> {
        self.limits().map(|limit| {
            let amount = match &limit.amount {
                DescriptorAmount::Unlimited => "unit=UNKNOWN requests_per_unit=0".to_owned(),
                DescriptorAmount::PerUnit { requests, unit } => {
                    format!("unit={unit} requests_per_unit={requests}")
                }
                DescriptorAmount::Quotas(quotas) => {
                    let quotas: Vec<_> = quotas.iter().map(ToString::to_string).collect();
                    format!("quotas=[{}]", quotas.join("; "))
                }
            };
            let flags = limit.flags;
            format!(
                "{}: {amount}, shadow_mode: {}, quota_mode: {}",
                limit.path, flags.shadow_mode, flags.quota_mode
            )
        })
    }
}

struct DescriptorSetBuilder {
    set: DescriptorSet,
    name_bytes: usize,
}

/// What is being added to.
struct InsertPoint<'a> {
    source: &'a str,
    domain: usize,
    parent: usize,
    depth: usize,
}

impl DescriptorSetBuilder {
    fn add_domain<T: AsRef<str>>(
        &mut self,
        raw: &RawDomain<T>,
        merge: DomainMerge,
    ) -> Result<(), DescriptorError> {
        let (source, name) = (raw.source.as_ref(), raw.domain.as_ref());
        if name.is_empty() {
            return Err(DescriptorError::new(source, "config file cannot have empty domain"));
        }
        let domain = match (self.set.by_name.get(name), merge) {
            (Some(_), DomainMerge::Reject) => {
                let problem = format!("duplicate domain '{name}' in config file");
                return Err(DescriptorError::new(source, problem));
            }
            (Some(domain), DomainMerge::Combine) => *domain,
            (None, _) => {
                self.set.domains.push(Domain::new(name));
                let domain = self.set.domains.len() - 1;
                self.set.by_name.insert(name.into(), domain);
                domain
            }
        };
        let mut place = name.to_owned();
        let spot = InsertPoint { source, domain, parent: Domain::ROOT, depth: 0 };
        self.add_descriptors(&spot, &mut place, &raw.descriptors)
    }

    /// Adds descriptors below a place, of which `place` is the name.
    fn add_descriptors<T: AsRef<str>>(
        &mut self,
        spot: &InsertPoint<'_>,
        place: &mut String,
        descriptors: &[RawDescriptor<T>],
    ) -> Result<(), DescriptorError> {
        let error = |problem: String| DescriptorError::new(spot.source, problem);
        if spot.depth >= MAX_DESCRIPTOR_DEPTH && !descriptors.is_empty() {
            return Err(error(format!(
                "descriptors are more than {MAX_DESCRIPTOR_DEPTH} levels deep; use fewer"
            )));
        }
        let length = place.len();
        for raw in descriptors {
            let (key, value, flags) = (raw.key.as_ref(), raw.value.as_ref(), raw.flags);
            if key.is_empty() {
                return Err(error("descriptor has empty key".to_owned()));
            }
            push_step(place, key, value);
            self.name_bytes += place.len();
            if self.name_bytes > MAX_NAME_BYTES {
                let problem =
                    "the names of all descriptors take more than 64 MiB; use shorter keys and values";
                return Err(error(problem.to_owned()));
            }
            let Some(domain) = self.set.domains.get_mut(spot.domain) else { return Ok(()) };
            let id = match domain.add(spot.parent, key, value, flags) {
                AddResult::New(id) => id,
                AddResult::Duplicate => {
                    return Err(error(format!("duplicate descriptor composite key '{place}'")));
                }
            };
            if let Some(limit) = &raw.rate_limit {
                domain.set_limit(id, Arc::new(build_limit(limit, place, raw).map_err(&error)?));
            }
            let composite = place.get(length + 1..).unwrap_or_default();
            if flags.share_threshold && !composite.contains('*') {
                return Err(error(format!(
                    "share_threshold can only be used with wildcard values (containing '*'), but found key '{composite}'"
                )));
            }
            let below = InsertPoint { parent: id, depth: spot.depth + 1, ..*spot };
            self.add_descriptors(&below, place, &raw.descriptors)?;
            place.truncate(length);
        }
        Ok(())
    }
}

/// What a limit of a descriptor says, which stands at this place.
fn build_limit<T: AsRef<str>>(
    limit: &RawLimit<T>,
    place: &str,
    descriptor: &RawDescriptor<T>,
) -> Result<DescriptorLimit, String> {
    let amount = parse_amount(limit)?;
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
        path: place.into(),
        lease: parse_lease(limit)?,
        amount,
        name: (!name.is_empty()).then(|| name.into()),
        replaces: limit.replaces.iter().map(|replaced| replaced.as_ref().to_owned()).collect(),
        flags: descriptor.flags,
        metadata: descriptor.metadata.clone().map(Arc::new),
    })
}

fn parse_amount<T: AsRef<str>>(raw: &RawLimit<T>) -> Result<DescriptorAmount, String> {
    let unit_name = raw.unit.as_ref();
    let unit = CalendarUnit::from_name(unit_name);
    if !raw.quotas.is_empty() {
        if raw.unlimited {
            return Err("should not specify quotas when unlimited".to_owned());
        }
        if !unit_name.is_empty() || raw.requests_per_unit.is_some() {
            return Err(
                "should not specify quotas besides unit and requests_per_unit; leave either out".to_owned()
            );
        }
        let quotas: Result<_, _> = raw.quotas.iter().map(|text| parse_quota(text.as_ref())).collect();
        return Ok(DescriptorAmount::Quotas(quotas?));
    }
    match (raw.unlimited, unit) {
        (true, Some(_)) => Err("should not specify rate limit unit when unlimited".to_owned()),
        (true, None) => Ok(DescriptorAmount::Unlimited),
        (false, Some(unit)) => {
            Ok(DescriptorAmount::PerUnit { requests: raw.requests_per_unit.unwrap_or_default(), unit })
        }
        (false, None) => Err(format!("invalid rate limit unit '{unit_name}'")),
    }
}

/// How long tokens may lie elsewhere than in the store.
fn parse_lease<T: AsRef<str>>(raw: &RawLimit<T>) -> Result<Option<Duration>, String> {
    let text = raw.lease.as_ref();
    if text.is_empty() {
        return Ok(None);
    }
    if raw.quotas.is_empty() {
        return Err("should not specify lease without quotas; use quotas such as [100/min]".to_owned());
    }
    // A time is written as the period of a quota.
    let is_time = text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let quota: Option<Quota> = format!("1 per {text}").parse().ok().filter(|_| is_time);
    let time = quota.and_then(|quota| Some(Duration::from(quota.rate()?.period())));
    match time.filter(|time| LEASE_RANGE.contains(time)) {
        Some(time) => Ok(Some(time)),
        None => Err(format!("invalid lease '{text}'; use a time from 2ms to 1min, such as '200ms'")),
    }
}

const LEASE_RANGE: std::ops::RangeInclusive<Duration> = Duration::from_millis(2)..=Duration::from_secs(60);

fn parse_quota(text: &str) -> Result<Quota, String> {
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

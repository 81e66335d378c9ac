//! Builds the set of all domains.

use super::{
    CalendarUnit, DescriptorAmount, DescriptorError, DescriptorLimit, Domain, RawDescriptor, RawDomain,
    RawLimit, read,
    tree::{AddResult, push_step},
};
use foldhash::fast::RandomState;
use std::{collections::HashMap, sync::Arc, time::Duration};
use tidegate_core::Quota;

/// All domains, read from files in the format of envoyproxy/ratelimit.
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

/// A descriptor file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescriptorFile {
    /// The name in errors.
    pub name: String,
    /// The content.
    pub text: String,
}

/// What happens to a domain that several files define (`MERGE_DOMAIN_CONFIG`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DomainMerge {
    /// The set is rejected.
    #[default]
    Reject,
    /// The definitions are merged.
    Combine,
}

/// The maximum depth of a tree. It prevents stack overflows.
pub(super) const MAX_DESCRIPTOR_DEPTH: usize = 32;

/// The maximum size of the paths of all nodes, in bytes. Each path contains those of its parents, so a long key near the root
/// would be copied many times.
const MAX_NAME_BYTES: usize = 64 * 1024 * 1024;

impl DescriptorSet {
    /// Reads all files, or returns the first error.
    pub fn read(files: &[DescriptorFile], merge: DomainMerge) -> Result<Self, DescriptorError> {
        let mut domains = Vec::new();
        for file in files {
            domains.extend(read::read_domains(file)?);
        }
        Self::build(domains, merge)
    }

    /// Validates raw domains and builds the set.
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

    /// Returns the domain of this name.
    pub fn domain(&self, name: &str) -> Option<&Domain> {
        self.domains.get(*self.by_name.get(name)?)
    }

    /// All domains, in the order of the files.
    pub fn domains(&self) -> impl Iterator<Item = &Domain> {
        self.domains.iter()
    }

    /// All limits, in the order of the files.
    pub fn limits(&self) -> impl Iterator<Item = &Arc<DescriptorLimit>> {
        self.domains.iter().flat_map(Domain::limits)
    }

    /// One line per limit, as `/rlconfig` shows them.
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

/// The parent of the descriptors that are being added.
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
        let mut path = name.to_owned();
        let point = InsertPoint { source, domain, parent: Domain::ROOT, depth: 0 };
        self.add_descriptors(&point, &mut path, &raw.descriptors)
    }

    /// Adds descriptors below a node with this path.
    fn add_descriptors<T: AsRef<str>>(
        &mut self,
        point: &InsertPoint<'_>,
        path: &mut String,
        descriptors: &[RawDescriptor<T>],
    ) -> Result<(), DescriptorError> {
        let error = |problem: String| DescriptorError::new(point.source, problem);
        if point.depth >= MAX_DESCRIPTOR_DEPTH && !descriptors.is_empty() {
            return Err(error(format!(
                "descriptors are more than {MAX_DESCRIPTOR_DEPTH} levels deep; use fewer"
            )));
        }
        let length = path.len();
        for raw in descriptors {
            let (key, value, flags) = (raw.key.as_ref(), raw.value.as_ref(), raw.flags);
            if key.is_empty() {
                return Err(error("descriptor has empty key".to_owned()));
            }
            push_step(path, key, value);
            self.name_bytes += path.len();
            if self.name_bytes > MAX_NAME_BYTES {
                let problem =
                    "the paths of all descriptors take more than 64 MiB; use shorter keys and values";
                return Err(error(problem.to_owned()));
            }
            let Some(domain) = self.set.domains.get_mut(point.domain) else { return Ok(()) };
            let id = match domain.add(point.parent, key, value, flags) {
                AddResult::New(id) => id,
                AddResult::Duplicate => {
                    return Err(error(format!("duplicate descriptor composite key '{path}'")));
                }
            };
            if let Some(limit) = &raw.rate_limit {
                domain.set_limit(id, Arc::new(build_limit(limit, path, raw).map_err(&error)?));
            }
            let composite = path.get(length + 1..).unwrap_or_default();
            if flags.share_threshold && !composite.contains('*') {
                return Err(error(format!(
                    "share_threshold can only be used with wildcard values (containing '*'), but found key '{composite}'"
                )));
            }
            let below = InsertPoint { parent: id, depth: point.depth + 1, ..*point };
            self.add_descriptors(&below, path, &raw.descriptors)?;
            path.truncate(length);
        }
        Ok(())
    }
}

/// Builds the limit of a descriptor with this path.
fn build_limit<T: AsRef<str>>(
    limit: &RawLimit<T>,
    path: &str,
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
        path: path.into(),
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
                "should not specify quotas besides unit and requests_per_unit; remove either".to_owned()
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

/// Parses the time that a process may keep prefetched tokens.
fn parse_lease<T: AsRef<str>>(raw: &RawLimit<T>) -> Result<Option<Duration>, String> {
    let text = raw.lease.as_ref();
    if text.is_empty() {
        return Ok(None);
    }
    if raw.quotas.is_empty() {
        return Err("should not specify lease without quotas; use quotas such as [100/min]".to_owned());
    }
    // A duration has the notation of the period of a quota.
    let is_time = text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let quota: Option<Quota> = format!("1 per {text}").parse().ok().filter(|_| is_time);
    let time = quota.and_then(|quota| Some(Duration::from(quota.rate()?.period())));
    match time.filter(|time| LEASE_RANGE.contains(time)) {
        Some(time) => Ok(Some(time)),
        None => Err(format!("invalid lease '{text}'; use a duration from 2ms to 1min, such as '200ms'")),
    }
}

const LEASE_RANGE: std::ops::RangeInclusive<Duration> = Duration::from_millis(2)..=Duration::from_secs(60);

fn parse_quota(text: &str) -> Result<Quota, String> {
    let quota: Quota = text.parse().map_err(|error: tidegate_core::QuotaError| {
        format!("invalid quota '{text}': {}; {}", error.problem(), error.fix())
    })?;
    match quota.rate() {
        Some(_) => Ok(quota),
        // The protocol does not report the end of a request, so concurrency cannot be limited.
        None => {
            Err(format!("invalid quota '{text}': descriptors support rates only; use one such as '100/min'"))
        }
    }
}

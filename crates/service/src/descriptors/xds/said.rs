//! What a management server says, as the tree that files are read into, too.

use tidegate_policy::descriptors::{DescriptorFlags, RawDescriptor, RawDomain, RawLimit};
use tidegate_proto::config::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy};

/// What was said, to be checked as files are.
pub(crate) fn said(configs: Vec<RateLimitConfig>) -> impl Iterator<Item = RawDomain> {
    configs.into_iter().map(|config| RawDomain {
        source: config.name,
        domain: config.domain,
        descriptors: config.descriptors.into_iter().map(descriptor).collect(),
    })
}

fn descriptor(said: RateLimitDescriptor) -> RawDescriptor {
    RawDescriptor {
        key: said.key,
        value: said.value,
        rate_limit: said.rate_limit.map(limit),
        flags: DescriptorFlags {
            shadow_mode: said.shadow_mode,
            quota_mode: said.quota_mode,
            detailed_metric: said.detailed_metric,
            ..DescriptorFlags::default()
        },
        metadata: None,
        descriptors: said.descriptors.into_iter().map(descriptor).collect(),
    }
}

fn limit(said: RateLimitPolicy) -> RawLimit {
    // Not to be known is an error, unless there is no limit.
    let unit = match said.unlimited {
        true => String::new(),
        false => said.unit().as_str_name().to_owned(),
    };
    RawLimit {
        unit,
        requests_per_unit: Some(said.requests_per_unit).filter(|_| !said.unlimited),
        unlimited: said.unlimited,
        name: said.name,
        replaces: said.replaces.into_iter().map(|replaced| replaced.name).collect(),
        quotas: Vec::new(),
        lease: String::new(),
    }
}

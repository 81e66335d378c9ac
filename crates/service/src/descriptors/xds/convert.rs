//! Converts the messages of a management server to the same tree as files.

use tidegate_policy::descriptors::{DescriptorFlags, RawDescriptor, RawDomain, RawLimit};
use tidegate_proto::config::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy};

/// Converts messages to raw domains, which are validated in the same way as files.
pub(crate) fn to_raw_domains(configs: Vec<RateLimitConfig>) -> impl Iterator<Item = RawDomain> {
    configs.into_iter().map(|config| RawDomain {
        source: config.name,
        domain: config.domain,
        descriptors: config.descriptors.into_iter().map(to_raw_descriptor).collect(),
    })
}

fn to_raw_descriptor(message: RateLimitDescriptor) -> RawDescriptor {
    RawDescriptor {
        key: message.key,
        value: message.value,
        rate_limit: message.rate_limit.map(to_raw_limit),
        flags: DescriptorFlags {
            shadow_mode: message.shadow_mode,
            quota_mode: message.quota_mode,
            detailed_metric: message.detailed_metric,
            ..DescriptorFlags::default()
        },
        metadata: None,
        descriptors: message.descriptors.into_iter().map(to_raw_descriptor).collect(),
    }
}

fn to_raw_limit(policy: RateLimitPolicy) -> RawLimit {
    // An unknown unit is an error, unless the entry is unlimited.
    let unit = match policy.unlimited {
        true => String::new(),
        false => policy.unit().as_str_name().to_owned(),
    };
    RawLimit {
        unit,
        requests_per_unit: Some(policy.requests_per_unit).filter(|_| !policy.unlimited),
        unlimited: policy.unlimited,
        name: policy.name,
        replaces: policy.replaces.into_iter().map(|replaced| replaced.name).collect(),
        quotas: Vec::new(),
        lease: String::new(),
    }
}

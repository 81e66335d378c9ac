//! Conditions on headers, query parameters, cookies and entries of descriptors.

use super::glob::GlobMatcher;
use crate::model::ValueGlobs;
use std::{collections::BTreeMap, sync::Arc};
use tidegate_rule::request::{RequestHead, for_each_cookie, for_each_query};

/// A header, query parameter, cookie or entry of a descriptor that must have one of these values. If a request repeats it, one match is enough.
#[derive(Clone, Debug)]
pub(crate) struct ValueCondition {
    pub(crate) source: ValueSource,
    pub(crate) name: Arc<str>,
    globs: Box<[GlobMatcher]>,
}

/// The part of a request that contains the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueSource {
    Header,
    Query,
    Cookie,
    Descriptor,
}

impl ValueSource {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::Query => "query",
            Self::Cookie => "cookie",
            Self::Descriptor => "descriptor",
        }
    }
}

impl ValueCondition {
    pub(crate) fn from_map(
        source: ValueSource,
        values: &BTreeMap<String, ValueGlobs>,
    ) -> impl Iterator<Item = Self> {
        values.iter().map(move |(name, values)| Self {
            source,
            name: name.as_str().into(),
            globs: values.0.iter().map(GlobMatcher::new).collect(),
        })
    }

    pub(crate) fn matches(&self, head: &dyn RequestHead) -> bool {
        let mut is_met = false;
        let mut check = |value: &[u8]| is_met = is_met || self.globs.iter().any(|glob| glob.matches(value));
        match self.source {
            ValueSource::Header => head.for_each_header(&self.name, &mut |value| check(value.trim_ascii())),
            ValueSource::Query => for_each_query(head, &self.name, &mut |value| check(&value)),
            ValueSource::Cookie => for_each_cookie(head, &self.name, &mut check),
            ValueSource::Descriptor => {
                if let Some(descriptor) = head.descriptor() {
                    descriptor.for_each_value(&self.name, &mut |value| check(value.trim_ascii()));
                }
            }
        }
        is_met
    }
}

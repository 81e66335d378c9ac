//! Conditions on headers, query parameters, cookies, entries of descriptors and names in client certificates.

use super::glob::GlobMatcher;
use crate::model::{ClientCertificateMatch, Glob, ValueGlobs};
use std::{collections::BTreeMap, sync::Arc};
use tidegate_rule::request::{CertificateName, RequestHead, for_each_cookie, for_each_query};

/// A header, query parameter, cookie, entry of a descriptor or name in a client certificate that must have one of these values. If
/// a request repeats it, one match is enough.
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
    ClientCertificate(CertificateName),
}

impl ValueSource {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::Query => "query",
            Self::Cookie => "cookie",
            Self::Descriptor => "descriptor",
            Self::ClientCertificate(_) => "client-cert",
        }
    }
}

impl ValueCondition {
    pub(crate) fn from_map(
        source: ValueSource,
        values: &BTreeMap<String, ValueGlobs>,
    ) -> impl Iterator<Item = Self> {
        values.iter().map(move |(name, values)| Self::new(source, name, &values.0))
    }

    pub(crate) fn from_certificate(certificate: &ClientCertificateMatch) -> impl Iterator<Item = Self> {
        let names = [
            (CertificateName::Subject, "subject", &certificate.subjects),
            (CertificateName::San, "san", &certificate.sans),
        ];
        let names = names.into_iter().filter(|(.., values)| !values.is_empty());
        names.map(|(source, name, values)| Self::new(ValueSource::ClientCertificate(source), name, values))
    }

    fn new(source: ValueSource, name: &str, values: &[Glob]) -> Self {
        Self { source, name: name.into(), globs: values.iter().map(GlobMatcher::new).collect() }
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
            ValueSource::ClientCertificate(name) => {
                if let Some(certificate) = head.client_certificate() {
                    match name {
                        CertificateName::Subject => {
                            certificate.subject().into_iter().for_each(|name| check(name.as_bytes()));
                        }
                        CertificateName::San => certificate.sans().for_each(|name| check(name.as_bytes())),
                    }
                }
            }
        }
        is_met
    }
}

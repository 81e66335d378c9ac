//! Values of headers, parameters and cookies.

use super::glob::GlobMatcher;
use crate::model::Values;
use std::{collections::BTreeMap, sync::Arc};
use tidegate_rule::request::{Head, each_cookie, each_query};

/// One thing that must have one of these values. Where a request says it several times, one of them is enough.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) place: Place,
    pub(crate) name: Arc<str>,
    globs: Box<[GlobMatcher]>,
}

/// Where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Header,
    Query,
    Cookie,
}

impl Place {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::Query => "query",
            Self::Cookie => "cookie",
        }
    }
}

impl Wanted {
    pub(crate) fn all(place: Place, values: &BTreeMap<String, Values>) -> impl Iterator<Item = Self> {
        values.iter().map(move |(name, values)| Self {
            place,
            name: name.as_str().into(),
            globs: values.0.iter().map(GlobMatcher::new).collect(),
        })
    }

    pub(crate) fn is_met_by(&self, head: &dyn Head) -> bool {
        let mut is_met = false;
        let mut look = |value: &[u8]| is_met = is_met || self.globs.iter().any(|glob| glob.fits(value));
        match self.place {
            Place::Header => head.each_header(&self.name, &mut |value| look(value.trim_ascii())),
            Place::Query => each_query(head, &self.name, &mut |value| look(&value)),
            Place::Cookie => each_cookie(head, &self.name, &mut look),
        }
        is_met
    }
}

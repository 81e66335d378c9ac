//! Settings of statsd: `USE_STATSD`, `USE_DOG_STATSD` and related variables.

use super::{EnvironmentError, variables::Variables};
use regex::Regex;
use std::time::Duration;

/// The statsd server that receives the metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatsdSettings {
    /// `USE_STATSD` or `USE_DOG_STATSD`.
    pub protocol: StatsdProtocol,
    /// `STATSD_HOST`
    pub host: String,
    /// `STATSD_PORT`
    pub port: u16,
    /// `STATS_FLUSH_INTERVAL`
    pub interval: Duration,
    /// `EXTRA_TAGS`
    pub tags: Vec<(String, String)>,
    /// `USE_DOG_STATSD_MOGRIFIERS`, in order; the first match applies.
    pub mogrifiers: Vec<Mogrifier>,
}

/// The protocol of the statsd server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatsdProtocol {
    /// TCP, with tags inside the names, as in gostats.
    Statsd,
    /// UDP, with DogStatsD tags.
    DogStatsd,
}

/// `DOG_STATSD_MOGRIFIER_NAME_…`: converts parts of a metric name to tags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mogrifier {
    /// `_PATTERN`: a regular expression for the names.
    pub pattern: String,
    /// `_NAME`: the new name; `$1` is the first group of the pattern.
    pub name: String,
    /// `_TAGS`: tags to add; `$1` works here too.
    pub tags: Vec<(String, String)>,
}

const SINK_CHOICES: &str = "one of USE_STATSD, USE_DOG_STATSD and USE_PROMETHEUS";

/// Parses the settings; statsd is enabled by default.
pub(super) fn settings(variables: &Variables) -> Result<Option<StatsdSettings>, EnvironmentError> {
    let (is_dog, is_prometheus) = (variables.bool("USE_DOG_STATSD")?, variables.bool("USE_PROMETHEUS")?);
    let is_plain = variables.bool("USE_STATSD")?;
    if is_dog && is_prometheus {
        return Err(variables.error("USE_DOG_STATSD", SINK_CHOICES));
    }
    if is_plain && (is_dog || is_prometheus) {
        return Err(variables.error("USE_STATSD", SINK_CHOICES));
    }
    let is_default = variables.get("USE_STATSD").is_none() && !is_prometheus;
    if variables.bool("DISABLE_STATS")? || !(is_plain || is_dog || is_default) {
        return Ok(None);
    }
    let interval = variables.duration("STATS_FLUSH_INTERVAL", Duration::from_secs(10))?;
    if interval.is_zero() {
        return Err(variables.error("STATS_FLUSH_INTERVAL", "a duration above zero, such as 10s"));
    }
    Ok(Some(StatsdSettings {
        protocol: if is_dog { StatsdProtocol::DogStatsd } else { StatsdProtocol::Statsd },
        host: variables.get_or("STATSD_HOST", "localhost"),
        port: variables.number("STATSD_PORT", 8125, "a port from 0 to 65535")?,
        interval,
        tags: variables.pairs("EXTRA_TAGS")?,
        mogrifiers: if is_dog { parse_mogrifiers(variables)? } else { Vec::new() },
    }))
}

fn parse_mogrifiers(variables: &Variables) -> Result<Vec<Mogrifier>, EnvironmentError> {
    let names = variables.get_or("USE_DOG_STATSD_MOGRIFIERS", "");
    let mut found = Vec::new();
    for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        let variable = |part: &str| format!("DOG_STATSD_MOGRIFIER_{name}_{part}");
        let required = |part: &str, fix: &str| {
            let variable = variable(part);
            variables.text(&variable).ok_or_else(|| variables.error(&variable, fix))
        };
        let pattern = required("PATTERN", "a regular expression, since USE_DOG_STATSD_MOGRIFIERS names it")?;
        if Regex::new(&pattern).is_err() {
            return Err(variables.error(&variable("PATTERN"), "a regular expression"));
        }
        found.push(Mogrifier {
            pattern,
            name: required("NAME", "the name of a metric, since USE_DOG_STATSD_MOGRIFIERS names it")?,
            tags: variables.pairs(&variable("TAGS"))?,
        });
    }
    Ok(found)
}

/// Returns the statsd variables without effect under these settings, each with the reason.
pub(super) fn ignored_variables(settings: Option<&StatsdSettings>) -> Vec<(&'static str, &'static str)> {
    const DISABLED_REASON: &str = "statsd is disabled; set USE_STATSD or USE_DOG_STATSD to true";
    match settings.map(|settings| settings.protocol) {
        None => vec![
            ("STATSD_", DISABLED_REASON),
            ("STATS_FLUSH_INTERVAL", DISABLED_REASON),
            ("USE_DOG_STATSD_MOGRIFIERS", DISABLED_REASON),
            ("DOG_STATSD_MOGRIFIER_", DISABLED_REASON),
            ("EXTRA_TAGS", "statsd is disabled; add labels in the configuration of Prometheus"),
        ],
        Some(StatsdProtocol::Statsd) => vec![
            ("USE_DOG_STATSD_MOGRIFIERS", "mogrifiers require USE_DOG_STATSD"),
            ("DOG_STATSD_MOGRIFIER_", "mogrifiers require USE_DOG_STATSD"),
        ],
        Some(StatsdProtocol::DogStatsd) => Vec::new(),
    }
}

//! Parses environment variables by type.

use super::{Endpoint, EnvironmentError};
use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

/// The variables that are set; an empty variable counts as unset.
pub(super) struct Variables(BTreeMap<String, String>);

impl Variables {
    pub(super) fn new<K: Into<String>, V: Into<String>>(pairs: impl IntoIterator<Item = (K, V)>) -> Self {
        let pairs = pairs.into_iter().map(|(name, value)| (name.into(), value.into()));
        Self(pairs.filter(|(_, value)| !value.is_empty()).collect())
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.get(name).map(str::to_owned)
    }

    pub(super) fn get_or(&self, name: &str, default: &str) -> String {
        self.get(name).unwrap_or(default).to_owned()
    }

    pub(super) fn path(&self, name: &str) -> Option<PathBuf> {
        self.get(name).map(PathBuf::from)
    }

    /// Parses a boolean with the spellings of envoyproxy/ratelimit.
    pub(super) fn bool(&self, name: &str) -> Result<bool, EnvironmentError> {
        match self.get(name) {
            None | Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(false),
            Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(true),
            Some(_) => Err(self.error(name, "true or false")),
        }
    }

    /// Parses one of `words`, ignoring case; the first word is the default.
    pub(super) fn choice<'a>(&self, name: &str, words: &[&'a str]) -> Result<&'a str, EnvironmentError> {
        let Some(value) = self.get(name) else { return Ok(words.first().copied().unwrap_or_default()) };
        let known = words.iter().find(|word| word.eq_ignore_ascii_case(value));
        known.copied().ok_or_else(|| self.error(name, &format!("one of {}", words.join(", "))))
    }

    pub(super) fn number<T: FromStr>(
        &self,
        name: &str,
        default: T,
        fix: &str,
    ) -> Result<T, EnvironmentError> {
        self.get(name).map_or(Ok(default), |value| value.parse().map_err(|_| self.error(name, fix)))
    }

    /// Parses a Go duration: `24h`, `1h30m`, `150us`.
    pub(super) fn duration(&self, name: &str, default: Duration) -> Result<Duration, EnvironmentError> {
        let Some(value) = self.get(name) else { return Ok(default) };
        parse_duration(value).ok_or_else(|| self.error(name, "a duration such as 24h, 90s or 1h30m"))
    }

    /// Parses a host and a port; by default all IPv4 and IPv6 addresses.
    pub(super) fn endpoint(
        &self,
        host: &str,
        port: &str,
        default: u16,
    ) -> Result<Endpoint, EnvironmentError> {
        let address = match self.get(host) {
            None => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            Some("localhost") => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Some(value) => value
                .trim_matches(['[', ']'])
                .parse()
                .map_err(|_| self.error(host, "an address such as 0.0.0.0, :: or 127.0.0.1"))?,
        };
        let port = self.number(port, default, "a port from 0 to 65535")?;
        Ok(Endpoint { host: address, port })
    }

    /// Parses `:9090` or `127.0.0.1:9090`; without a host, all IPv4 and IPv6 addresses.
    pub(super) fn address(&self, name: &str, default: u16) -> Result<Endpoint, EnvironmentError> {
        let Some(value) = self.get(name) else {
            return Ok(Endpoint { host: IpAddr::V6(Ipv6Addr::UNSPECIFIED), port: default });
        };
        let error = || self.error(name, "an address and a port such as :9090 or 127.0.0.1:9090");
        let (host, port) = value.rsplit_once(':').ok_or_else(error)?;
        let host = match host {
            "" => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
            host => host.trim_matches(['[', ']']).parse().map_err(|_| error())?,
        };
        Ok(Endpoint { host, port: port.parse().map_err(|_| error())? })
    }

    /// Parses pairs: `a:b,c=d`.
    pub(super) fn pairs(&self, name: &str) -> Result<Vec<(String, String)>, EnvironmentError> {
        let Some(value) = self.get(name) else { return Ok(Vec::new()) };
        let pair = |pair: &str| {
            let (key, value) = pair.split_once([':', '='])?;
            (!key.trim().is_empty()).then(|| (key.trim().to_owned(), value.trim().to_owned()))
        };
        let pairs: Option<_> = value.split(',').map(pair).collect();
        // Headers may contain tokens.
        pairs.ok_or_else(|| self.secret_error(name, "pairs such as a:b,c:d"))
    }

    /// Returns the variables that are set and have no effect, each with the reason.
    pub(super) fn find_ignored(&self, known: &[(&str, &'static str)]) -> Vec<(String, &'static str)> {
        let reason = |name: &str| {
            let matches = |known: &str| known == name || known.ends_with('_') && name.starts_with(known);
            known.iter().find(|(known, _)| matches(known)).map(|(_, reason)| *reason)
        };
        self.0.keys().filter_map(|name| Some((name.clone(), reason(name)?))).collect()
    }

    pub(super) fn error(&self, name: &str, fix: &str) -> EnvironmentError {
        let value = Some(self.get_or(name, ""));
        EnvironmentError { variable: name.to_owned(), value, fix: fix.to_owned() }
    }

    /// The same error without the value, which may contain a secret.
    #[allow(clippy::unused_self, reason = "consistent with `error`")]
    pub(super) fn secret_error(&self, name: &str, fix: &str) -> EnvironmentError {
        EnvironmentError { variable: name.to_owned(), value: None, fix: fix.to_owned() }
    }
}

fn parse_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let (mut rest, mut total) = (text, Duration::ZERO);
    while !rest.is_empty() {
        let end = rest.find(|sign: char| !sign.is_ascii_digit() && sign != '.')?;
        let (number, behind) = rest.split_at(end);
        let end = behind.find(|sign: char| sign.is_ascii_digit()).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(end);
        let seconds = match unit {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        let part = Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()?;
        (rest, total) = (behind, total.checked_add(part)?);
    }
    (!text.is_empty()).then_some(total)
}

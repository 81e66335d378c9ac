//! Converts `REDIS_*` to store URLs.

use super::{EnvironmentError, HostnameVerification, RedisSettings, variables::Variables};
use crate::descriptors::{StoreRequirement, settings::DEFAULT_DEADLINE};
use std::{fmt::Write as _, time::Duration};

pub(super) fn settings(variables: &Variables) -> Result<RedisSettings, EnvironmentError> {
    if variables.choice("BACKEND_TYPE", &["redis", "memcache"])? == "memcache" {
        return Err(variables.error("BACKEND_TYPE", "redis; memcached is not supported"));
    }
    let per_second = match variables.bool("REDIS_PERSECOND")? {
        false => None,
        true => match redis_url(variables, "REDIS_PERSECOND_")? {
            Some(url) => Some(url),
            None => {
                let fix = "host:port of the second Redis, since REDIS_PERSECOND is true";
                return Err(variables.error("REDIS_PERSECOND_URL", fix));
            }
        },
    };
    let url = redis_url(variables, "REDIS_")?;
    if url.is_none() && per_second.is_some() {
        let fix = "host:port of the Redis of all other limits, since REDIS_PERSECOND is true";
        return Err(variables.error("REDIS_URL", fix));
    }
    let certificate = variables.path("REDIS_TLS_CLIENT_CERT");
    let identity = match (certificate, variables.path("REDIS_TLS_CLIENT_KEY")) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (Some(_), None) => {
            let fix = "the path of the key of REDIS_TLS_CLIENT_CERT";
            return Err(variables.error("REDIS_TLS_CLIENT_KEY", fix));
        }
        (None, Some(_)) => {
            let fix = "the path of the certificate of REDIS_TLS_CLIENT_KEY";
            return Err(variables.error("REDIS_TLS_CLIENT_CERT", fix));
        }
    };
    let hostname_verification = match variables.bool("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION")? {
        true => HostnameVerification::Skip,
        false => HostnameVerification::Verify,
    };
    Ok(RedisSettings {
        url,
        per_second,
        timeout: parse_timeout(variables, "REDIS_TIMEOUT")?,
        per_second_timeout: parse_timeout(variables, "REDIS_PERSECOND_TIMEOUT")?,
        ca: variables.path("REDIS_TLS_CACERT"),
        identity,
        hostname_verification,
        store_requirement: match variables.bool("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION")? {
            true => StoreRequirement::Always,
            false => StoreRequirement::Startup,
        },
    })
}

fn parse_timeout(variables: &Variables, name: &str) -> Result<Duration, EnvironmentError> {
    match variables.duration(name, DEFAULT_DEADLINE)? {
        // Zero means no timeout in envoyproxy/ratelimit. The deadline of the caller still applies.
        Duration::ZERO => Ok(MAX_TIMEOUT),
        time => Ok(time.min(MAX_TIMEOUT)),
    }
}

/// The upper bound of a timeout.
const MAX_TIMEOUT: Duration = Duration::from_secs(3_600);

/// Builds the URL from the variables with this prefix.
fn redis_url(variables: &Variables, prefix: &str) -> Result<Option<String>, EnvironmentError> {
    let name = |suffix: &str| format!("{prefix}{suffix}");
    let Some(url) = variables.get(&name("URL")) else { return Ok(None) };
    // A full URL is used unchanged.
    if url.contains("://") {
        return Ok(Some(url.to_owned()));
    }
    let kind = variables.choice(&name("TYPE"), &["SINGLE", "SENTINEL", "CLUSTER"])?;
    let tls = variables.bool(&name("TLS"))?;
    let login = url_credentials(variables.get(&name("AUTH")));
    let is_socket = match variables.get(&name("SOCKET_TYPE")) {
        None => url.starts_with('/'),
        Some("unix") => true,
        Some("tcp" | "tls") => false,
        Some(_) => return Err(variables.error(&name("SOCKET_TYPE"), "tcp or unix")),
    };
    let error = |fix: &str| Err(variables.secret_error(&name("URL"), fix));
    if is_socket {
        if kind != "SINGLE" || !url.starts_with('/') {
            return error("the path of a socket, or set the socket type to tcp");
        }
        let password = login.strip_suffix('@').and_then(|login| login.split_once(':'));
        let password = password.map_or(String::new(), |(user, password)| match user {
            "" => format!("?pass={password}"),
            user => format!("?user={user}&pass={password}"),
        });
        return Ok(Some(format!("redis+unix://{url}{password}")));
    }
    let nodes: Vec<_> = url.split(',').map(str::trim).collect();
    if nodes.iter().any(|node| node.is_empty()) {
        return error("host:port, or several separated by commas");
    }
    let s = if tls { "s" } else { "" };
    match (kind, nodes.as_slice()) {
        ("CLUSTER", nodes) => Ok(Some(format!("redis{s}+cluster://{login}{}", nodes.join(",")))),
        ("SENTINEL", _) if tls => error("sentinels without TLS; TLS to sentinels is not supported"),
        ("SENTINEL", [master, sentinels @ ..]) if !sentinels.is_empty() => {
            let sentinel = match variables.get(&name("SENTINEL_AUTH")) {
                None => String::new(),
                Some(auth) => match auth.split_once(':') {
                    None => format!("?sentinel-password={}", percent_encode(auth)),
                    Some((user, password)) => {
                        format!(
                            "?sentinel-user={}&sentinel-password={}",
                            percent_encode(user),
                            percent_encode(password)
                        )
                    }
                },
            };
            Ok(Some(format!("redis+sentinel://{login}{}/{master}{sentinel}", sentinels.join(","))))
        }
        ("SENTINEL", _) => error("the name of the primary and its sentinels: mymaster,host:port,host:port"),
        (_, [node]) => Ok(Some(format!("redis{s}://{login}{node}"))),
        _ => error("one host:port, or set the type to CLUSTER or SENTINEL"),
    }
}

/// Converts `password` or `user:password` to the user info of a URL.
fn url_credentials(auth: Option<&str>) -> String {
    match auth.map(|auth| auth.split_once(':').unwrap_or(("", auth))) {
        None => String::new(),
        Some((user, password)) => format!("{}:{}@", percent_encode(user), percent_encode(password)),
    }
}

fn percent_encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            true => encoded.push(byte.into()),
            false => _ = write!(encoded, "%{byte:02X}"),
        }
    }
    encoded
}

//! Settings from environment variables, with the names of envoyproxy/ratelimit.
//!
//! The caller passes the variables as pairs; this module never reads the environment of the process. An invalid value is an
//! error with the variable, the value and the fix. Known variables without effect are reported.

mod redis;
mod statsd;
mod tidegate;
mod variables;

use super::{
    ConfigRequirement, Dotfiles, GlobalEnforcement, HeaderNames, OverLimitCounting, QuotaMode,
    ResponseMetadataMode, StoreRequirement,
};
use std::{error, fmt, net::IpAddr, path::PathBuf, time::Duration};
use tidegate_policy::descriptors::DomainMerge;
use variables::Variables;

pub use statsd::{Mogrifier, StatsdProtocol, StatsdSettings};
pub use tidegate::{ApiToken, CountingChoice, TidegateSettings};

/// The settings of the service.
#[derive(Clone, Debug, PartialEq)]
pub struct Environment {
    /// `HOST`, `PORT`: `/json` and `/healthcheck`.
    pub http: Endpoint,
    /// `GRPC_HOST`, `GRPC_PORT` or `GRPC_UDS`.
    pub grpc: GrpcBindAddress,
    /// `DEBUG_HOST`, `DEBUG_PORT`: `/rlconfig` and `/stats`.
    pub debug: Endpoint,
    /// `USE_PROMETHEUS`, `PROMETHEUS_ADDR`, `PROMETHEUS_PATH`; `None` by default.
    pub prometheus: Option<PrometheusSettings>,
    /// `USE_STATSD`, `USE_DOG_STATSD` and related variables.
    pub statsd: Option<StatsdSettings>,
    /// `GRPC_SERVER_USE_TLS` and related variables.
    pub tls: Option<ServerTls>,
    /// `GRPC_MAX_CONNECTION_AGE`: the maximum age of a connection, with a jitter of 10%.
    pub max_connection_age: Duration,
    /// `CONFIG_TYPE` and related variables.
    pub source: ConfigSourceSettings,
    /// `MERGE_DOMAIN_CONFIG`
    pub merge: DomainMerge,
    /// `FORCE_START_WITHOUT_INITIAL_CONFIG`
    pub start: StartMode,
    /// `HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED`
    pub health: ConfigRequirement,
    /// `REDIS_*`
    pub redis: RedisSettings,
    /// Counting.
    pub counting: CountingSettings,
    /// Responses to clients.
    pub responses: ResponseSettings,
    /// `TIDEGATE_*`, which envoyproxy/ratelimit does not have.
    pub tidegate: TidegateSettings,
    /// `LOG_LEVEL`, such as `info`.
    pub log_level: String,
    /// `LOG_FORMAT`
    pub log_format: ServiceLogFormat,
    /// Variables that are set and have no effect, each with the reason.
    pub ignored: Vec<(String, &'static str)>,
}

/// An address to listen on; by default all IPv4 and IPv6 addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are self-explanatory")]
pub struct Endpoint {
    pub host: IpAddr,
    pub port: u16,
}

/// The address of the gRPC listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrpcBindAddress {
    /// A TCP address.
    Tcp(Endpoint),
    /// A Unix domain socket.
    Socket(PathBuf),
}

/// The listener and path of the metrics for Prometheus.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are self-explanatory")]
pub struct PrometheusSettings {
    pub endpoint: Endpoint,
    pub path: String,
}

/// The certificate of the gRPC server, and the verification of client certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTls {
    /// `GRPC_SERVER_TLS_CERT`
    pub certificate: PathBuf,
    /// `GRPC_SERVER_TLS_KEY`
    pub key: PathBuf,
    /// `GRPC_CLIENT_TLS_CACERT`: the CA that must sign client certificates.
    pub client_ca: Option<PathBuf>,
    /// `GRPC_CLIENT_TLS_SAN`: the name that client certificates must contain.
    pub client_name: Option<String>,
}

/// The source of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub enum ConfigSourceSettings {
    /// `FILE`: a folder.
    Folder {
        /// `RUNTIME_ROOT`/`RUNTIME_SUBDIRECTORY`/`RUNTIME_APPDIRECTORY`.
        folder: PathBuf,
        /// `RUNTIME_IGNOREDOTFILES`
        dotfiles: Dotfiles,
    },
    /// `GRPC_XDS_SOTW`: an xDS management server.
    Xds(Box<XdsEnvironment>),
}

/// An xDS management server, `CONFIG_GRPC_XDS_*`.
#[derive(Clone, Debug, PartialEq)]
pub struct XdsEnvironment {
    /// `_SERVER_URL`: host and port.
    pub server: String,
    /// `_NODE_ID`
    pub node_id: String,
    /// `_NODE_METADATA`
    pub node_metadata: Vec<(String, String)>,
    /// `_CLIENT_ADDITIONAL_HEADERS`
    pub headers: Vec<(String, String)>,
    /// `_SERVER_USE_TLS` and related variables.
    pub tls: Option<XdsTlsFiles>,
    /// `XDS_CLIENT_BACKOFF_INITIAL_INTERVAL`, `XDS_CLIENT_BACKOFF_MAX_INTERVAL`
    pub backoff: (Duration, Duration),
    /// `XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES`
    pub max_message: Option<usize>,
}

/// TLS for the connection to the management server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are self-explanatory")]
pub struct XdsTlsFiles {
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub ca: Option<PathBuf>,
    pub server_name: Option<String>,
}

/// Whether to serve before the first configuration is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartMode {
    /// Waits for the first configuration.
    WaitForConfig,
    /// Serves at once.
    Immediate,
}

/// The Redis stores. `Debug` hides their URLs, which may contain passwords.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisSettings {
    /// `REDIS_URL`, converted to the URL format of Tidegate.
    pub url: Option<String>,
    /// The URL of the store for limits per second, if `REDIS_PERSECOND` is true.
    pub per_second: Option<String>,
    /// `REDIS_TIMEOUT`
    pub timeout: Duration,
    /// `REDIS_PERSECOND_TIMEOUT`
    pub per_second_timeout: Duration,
    /// `REDIS_TLS_CACERT`
    pub ca: Option<PathBuf>,
    /// `REDIS_TLS_CLIENT_CERT` and `REDIS_TLS_CLIENT_KEY`
    pub identity: Option<(PathBuf, PathBuf)>,
    /// `REDIS_TLS_SKIP_HOSTNAME_VERIFICATION`
    pub hostname_verification: HostnameVerification,
    /// `REDIS_HEALTH_CHECK_ACTIVE_CONNECTION`
    pub store_requirement: StoreRequirement,
}

/// Whether the host name of a server must match its certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostnameVerification {
    /// Verifies the signature and the host name.
    Verify,
    /// Verifies only the signature.
    Skip,
}

/// Settings of counting.
#[derive(Clone, Debug, PartialEq)]
pub struct CountingSettings {
    /// `CACHE_KEY_PREFIX`
    pub prefix: String,
    /// `NEAR_LIMIT_RATIO`
    pub near_limit_ratio: f32,
    /// `EXPIRATION_JITTER_MAX_SECONDS`
    pub expiration_jitter: Duration,
    /// `LOCAL_CACHE_SIZE_IN_BYTES`; `None` if it is zero.
    pub local_cache: Option<u64>,
    /// `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`
    pub over_limit_counting: OverLimitCounting,
    /// `SHADOW_MODE`
    pub enforcement: GlobalEnforcement,
    /// `QUOTA_MODE`
    pub quota_mode: QuotaMode,
}

/// Settings of the responses to clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseSettings {
    /// `LIMIT_RESPONSE_HEADERS_ENABLED`, with the names of the headers.
    pub headers: Option<HeaderNames>,
    /// `RESPONSE_DYNAMIC_METADATA`
    pub metadata: ResponseMetadataMode,
}

/// The format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are self-explanatory")]
pub enum ServiceLogFormat {
    Text,
    Json,
}

/// A variable with an invalid value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvironmentError {
    /// The name of the variable.
    pub variable: String,
    /// The value, unless it may be a secret.
    pub value: Option<String>,
    /// What a valid value looks like.
    pub fix: String,
}

/// Variables of envoyproxy/ratelimit without effect, or their prefixes, with the reason.
const IGNORED_VARIABLES: [(&str, &str); 19] = [
    ("PROMETHEUS_MAPPER_YAML", "the names of metrics are fixed"),
    ("TRACING_", "this service does not send traces"),
    ("OTEL_", "this service does not send traces"),
    ("MEMCACHE_", "memcached is not supported"),
    ("REDIS_POOL_SIZE", "one connection carries all commands"),
    ("REDIS_PERSECOND_POOL_SIZE", "one connection carries all commands"),
    ("REDIS_PIPELINE_", "commands are always pipelined, without a window"),
    ("REDIS_PERSECOND_PIPELINE_", "commands are always pipelined, without a window"),
    ("REDIS_CLUSTER_PIPELINE_PARALLELISM", "all nodes of a cluster are queried in parallel"),
    ("REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM", "all nodes of a cluster are queried in parallel"),
    ("REDIS_POOL_ON_EMPTY_BEHAVIOR", "there is no pool; one connection carries all commands"),
    ("REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", "there is no pool; one connection carries all commands"),
    (
        "REDIS_STARTUP_",
        "the service retries Redis ten times per second; /healthcheck returns 500 until the first success",
    ),
    (
        "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
        "set XDS_CLIENT_BACKOFF_INITIAL_INTERVAL and XDS_CLIENT_BACKOFF_MAX_INTERVAL",
    ),
    ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "the backoff always has a jitter of up to -20%"),
    ("XDS_CLIENT_BACKOFF_JITTER", "the backoff always has a jitter of up to -20%"),
    (
        "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS",
        "the metric is ratelimit_service_response_time_seconds, in seconds",
    ),
    ("RUNTIME_WATCH_ROOT", "links and files are always watched"),
    ("GRPC_MAX_CONNECTION_AGE_GRACE", "calls in flight always complete"),
];

impl Environment {
    /// The deadline of one decision.
    pub fn deadline(&self) -> Duration {
        let RedisSettings { timeout, per_second_timeout, per_second, .. } = &self.redis;
        let longest = if per_second.is_some() { *timeout.max(per_second_timeout) } else { *timeout };
        self.tidegate.deadline.unwrap_or(longest)
    }

    /// Parses environment variables; ignores unknown ones.
    ///
    /// ```
    /// use tidegate_service::descriptors::Environment;
    ///
    /// let settings = Environment::parse([("HOST", "::"), ("REDIS_URL", "redis:6379")])?;
    /// assert_eq!(settings.http.port, 8080);
    /// assert_eq!(settings.redis.url.as_deref(), Some("redis://redis:6379"));
    /// # Ok::<(), tidegate_service::descriptors::EnvironmentError>(())
    /// ```
    pub fn parse<K: Into<String>, V: Into<String>>(
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, EnvironmentError> {
        let variables = Variables::new(pairs);
        let pick = |is, yes, no| if is { yes } else { no };
        let statsd = statsd::settings(&variables)?;
        let ignored = [&IGNORED_VARIABLES[..], &statsd::ignored_variables(statsd.as_ref())].concat();
        Ok(Self {
            http: variables.endpoint("HOST", "PORT", 8080)?,
            grpc: match variables.path("GRPC_UDS") {
                Some(path) => GrpcBindAddress::Socket(path),
                None => GrpcBindAddress::Tcp(variables.endpoint("GRPC_HOST", "GRPC_PORT", 8081)?),
            },
            debug: variables.endpoint("DEBUG_HOST", "DEBUG_PORT", 6070)?,
            prometheus: prometheus_settings(&variables)?,
            statsd,
            tls: server_tls(&variables)?,
            max_connection_age: variables.duration("GRPC_MAX_CONNECTION_AGE", Duration::from_secs(86_400))?,
            source: config_source(&variables)?,
            merge: if variables.bool("MERGE_DOMAIN_CONFIG")? {
                DomainMerge::Combine
            } else {
                DomainMerge::Reject
            },
            start: match variables.bool("FORCE_START_WITHOUT_INITIAL_CONFIG")? {
                true => StartMode::Immediate,
                false => StartMode::WaitForConfig,
            },
            health: pick(
                variables.bool("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED")?,
                ConfigRequirement::Required,
                ConfigRequirement::Optional,
            ),
            redis: redis::settings(&variables)?,
            counting: counting_settings(&variables)?,
            responses: response_settings(&variables)?,
            tidegate: tidegate::settings(&variables)?,
            log_level: parse_log_level(&variables)?,
            log_format: match variables.choice("LOG_FORMAT", &["text", "json"])? {
                "json" => ServiceLogFormat::Json,
                _ => ServiceLogFormat::Text,
            },
            ignored: variables.find_ignored(&ignored),
        })
    }
}

fn prometheus_settings(variables: &Variables) -> Result<Option<PrometheusSettings>, EnvironmentError> {
    if !variables.bool("USE_PROMETHEUS")? {
        return Ok(None);
    }
    let path = variables.get_or("PROMETHEUS_PATH", "/metrics");
    if !path.starts_with('/') {
        return Err(variables.error("PROMETHEUS_PATH", "a path that starts with a slash, such as /metrics"));
    }
    Ok(Some(PrometheusSettings { endpoint: variables.address("PROMETHEUS_ADDR", 9090)?, path }))
}

fn server_tls(variables: &Variables) -> Result<Option<ServerTls>, EnvironmentError> {
    if !variables.bool("GRPC_SERVER_USE_TLS")? {
        return Ok(None);
    }
    let required = |name| {
        let fix = "the path of a file in PEM, since GRPC_SERVER_USE_TLS is true";
        variables.path(name).ok_or_else(|| variables.error(name, fix))
    };
    Ok(Some(ServerTls {
        certificate: required("GRPC_SERVER_TLS_CERT")?,
        key: required("GRPC_SERVER_TLS_KEY")?,
        client_ca: variables.path("GRPC_CLIENT_TLS_CACERT"),
        client_name: variables.text("GRPC_CLIENT_TLS_SAN"),
    }))
}

fn config_source(variables: &Variables) -> Result<ConfigSourceSettings, EnvironmentError> {
    if variables.choice("CONFIG_TYPE", &["FILE", "GRPC_XDS_SOTW"])? == "GRPC_XDS_SOTW" {
        return xds_settings(variables).map(Box::new).map(ConfigSourceSettings::Xds);
    }
    let mut folder = PathBuf::from(variables.get_or("RUNTIME_ROOT", "/srv/runtime_data/current"));
    folder.extend(variables.text("RUNTIME_SUBDIRECTORY"));
    folder.push(variables.get_or("RUNTIME_APPDIRECTORY", "config"));
    let dotfiles = match variables.bool("RUNTIME_IGNOREDOTFILES")? {
        true => Dotfiles::Ignore,
        false => Dotfiles::Read,
    };
    Ok(ConfigSourceSettings::Folder { folder, dotfiles })
}

fn xds_settings(variables: &Variables) -> Result<XdsEnvironment, EnvironmentError> {
    let tls = variables.bool("CONFIG_GRPC_XDS_SERVER_USE_TLS")?.then(|| XdsTlsFiles {
        certificate: variables.path("CONFIG_GRPC_XDS_CLIENT_TLS_CERT"),
        key: variables.path("CONFIG_GRPC_XDS_CLIENT_TLS_KEY"),
        ca: variables.path("CONFIG_GRPC_XDS_SERVER_TLS_CACERT"),
        server_name: variables.text("CONFIG_GRPC_XDS_SERVER_TLS_SAN"),
    });
    let initial = variables.duration("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", Duration::from_secs(10))?;
    let max = variables.duration("XDS_CLIENT_BACKOFF_MAX_INTERVAL", Duration::from_secs(60))?;
    Ok(XdsEnvironment {
        server: variables.get_or("CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000"),
        node_id: variables.get_or("CONFIG_GRPC_XDS_NODE_ID", "default"),
        node_metadata: variables.pairs("CONFIG_GRPC_XDS_NODE_METADATA")?,
        headers: variables.pairs("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS")?,
        tls,
        backoff: (initial, max),
        max_message: match variables.number(
            "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES",
            0_usize,
            "a number of bytes, such as 16777216",
        )? {
            0 => None,
            bytes => Some(bytes),
        },
    })
}

fn counting_settings(variables: &Variables) -> Result<CountingSettings, EnvironmentError> {
    let near_limit_ratio =
        variables.number("NEAR_LIMIT_RATIO", 0.8_f32, "a ratio from 0 to 1, such as 0.8")?;
    if !(0.0..=1.0).contains(&near_limit_ratio) {
        return Err(variables.error("NEAR_LIMIT_RATIO", "a ratio from 0 to 1, such as 0.8"));
    }
    let jitter =
        variables.number("EXPIRATION_JITTER_MAX_SECONDS", 300_u32, "a number of seconds, such as 300")?;
    let cache = variables.number("LOCAL_CACHE_SIZE_IN_BYTES", 0_u64, "a number of bytes, such as 1048576")?;
    Ok(CountingSettings {
        prefix: variables.get_or("CACHE_KEY_PREFIX", ""),
        near_limit_ratio,
        expiration_jitter: Duration::from_secs(jitter.into()),
        local_cache: (cache > 0).then_some(cache),
        over_limit_counting: match variables.bool("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT")? {
            true => OverLimitCounting::CountOverLimit,
            false => OverLimitCounting::CountAll,
        },
        enforcement: if variables.bool("SHADOW_MODE")? {
            GlobalEnforcement::Shadow
        } else {
            GlobalEnforcement::Enforce
        },
        quota_mode: if variables.bool("QUOTA_MODE")? { QuotaMode::All } else { QuotaMode::Declared },
    })
}

fn response_settings(variables: &Variables) -> Result<ResponseSettings, EnvironmentError> {
    let name = |variable, default| {
        let name = variables.get_or(variable, default);
        let fix = "the name of a header, such as RateLimit-Limit";
        http::HeaderName::try_from(name.as_str()).map_err(|_| variables.error(variable, fix))?;
        Ok(name)
    };
    let headers = match variables.bool("LIMIT_RESPONSE_HEADERS_ENABLED")? {
        false => None,
        true => Some(HeaderNames {
            limit: name("LIMIT_LIMIT_HEADER", "RateLimit-Limit")?,
            remaining: name("LIMIT_REMAINING_HEADER", "RateLimit-Remaining")?,
            reset: name("LIMIT_RESET_HEADER", "RateLimit-Reset")?,
        }),
    };
    let metadata = match variables.bool("RESPONSE_DYNAMIC_METADATA")? {
        true => ResponseMetadataMode::Request,
        false => ResponseMetadataMode::None,
    };
    Ok(ResponseSettings { headers, metadata })
}

fn parse_log_level(variables: &Variables) -> Result<String, EnvironmentError> {
    const LEVELS: [&str; 8] = ["warn", "warning", "trace", "debug", "info", "error", "fatal", "panic"];
    let level = match variables.choice("LOG_LEVEL", &LEVELS)? {
        "warning" => "warn",
        "fatal" | "panic" => "error",
        level => level,
    };
    Ok(level.to_owned())
}

impl fmt::Debug for RedisSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = |url: &Option<String>| url.as_ref().map(|url| url.split(':').next().map(str::to_owned));
        f.debug_struct("RedisSettings")
            .field("url", &scheme(&self.url))
            .field("per_second", &scheme(&self.per_second))
            .field("authority", &self.ca)
            .finish()
    }
}

impl fmt::Display for EnvironmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) if value.is_empty() => write!(f, "missing {}; set it to {}", self.variable, self.fix),
            Some(value) => write!(f, "invalid {}: `{value}`; set it to {}", self.variable, self.fix),
            None => write!(f, "invalid {}; set it to {}", self.variable, self.fix),
        }
    }
}

impl error::Error for EnvironmentError {}

#[cfg(test)]
mod tests;

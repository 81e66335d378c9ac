//! What the environment says, in the variables of envoyproxy/ratelimit.
//!
//! Variables are given as pairs and never asked of the process. One that cannot be read is an error that names it, what it says
//! and what it could say; one that is known and means nothing here is told of, so that nobody waits for what it does.

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

/// All that the environment says.
#[derive(Clone, Debug, PartialEq)]
pub struct Environment {
    /// `HOST`, `PORT`: `/json` and `/healthcheck`.
    pub http: Endpoint,
    /// `GRPC_HOST`, `GRPC_PORT` or `GRPC_UDS`.
    pub grpc: GrpcBindAddress,
    /// `DEBUG_HOST`, `DEBUG_PORT`: `/rlconfig` and `/stats`.
    pub debug: Endpoint,
    /// `USE_PROMETHEUS`, `PROMETHEUS_ADDR`, `PROMETHEUS_PATH`; none unless it is wanted.
    pub prometheus: Option<PrometheusSettings>,
    /// `USE_STATSD`, `USE_DOG_STATSD` and what belongs to them.
    pub statsd: Option<StatsdSettings>,
    /// `GRPC_SERVER_USE_TLS` and what belongs to it.
    pub tls: Option<ServerTls>,
    /// `GRPC_MAX_CONNECTION_AGE`: how long a connection is kept, give or take a tenth.
    pub max_connection_age: Duration,
    /// `CONFIG_TYPE` and what belongs to it.
    pub source: ConfigSourceSettings,
    /// `MERGE_DOMAIN_CONFIG`
    pub merge: DomainMerge,
    /// `FORCE_START_WITHOUT_INITIAL_CONFIG`
    pub start: StartMode,
    /// `HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED`
    pub health: ConfigRequirement,
    /// `REDIS_*`
    pub redis: RedisSettings,
    /// How it is counted.
    pub counting: CountingSettings,
    /// What clients are told.
    pub responses: ResponseSettings,
    /// What only we know.
    pub tidegate: TidegateSettings,
    /// `LOG_LEVEL`, such as `info`.
    pub log_level: String,
    /// `LOG_FORMAT`
    pub log_format: ServiceLogFormat,
    /// Variables that were set and mean nothing here, each with why.
    pub ignored: Vec<(String, &'static str)>,
}

/// Where it listens; on all addresses of both families by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "they are what they say")]
pub struct Endpoint {
    pub host: IpAddr,
    pub port: u16,
}

/// Where gRPC is listened for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrpcBindAddress {
    /// On an address.
    Tcp(Endpoint),
    /// On a socket of this machine.
    Socket(PathBuf),
}

/// Where metrics are.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "they are what they say")]
pub struct PrometheusSettings {
    pub endpoint: Endpoint,
    pub path: String,
}

/// The certificate of the server, and of whom it wants one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTls {
    /// `GRPC_SERVER_TLS_CERT`
    pub certificate: PathBuf,
    /// `GRPC_SERVER_TLS_KEY`
    pub key: PathBuf,
    /// `GRPC_CLIENT_TLS_CACERT`: clients need a certificate of this authority.
    pub client_ca: Option<PathBuf>,
    /// `GRPC_CLIENT_TLS_SAN`: and this name in it.
    pub client_name: Option<String>,
}

/// Where descriptors come from.
#[derive(Clone, Debug, PartialEq)]
pub enum ConfigSourceSettings {
    /// `FILE`: from a folder.
    Folder {
        /// `RUNTIME_ROOT`, `RUNTIME_SUBDIRECTORY` and `RUNTIME_APPDIRECTORY`, one in the other.
        folder: PathBuf,
        /// `RUNTIME_IGNOREDOTFILES`
        dotfiles: Dotfiles,
    },
    /// `GRPC_XDS_SOTW`: from a management server.
    Xds(Box<XdsEnvironment>),
}

/// A management server, `CONFIG_GRPC_XDS_*`.
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
    /// `_SERVER_USE_TLS` and what belongs to it.
    pub tls: Option<XdsTlsFiles>,
    /// `XDS_CLIENT_BACKOFF_INITIAL_INTERVAL`, `XDS_CLIENT_BACKOFF_MAX_INTERVAL`
    pub backoff: (Duration, Duration),
    /// `XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES`
    pub max_message: Option<usize>,
}

/// TLS to a management server. All is left out that was not said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "they are what they say")]
pub struct XdsTlsFiles {
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    pub ca: Option<PathBuf>,
    pub server_name: Option<String>,
}

/// Whether to serve before there are descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartMode {
    /// Descriptors come first.
    WaitForConfig,
    /// There is no waiting for them.
    Immediate,
}

/// The stores. Their addresses may have passwords in them, and are not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisSettings {
    /// The address of the store as Tidegate writes it; none unless `REDIS_URL` is set.
    pub url: Option<String>,
    /// That for what is counted per second, where `REDIS_PERSECOND` wants another.
    pub per_second: Option<String>,
    /// `REDIS_TIMEOUT`: how long the store may take.
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

/// Whether the name of a server must be in its certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostnameVerification {
    /// It must.
    Verify,
    /// The certificate must be signed, for whatever name.
    Skip,
}

/// How it is counted.
#[derive(Clone, Debug, PartialEq)]
pub struct CountingSettings {
    /// `CACHE_KEY_PREFIX`
    pub prefix: String,
    /// `NEAR_LIMIT_RATIO`
    pub near_limit_ratio: f32,
    /// `EXPIRATION_JITTER_MAX_SECONDS`
    pub expiration_jitter: Duration,
    /// `LOCAL_CACHE_SIZE_IN_BYTES`; none where it is zero.
    pub local_cache: Option<u64>,
    /// `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`
    pub over_limit_counting: OverLimitCounting,
    /// `SHADOW_MODE`
    pub enforcement: GlobalEnforcement,
    /// `QUOTA_MODE`
    pub quota_mode: QuotaMode,
}

/// What clients are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseSettings {
    /// `LIMIT_RESPONSE_HEADERS_ENABLED`, with the names of the headers.
    pub headers: Option<HeaderNames>,
    /// `RESPONSE_DYNAMIC_METADATA`
    pub metadata: ResponseMetadataMode,
}

/// How a line of the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "they are what they say")]
pub enum ServiceLogFormat {
    Text,
    Json,
}

/// A variable that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvironmentError {
    /// Its name.
    pub variable: String,
    /// What it says, unless that may be a secret.
    pub value: Option<String>,
    /// What it could say.
    pub fix: String,
}

/// Variables of envoyproxy/ratelimit without effect here, or all that start so, and why.
const IGNORED_VARIABLES: [(&str, &str); 19] = [
    ("PROMETHEUS_MAPPER_YAML", "metrics have their names already"),
    ("TRACING_", "this service sends no traces"),
    ("OTEL_", "this service sends no traces"),
    ("MEMCACHE_", "there is no memcached"),
    ("REDIS_POOL_SIZE", "one connection carries all calls"),
    ("REDIS_PERSECOND_POOL_SIZE", "one connection carries all calls"),
    ("REDIS_PIPELINE_", "calls are gathered without a window"),
    ("REDIS_PERSECOND_PIPELINE_", "calls are gathered without a window"),
    ("REDIS_CLUSTER_PIPELINE_PARALLELISM", "all nodes of a cluster are asked at once"),
    ("REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM", "all nodes of a cluster are asked at once"),
    ("REDIS_POOL_ON_EMPTY_BEHAVIOR", "there is no pool; one connection carries all calls"),
    ("REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", "there is no pool; one connection carries all calls"),
    (
        "REDIS_STARTUP_",
        "Redis is tried ten times a second until it answers; /healthcheck is 500 until it has answered once",
    ),
    (
        "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
        "set XDS_CLIENT_BACKOFF_INITIAL_INTERVAL and XDS_CLIENT_BACKOFF_MAX_INTERVAL",
    ),
    ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "pauses are always shortened by up to a fifth"),
    ("XDS_CLIENT_BACKOFF_JITTER", "pauses are always shortened by up to a fifth"),
    (
        "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS",
        "the metric is ratelimit_service_response_time_seconds and counts seconds",
    ),
    ("RUNTIME_WATCH_ROOT", "links and files are always watched"),
    ("GRPC_MAX_CONNECTION_AGE_GRACE", "calls in flight always end"),
];

impl Environment {
    /// How long the stores may take with one decision.
    pub fn deadline(&self) -> Duration {
        let RedisSettings { timeout, per_second_timeout, per_second, .. } = &self.redis;
        let longest = if per_second.is_some() { *timeout.max(per_second_timeout) } else { *timeout };
        self.tidegate.deadline.unwrap_or(longest)
    }

    /// Reads the variables of an environment; those that nobody knows belong to others.
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
        variables.number("NEAR_LIMIT_RATIO", 0.8_f32, "a share from 0 to 1, such as 0.8")?;
    if !(0.0..=1.0).contains(&near_limit_ratio) {
        return Err(variables.error("NEAR_LIMIT_RATIO", "a share from 0 to 1, such as 0.8"));
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
    let name = |variable, usual| {
        let name = variables.get_or(variable, usual);
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
            Some(value) => write!(f, "{} is `{value}`; set it to {}", self.variable, self.fix),
            None => write!(f, "{} cannot be used; set it to {}", self.variable, self.fix),
        }
    }
}

impl error::Error for EnvironmentError {}

#[cfg(test)]
mod tests;

use super::*;
use crate::descriptors::{ResponseBodyMode, ResponseHeaderMode};
use tidegate_limiter::FailureMode;

fn parse(pairs: &[(&str, &str)]) -> Result<Environment, EnvironmentError> {
    Environment::parse(pairs.iter().copied())
}

fn endpoint(host: &str, port: u16) -> Endpoint {
    Endpoint { host: host.parse().unwrap(), port }
}

#[test]
fn defaults_are_those_of_the_reference() {
    let settings = parse(&[]).unwrap();
    assert_eq!(settings.http, endpoint("::", 8080));
    assert_eq!(settings.grpc, GrpcBindAddress::Tcp(endpoint("::", 8081)));
    assert_eq!(settings.debug, endpoint("::", 6070));
    assert_eq!(settings.deadline(), Duration::from_secs(10));
    assert_eq!(
        (settings.redis.store_requirement, settings.redis.hostname_verification),
        (StoreRequirement::Startup, HostnameVerification::Verify)
    );
    assert_eq!((settings.prometheus, settings.tls), (None, None));
    let folder = PathBuf::from("/srv/runtime_data/current/config");
    assert_eq!(settings.source, ConfigSourceSettings::Folder { folder, dotfiles: Dotfiles::Read });
    assert_eq!(
        (settings.merge, settings.start, settings.health),
        (DomainMerge::Reject, StartMode::WaitForConfig, ConfigRequirement::Optional)
    );
    assert_eq!(settings.redis.url, None);
    assert_eq!(settings.counting.expiration_jitter, Duration::from_secs(300));
    assert_eq!((settings.log_level.as_str(), settings.log_format), ("warn", ServiceLogFormat::Text));
    assert_eq!(settings.max_connection_age, Duration::from_secs(86_400));
    assert!(settings.ignored.is_empty());
}

/// The variables that Envoy Gateway sets.
#[test]
fn envoy_gateway_variables_are_read() {
    let settings = parse(&[
        ("RUNTIME_ROOT", "/data"),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("RUNTIME_IGNOREDOTFILES", "true"),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("LOG_LEVEL", "info"),
        ("USE_STATSD", "false"),
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", "envoy-gateway:18001"),
        ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/certs/tls.crt"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/certs/tls.key"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/certs/ca.crt"),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", "/certs/tls.crt"),
        ("GRPC_SERVER_TLS_KEY", "/certs/tls.key"),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", "redis:6379"),
        ("USE_PROMETHEUS", "true"),
        ("PROMETHEUS_ADDR", ":19001"),
        ("TRACING_ENABLED", "true"),
        ("HOME", "elsewhere"),
    ])
    .unwrap();
    let ConfigSourceSettings::Xds(xds) = settings.source else { panic!("{:?}", settings.source) };
    assert_eq!((xds.server.as_str(), xds.node_id.as_str()), ("envoy-gateway:18001", "envoy-ratelimit"));
    let tls = xds.tls.unwrap();
    assert_eq!((tls.ca, tls.server_name), (Some("/certs/ca.crt".into()), None));
    assert_eq!(xds.backoff, (Duration::from_secs(10), Duration::from_secs(60)));
    let tls = settings.tls.unwrap();
    assert_eq!((tls.certificate, tls.client_ca), (PathBuf::from("/certs/tls.crt"), None));
    assert_eq!(settings.start, StartMode::Immediate);
    assert_eq!(settings.prometheus.unwrap().endpoint, endpoint("::", 19001));
    assert_eq!(settings.log_level, "info");
    let ignored: Vec<_> = settings.ignored.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(ignored, ["RUNTIME_WATCH_ROOT", "TRACING_ENABLED"]);
    assert_eq!(settings.statsd, None);
}

#[test]
fn variables_set_their_fields() {
    let settings = parse(&[
        ("HOST", "::"),
        ("GRPC_HOST", "0.0.0.0"),
        ("GRPC_PORT", "9"),
        ("RUNTIME_ROOT", "/data"),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("RUNTIME_IGNOREDOTFILES", "1"),
        ("MERGE_DOMAIN_CONFIG", "T"),
        ("SHADOW_MODE", "true"),
        ("QUOTA_MODE", "true"),
        ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true"),
        ("LOCAL_CACHE_SIZE_IN_BYTES", "1024"),
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
        ("LIMIT_RESET_HEADER", "x-reset"),
        ("RESPONSE_DYNAMIC_METADATA", "true"),
        ("GRPC_MAX_CONNECTION_AGE", "1h30m"),
        ("LOG_FORMAT", "json"),
        ("CACHE_KEY_PREFIX", "p_"),
    ])
    .unwrap();
    assert_eq!(settings.http.host.to_string(), "::");
    assert_eq!(settings.grpc, GrpcBindAddress::Tcp(endpoint("0.0.0.0", 9)));
    let folder = PathBuf::from("/data/ratelimit/config");
    assert_eq!(settings.source, ConfigSourceSettings::Folder { folder, dotfiles: Dotfiles::Ignore });
    assert_eq!(settings.merge, DomainMerge::Combine);
    let counting = settings.counting;
    assert_eq!((counting.enforcement, counting.quota_mode), (GlobalEnforcement::Shadow, QuotaMode::All));
    assert_eq!(
        (counting.over_limit_counting, counting.local_cache),
        (OverLimitCounting::CountOverLimit, Some(1024))
    );
    assert_eq!(counting.prefix, "p_");
    let headers = settings.responses.headers.unwrap();
    assert_eq!((headers.limit.as_str(), headers.reset.as_str()), ("RateLimit-Limit", "x-reset"));
    assert_eq!(settings.responses.metadata, ResponseMetadataMode::Request);
    assert_eq!(settings.max_connection_age, Duration::from_secs(5_400));
    assert_eq!(settings.log_format, ServiceLogFormat::Json);
    let socket = parse(&[("GRPC_UDS", "/run/rl.sock")]).unwrap().grpc;
    assert_eq!(socket, GrpcBindAddress::Socket("/run/rl.sock".into()));
}

#[test]
fn redis_variables_become_urls() {
    let table: [(&[(&str, &str)], &str); 11] = [
        (
            &[("URL", "m,a:1"), ("TYPE", "SENTINEL"), ("AUTH", "x"), ("SENTINEL_AUTH", "p&w")],
            "redis+sentinel://:x@a:1/m?sentinel-password=p%26w",
        ),
        (
            &[("URL", "m,a:1"), ("TYPE", "SENTINEL"), ("SENTINEL_AUTH", "me:pw")],
            "redis+sentinel://a:1/m?sentinel-user=me&sentinel-password=pw",
        ),
        (&[("URL", "redis:6379")], "redis://redis:6379"),
        (&[("URL", "redis:6379"), ("TLS", "true")], "rediss://redis:6379"),
        (&[("URL", "redis:6379"), ("AUTH", "p@ss")], "redis://:p%40ss@redis:6379"),
        (&[("URL", "redis:6379"), ("AUTH", "me:pw")], "redis://me:pw@redis:6379"),
        (&[("URL", "m,a:1,b:2"), ("TYPE", "SENTINEL")], "redis+sentinel://a:1,b:2/m"),
        (&[("URL", "a:1,b:2"), ("TYPE", "cluster"), ("AUTH", "x")], "redis+cluster://:x@a:1,b:2"),
        (&[("URL", "a:1"), ("TYPE", "CLUSTER"), ("TLS", "true")], "rediss+cluster://a:1"),
        (
            &[("URL", "/run/r.sock"), ("SOCKET_TYPE", "unix"), ("AUTH", "x")],
            "redis+unix:///run/r.sock?pass=x",
        ),
        (&[("URL", "rediss://db:1/2")], "rediss://db:1/2"),
    ];
    for (pairs, url) in table {
        for prefix in ["REDIS_", "REDIS_PERSECOND_"] {
            let named = pairs.iter().map(|(name, value)| (format!("{prefix}{name}"), (*value).to_owned()));
            let per_second = ("REDIS_PERSECOND".to_owned(), (prefix != "REDIS_").to_string());
            let default = ("REDIS_URL".to_owned(), "other:6379".to_owned());
            let redis = Environment::parse([default, per_second].into_iter().chain(named)).unwrap().redis;
            let found = if prefix == "REDIS_" { &redis.url } else { &redis.per_second };
            assert_eq!(found.as_deref(), Some(url));
        }
    }
    let secret = parse(&[("REDIS_URL", "r:1"), ("REDIS_AUTH", "hunter2")]).unwrap();
    assert!(!format!("{secret:?}").contains("hunter2"));
}

#[test]
fn tidegate_variables_are_read() {
    let default = parse(&[]).unwrap().tidegate;
    assert_eq!(
        (default.counting, default.outage, default.lease),
        (CountingChoice::Reference, FailureMode::Closed, None)
    );
    assert_eq!(default.deadline, None);
    assert_eq!((default.headers, default.body), (None, ResponseBodyMode::None));
    let own = parse(&[
        ("TIDEGATE_COUNTING", "SHARED"),
        ("TIDEGATE_OUTAGE", "local 3"),
        ("TIDEGATE_DEADLINE", "40ms"),
        ("TIDEGATE_LEASE", "200ms"),
        ("TIDEGATE_HEADERS", "ietf"),
        ("TIDEGATE_BODY", "problem"),
        ("TIDEGATE_ADMIN_TOKEN", "hunter2"),
    ]);
    let own = own.unwrap().tidegate;
    assert_eq!((own.counting, own.outage), (CountingChoice::Shared, FailureMode::Local { nodes: 3 }));
    assert_eq!(
        (own.deadline, own.lease),
        (Some(Duration::from_millis(40)), Some(Duration::from_millis(200)))
    );
    assert_eq!((&own.headers, own.body), (&Some(ResponseHeaderMode::Ietf), ResponseBodyMode::Problem));
    assert!(!format!("{own:?}").contains("hunter2"));
    assert_eq!(parse(&[("TIDEGATE_OUTAGE", "open")]).unwrap().tidegate.outage, FailureMode::Open);

    let redis =
        parse(&[("REDIS_TLS_CLIENT_CERT", "c.pem"), ("REDIS_TLS_CLIENT_KEY", "k.pem")]).unwrap().redis;
    assert_eq!(redis.identity, Some(("c.pem".into(), "k.pem".into())));
}

#[test]
fn invalid_variables_are_reported_with_a_fix() {
    let table: [(&[(&str, &str)], &str); 19] = [
        (&[("PORT", "many")], "invalid PORT: `many`; set it to a port from 0 to 65535"),
        (&[("HOST", "here")], "invalid HOST: `here`; set it to an address such as 0.0.0.0, :: or 127.0.0.1"),
        (&[("SHADOW_MODE", "maybe")], "invalid SHADOW_MODE: `maybe`; set it to true or false"),
        (&[("CONFIG_TYPE", "S3")], "invalid CONFIG_TYPE: `S3`; set it to one of FILE, GRPC_XDS_SOTW"),
        (
            &[("USE_PROMETHEUS", "true"), ("PROMETHEUS_ADDR", "9090")],
            "invalid PROMETHEUS_ADDR: `9090`; set it to an address and a port such as :9090 or 127.0.0.1:9090",
        ),
        (
            &[("USE_PROMETHEUS", "true"), ("PROMETHEUS_PATH", "m")],
            "invalid PROMETHEUS_PATH: `m`; set it to a path that starts with a slash, such as /metrics",
        ),
        (
            &[("GRPC_SERVER_USE_TLS", "true")],
            "missing GRPC_SERVER_TLS_CERT; set it to the path of a file in PEM, since GRPC_SERVER_USE_TLS is true",
        ),
        (
            &[("NEAR_LIMIT_RATIO", "80")],
            "invalid NEAR_LIMIT_RATIO: `80`; set it to a ratio from 0 to 1, such as 0.8",
        ),
        (
            &[("NEAR_LIMIT_RATIO", "NaN")],
            "invalid NEAR_LIMIT_RATIO: `NaN`; set it to a ratio from 0 to 1, such as 0.8",
        ),
        (
            &[("EXPIRATION_JITTER_MAX_SECONDS", "-1")],
            "invalid EXPIRATION_JITTER_MAX_SECONDS: `-1`; set it to a number of seconds, such as 300",
        ),
        (
            &[("GRPC_MAX_CONNECTION_AGE", "1 day")],
            "invalid GRPC_MAX_CONNECTION_AGE: `1 day`; set it to a duration such as 24h, 90s or 1h30m",
        ),
        (
            &[("LIMIT_RESPONSE_HEADERS_ENABLED", "1"), ("LIMIT_LIMIT_HEADER", "a b")],
            "invalid LIMIT_LIMIT_HEADER: `a b`; set it to the name of a header, such as RateLimit-Limit",
        ),
        (
            &[("TIDEGATE_DEADLINE", "2m")],
            "invalid TIDEGATE_DEADLINE: `2m`; set it to a duration from 1ms to 60s, such as 100ms",
        ),
        (
            &[("BACKEND_TYPE", "memcache")],
            "invalid BACKEND_TYPE: `memcache`; set it to redis; memcached is not supported",
        ),
        (
            &[("REDIS_URL", "a:1,b:2")],
            "invalid REDIS_URL; set it to one host:port, or set the type to CLUSTER or SENTINEL",
        ),
        (
            &[("REDIS_URL", "m"), ("REDIS_TYPE", "SENTINEL")],
            "invalid REDIS_URL; set it to the name of the primary and its sentinels: mymaster,host:port,host:port",
        ),
        (
            &[("REDIS_URL", "a:1"), ("REDIS_SOCKET_TYPE", "unix")],
            "invalid REDIS_URL; set it to the path of a socket, or set the socket type to tcp",
        ),
        (
            &[("REDIS_PERSECOND", "true")],
            "missing REDIS_PERSECOND_URL; set it to host:port of the second Redis, since REDIS_PERSECOND is true",
        ),
        (
            &[("CONFIG_TYPE", "GRPC_XDS_SOTW"), ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "secret")],
            "invalid CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS; set it to pairs such as a:b,c:d",
        ),
    ];
    for (pairs, expected) in table {
        assert_eq!(parse(pairs).unwrap_err().to_string(), expected);
    }
}

/// All variables of envoyproxy/ratelimit, each with a value other than its default and the variables that it requires.
const REFERENCE_VARIABLES: [(&str, &str, &str); 100] = [
    ("HOST", "127.0.0.1", ""),
    ("PORT", "1", ""),
    ("DEBUG_HOST", "127.0.0.1", ""),
    ("DEBUG_PORT", "1", ""),
    ("GRPC_UDS", "/run/a.sock", ""),
    ("GRPC_HOST", "127.0.0.1", ""),
    ("GRPC_PORT", "1", ""),
    ("GRPC_MAX_CONNECTION_AGE", "1h", ""),
    ("GRPC_MAX_CONNECTION_AGE_GRACE", "2h", ""),
    ("GRPC_SERVER_USE_TLS", "true", "GRPC_SERVER_TLS_CERT=a GRPC_SERVER_TLS_KEY=b"),
    ("GRPC_SERVER_TLS_CERT", "c", "GRPC_SERVER_USE_TLS=true GRPC_SERVER_TLS_CERT=a GRPC_SERVER_TLS_KEY=b"),
    ("GRPC_SERVER_TLS_KEY", "c", "GRPC_SERVER_USE_TLS=true GRPC_SERVER_TLS_CERT=a GRPC_SERVER_TLS_KEY=b"),
    ("GRPC_CLIENT_TLS_CACERT", "c", "GRPC_SERVER_USE_TLS=true GRPC_SERVER_TLS_CERT=a GRPC_SERVER_TLS_KEY=b"),
    ("GRPC_CLIENT_TLS_SAN", "c", "GRPC_SERVER_USE_TLS=true GRPC_SERVER_TLS_CERT=a GRPC_SERVER_TLS_KEY=b"),
    ("LOG_LEVEL", "debug", ""),
    ("LOG_FORMAT", "json", ""),
    ("CONFIG_TYPE", "GRPC_XDS_SOTW", ""),
    ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true", ""),
    ("CONFIG_GRPC_XDS_NODE_ID", "n", "CONFIG_TYPE=GRPC_XDS_SOTW"),
    ("CONFIG_GRPC_XDS_NODE_METADATA", "a:b", "CONFIG_TYPE=GRPC_XDS_SOTW"),
    ("CONFIG_GRPC_XDS_SERVER_URL", "a:1", "CONFIG_TYPE=GRPC_XDS_SOTW"),
    ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "1s", "CONFIG_TYPE=GRPC_XDS_SOTW"),
    ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "a:b", "CONFIG_TYPE=GRPC_XDS_SOTW"),
    ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true", "CONFIG_TYPE=GRPC_XDS_SOTW"),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "a", "CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_USE_TLS=true"),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "a", "CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_USE_TLS=true"),
    (
        "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
        "a",
        "CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_USE_TLS=true",
    ),
    ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "a", "CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_USE_TLS=true"),
    ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "1s", "CONFIG_TYPE=GRPC_XDS_SOTW"),
    ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "1s", "CONFIG_TYPE=GRPC_XDS_SOTW"),
    ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "0.1", "CONFIG_TYPE=GRPC_XDS_SOTW"),
    ("XDS_CLIENT_BACKOFF_JITTER", "false", "CONFIG_TYPE=GRPC_XDS_SOTW"),
    ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "1000", "CONFIG_TYPE=GRPC_XDS_SOTW"),
    ("USE_DOG_STATSD", "true", "USE_STATSD=false"),
    (
        "USE_DOG_STATSD_MOGRIFIERS",
        "A",
        "USE_STATSD=false USE_DOG_STATSD=true DOG_STATSD_MOGRIFIER_A_PATTERN=a DOG_STATSD_MOGRIFIER_A_NAME=b",
    ),
    ("USE_STATSD", "false", ""),
    ("STATSD_HOST", "statsd", ""),
    ("STATSD_PORT", "1", ""),
    ("EXTRA_TAGS", "a:b", ""),
    ("STATS_FLUSH_INTERVAL", "1s", ""),
    ("DISABLE_STATS", "true", ""),
    ("USE_PROMETHEUS", "true", "USE_STATSD=false"),
    ("PROMETHEUS_ADDR", ":1", "USE_STATSD=false USE_PROMETHEUS=true"),
    ("PROMETHEUS_PATH", "/m", "USE_STATSD=false USE_PROMETHEUS=true"),
    ("PROMETHEUS_MAPPER_YAML", "a", "USE_STATSD=false USE_PROMETHEUS=true"),
    ("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "true", "USE_STATSD=false USE_PROMETHEUS=true"),
    ("RUNTIME_ROOT", "/a", ""),
    ("RUNTIME_SUBDIRECTORY", "a", ""),
    ("RUNTIME_APPDIRECTORY", "a", ""),
    ("RUNTIME_IGNOREDOTFILES", "true", ""),
    ("RUNTIME_WATCH_ROOT", "false", ""),
    ("EXPIRATION_JITTER_MAX_SECONDS", "1", ""),
    ("LOCAL_CACHE_SIZE_IN_BYTES", "1", ""),
    ("NEAR_LIMIT_RATIO", "0.5", ""),
    ("CACHE_KEY_PREFIX", "a", ""),
    ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true", ""),
    ("LIMIT_RESPONSE_HEADERS_ENABLED", "true", ""),
    ("LIMIT_LIMIT_HEADER", "a", "LIMIT_RESPONSE_HEADERS_ENABLED=true"),
    ("LIMIT_REMAINING_HEADER", "a", "LIMIT_RESPONSE_HEADERS_ENABLED=true"),
    ("LIMIT_RESET_HEADER", "a", "LIMIT_RESPONSE_HEADERS_ENABLED=true"),
    ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true", ""),
    ("REDIS_SOCKET_TYPE", "tcp", "REDIS_URL=/a"),
    ("REDIS_TYPE", "CLUSTER", "REDIS_URL=a:1"),
    ("REDIS_URL", "a:1", ""),
    ("REDIS_POOL_SIZE", "1", "REDIS_URL=a:1"),
    ("REDIS_AUTH", "a", "REDIS_URL=a:1"),
    ("REDIS_TLS", "true", "REDIS_URL=a:1"),
    (
        "REDIS_TLS_CLIENT_CERT",
        "c",
        "REDIS_URL=a:1 REDIS_TLS=true REDIS_TLS_CLIENT_CERT=a REDIS_TLS_CLIENT_KEY=b",
    ),
    (
        "REDIS_TLS_CLIENT_KEY",
        "c",
        "REDIS_URL=a:1 REDIS_TLS=true REDIS_TLS_CLIENT_CERT=a REDIS_TLS_CLIENT_KEY=b",
    ),
    ("REDIS_TLS_CACERT", "c", "REDIS_URL=a:1 REDIS_TLS=true"),
    ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "true", "REDIS_URL=a:1 REDIS_TLS=true"),
    ("REDIS_PIPELINE_WINDOW", "150us", "REDIS_URL=a:1"),
    ("REDIS_PIPELINE_LIMIT", "1", "REDIS_URL=a:1"),
    ("REDIS_CLUSTER_PIPELINE_PARALLELISM", "2", "REDIS_URL=a:1"),
    ("REDIS_PERSECOND", "true", "REDIS_URL=a:1 REDIS_PERSECOND_URL=b:1"),
    ("REDIS_PERSECOND_SOCKET_TYPE", "tcp", "REDIS_URL=a:1 REDIS_PERSECOND=true REDIS_PERSECOND_URL=/a"),
    ("REDIS_PERSECOND_TYPE", "CLUSTER", "REDIS_URL=a:1 REDIS_PERSECOND=true REDIS_PERSECOND_URL=b:1"),
    ("REDIS_PERSECOND_URL", "c:1", "REDIS_URL=a:1 REDIS_PERSECOND=true REDIS_PERSECOND_URL=b:1"),
    ("REDIS_PERSECOND_POOL_SIZE", "1", "REDIS_URL=a:1 REDIS_PERSECOND=true REDIS_PERSECOND_URL=b:1"),
    ("REDIS_PERSECOND_AUTH", "a", "REDIS_URL=a:1 REDIS_PERSECOND=true REDIS_PERSECOND_URL=b:1"),
    ("REDIS_PERSECOND_TLS", "true", "REDIS_URL=a:1 REDIS_PERSECOND=true REDIS_PERSECOND_URL=b:1"),
    ("REDIS_SENTINEL_AUTH", "a", "REDIS_URL=m,a:1 REDIS_TYPE=SENTINEL"),
    (
        "REDIS_PERSECOND_SENTINEL_AUTH",
        "a",
        "REDIS_URL=a:1 REDIS_PERSECOND=true REDIS_PERSECOND_URL=m,b:1 REDIS_PERSECOND_TYPE=SENTINEL",
    ),
    ("REDIS_PERSECOND_PIPELINE_WINDOW", "1us", "REDIS_URL=a:1"),
    ("REDIS_PERSECOND_PIPELINE_LIMIT", "1", "REDIS_URL=a:1"),
    ("REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM", "2", "REDIS_URL=a:1"),
    ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true", "REDIS_URL=a:1"),
    ("REDIS_TIMEOUT", "1s", "REDIS_URL=a:1"),
    ("REDIS_PERSECOND_TIMEOUT", "1s", "REDIS_URL=a:1"),
    ("REDIS_POOL_ON_EMPTY_BEHAVIOR", "WAIT", "REDIS_URL=a:1"),
    ("REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", "WAIT", "REDIS_URL=a:1"),
    ("REDIS_STARTUP_INITIAL_INTERVAL", "2s", "REDIS_URL=a:1"),
    ("REDIS_STARTUP_MAX_INTERVAL", "2s", "REDIS_URL=a:1"),
    ("REDIS_STARTUP_MAX_ELAPSED_TIME", "2s", "REDIS_URL=a:1"),
    ("MEMCACHE_HOST_PORT", "a:1", ""),
    ("SHADOW_MODE", "true", ""),
    ("QUOTA_MODE", "true", ""),
    ("RESPONSE_DYNAMIC_METADATA", "true", ""),
    ("MERGE_DOMAIN_CONFIG", "true", ""),
    ("TRACING_ENABLED", "true", ""),
];

#[test]
fn every_variable_of_the_reference_has_an_effect_or_is_reported() {
    for (name, value, context) in REFERENCE_VARIABLES {
        let context: Vec<_> = context.split_whitespace().filter_map(|pair| pair.split_once('=')).collect();
        let without = parse(&context).unwrap();
        let with = parse(&[context.as_slice(), &[(name, value)]].concat()).unwrap();
        let is_reported = with.ignored.iter().any(|(known, _)| known == name);
        let has_effect = Environment { ignored: without.ignored.clone(), ..with } != without;
        assert!(is_reported != has_effect, "{name}: reported {is_reported}, has effect {has_effect}");
    }
}

#[test]
fn statsd_defaults_match_the_reference() {
    let default = parse(&[]).unwrap().statsd.unwrap();
    assert_eq!(
        (default.protocol, default.host.as_str(), default.port),
        (StatsdProtocol::Statsd, "localhost", 8125)
    );
    assert_eq!((default.interval, default.tags), (Duration::from_secs(10), Vec::new()));
    let off: [&[(&str, &str)]; 3] =
        [&[("USE_STATSD", "false")], &[("USE_PROMETHEUS", "true")], &[("DISABLE_STATS", "true")]];
    for variables in off {
        assert_eq!(parse(variables).unwrap().statsd, None, "{variables:?}");
    }
    let dog = [("USE_DOG_STATSD", "true"), ("EXTRA_TAGS", "a:b"), ("USE_DOG_STATSD_MOGRIFIERS", "X")];
    let more = [("DOG_STATSD_MOGRIFIER_X_PATTERN", "^(a+)$"), ("DOG_STATSD_MOGRIFIER_X_NAME", "$1")];
    let settings = parse(&[&dog[..], &more].concat()).unwrap();
    assert!(settings.ignored.is_empty());
    let settings = settings.statsd.unwrap();
    assert_eq!((settings.protocol, settings.mogrifiers[0].name.as_str()), (StatsdProtocol::DogStatsd, "$1"));
    for (variables, invalid) in [
        (vec![("USE_STATSD", "true"), ("USE_PROMETHEUS", "true")], "USE_STATSD"),
        (vec![("USE_STATSD", "true"), ("USE_DOG_STATSD", "true")], "USE_STATSD"),
        (vec![("USE_DOG_STATSD", "true"), ("USE_PROMETHEUS", "true")], "USE_DOG_STATSD"),
        (vec![("STATS_FLUSH_INTERVAL", "0s")], "STATS_FLUSH_INTERVAL"),
        (vec![("STATSD_PORT", "many")], "STATSD_PORT"),
        (dog.to_vec(), "DOG_STATSD_MOGRIFIER_X_PATTERN"),
        ([&dog[..], &[more[0]]].concat(), "DOG_STATSD_MOGRIFIER_X_NAME"),
        (
            [&dog[..], &[("DOG_STATSD_MOGRIFIER_X_PATTERN", "("), more[1]]].concat(),
            "DOG_STATSD_MOGRIFIER_X_PATTERN",
        ),
    ] {
        assert_eq!(parse(&variables).unwrap_err().variable, invalid, "{variables:?}");
    }
    let without = [("USE_STATSD", "false"), ("STATSD_HOST", "a"), ("EXTRA_TAGS", "a:b")];
    let ignored: Vec<_> = parse(&without).unwrap().ignored.into_iter().map(|(name, _)| name).collect();
    assert_eq!(ignored, ["EXTRA_TAGS", "STATSD_HOST"]);
}

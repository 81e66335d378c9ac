//! `docs/environment.md` lists the environment variables that the source reads, with the defaults in the source.

use crate::{assert_current, root};
use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};
use tidegate_testkit::error_texts::{string_literals, visit_files};

const HEADER: &str = "# Environment variables

This page lists the environment variables that Tidegate reads. Names and defaults are collected from the source;
`TIDEGATE_BLESS=1 cargo test -p tidegate-testkit --test reference` writes it. A policy can name more variables, for tokens and in the
addresses of stores; see [policy-reference.md](policy-reference.md).
";

/// The variables of commands, of attributes and of libraries. The first two columns are the variable and who reads it.
const GENERAL: &[(&str, &str, &str)] = &[
    ("COLUMNS", "all commands", "The width of the output, in characters. Without it, 80."),
    ("NO_COLOR", "all commands", "Any value turns off colors."),
    (
        "PATH",
        "`serve` without a policy",
        "The directories of programs. The demo prints commands with the name of the program if it is in one of them, and otherwise with its path.",
    ),
    (
        "TIDEGATE_ADMIN",
        "`top`, `why`, `feature`, `mode` and others",
        "The URL of the admin API, if `--admin` is not given.",
    ),
    (
        "TIDEGATE_ADMIN_TOKEN",
        "the same commands",
        "A token of `admin` in the policy, which is sent; its role must permit the command. Without it, no token is sent.",
    ),
    (
        "TIDEGATE_POLICY",
        "Rust programs with attributes",
        "The policy file that applies to attributes. Without it, the quotas in the code apply, or those of `tidegate::init`.",
    ),
];

/// The variables of the rate limit service for Envoy.
const SERVICE: &[(&str, &str)] = &[
    ("BACKEND_TYPE", "The store; only `redis` is supported. Without `REDIS_URL`, counters are in memory."),
    ("CACHE_KEY_PREFIX", "The prefix of all keys in Redis."),
    ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "Headers for the management server, as in `a:b,c:d`."),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "The file with the certificate for the management server (PEM)."),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "The file with its private key (PEM)."),
    ("CONFIG_GRPC_XDS_NODE_ID", "The id of this node for the management server."),
    ("CONFIG_GRPC_XDS_NODE_METADATA", "Metadata of this node for the management server, as in `a:b,c:d`."),
    (
        "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
        "The file with the CA certificates of the management server (PEM).",
    ),
    ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "The name in the certificate of the management server."),
    ("CONFIG_GRPC_XDS_SERVER_URL", "The host and port of the management server."),
    ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "Whether the management server uses TLS."),
    ("CONFIG_TYPE", "The source of the limits: `FILE`, or `GRPC_XDS_SOTW` for a management server."),
    ("DEBUG_HOST", "The address of `/rlconfig`, `/stats` and `/metrics`."),
    ("DEBUG_PORT", "Its port."),
    ("DISABLE_STATS", "Whether nothing is sent to statsd."),
    ("DOG_STATSD_MOGRIFIER_NAME_NAME", "The name of the metric of a mogrifier; `NAME` is its name."),
    ("DOG_STATSD_MOGRIFIER_NAME_PATTERN", "The regular expression of the names that a mogrifier changes."),
    ("DOG_STATSD_MOGRIFIER_NAME_TAGS", "The tags of a mogrifier, as in `a:b,c:$1`."),
    (
        "EXPIRATION_JITTER_MAX_SECONDS",
        "The maximum random time by which keys of envoyproxy/ratelimit expire later.",
    ),
    ("EXTRA_TAGS", "Tags of all metrics in DogStatsD, as in `a:b,c:d`."),
    ("FORCE_START_WITHOUT_INITIAL_CONFIG", "Whether the service starts before its first configuration."),
    (
        "GRPC_CLIENT_TLS_CACERT",
        "The file with the CA certificates of gRPC clients (PEM). Without it, clients need no certificate.",
    ),
    ("GRPC_CLIENT_TLS_SAN", "The name that certificates of gRPC clients must contain."),
    ("GRPC_HOST", "The address of the gRPC service."),
    ("GRPC_MAX_CONNECTION_AGE", "The maximum age of a gRPC connection, with a jitter of 10 %."),
    ("GRPC_PORT", "The port of the gRPC service."),
    ("GRPC_SERVER_TLS_CERT", "The file with the certificate of the gRPC service (PEM)."),
    ("GRPC_SERVER_TLS_KEY", "The file with its private key (PEM)."),
    ("GRPC_SERVER_USE_TLS", "Whether the gRPC service uses TLS."),
    ("GRPC_UDS", "The path of a Unix domain socket for gRPC, instead of an address."),
    (
        "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
        "Whether the service is unhealthy until a configuration is loaded.",
    ),
    ("HOST", "The address of `/json` and `/healthcheck`."),
    ("LIMIT_LIMIT_HEADER", "The name of the header with the limit."),
    ("LIMIT_REMAINING_HEADER", "The name of the header with the remaining quota."),
    ("LIMIT_RESET_HEADER", "The name of the header with the time until the reset."),
    ("LIMIT_RESPONSE_HEADERS_ENABLED", "Whether responses contain these three headers."),
    ("LOCAL_CACHE_SIZE_IN_BYTES", "The size of the cache of keys that are over their limit; 0 for none."),
    ("LOG_FORMAT", "The format of the log: `text` or `json`."),
    ("LOG_LEVEL", "The least severe level in the log."),
    ("MERGE_DOMAIN_CONFIG", "Whether several files may configure the same domain."),
    ("NEAR_LIMIT_RATIO", "The share of a limit above which hits count as near the limit, in metrics."),
    ("PORT", "The port of `/json` and `/healthcheck`."),
    ("PROMETHEUS_ADDR", "The address and port of the metrics for Prometheus."),
    ("PROMETHEUS_PATH", "Their path."),
    ("QUOTA_MODE", "Whether all limits have `quota_mode`."),
    ("REDIS_AUTH", "The password of Redis, or the user and the password as in `user:password`."),
    (
        "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION",
        "Whether the service is unhealthy without a connection to Redis.",
    ),
    ("REDIS_PERSECOND", "Whether limits per second have a Redis of their own."),
    ("REDIS_PERSECOND_AUTH", "As `REDIS_AUTH`, for limits per second."),
    ("REDIS_PERSECOND_SENTINEL_AUTH", "As `REDIS_SENTINEL_AUTH`, for limits per second."),
    ("REDIS_PERSECOND_SOCKET_TYPE", "As `REDIS_SOCKET_TYPE`, for limits per second."),
    ("REDIS_PERSECOND_TIMEOUT", "As `REDIS_TIMEOUT`, for limits per second."),
    ("REDIS_PERSECOND_TLS", "As `REDIS_TLS`, for limits per second."),
    ("REDIS_PERSECOND_TYPE", "As `REDIS_TYPE`, for limits per second."),
    ("REDIS_PERSECOND_URL", "As `REDIS_URL`, for limits per second."),
    ("REDIS_SENTINEL_AUTH", "The password of the sentinels."),
    ("REDIS_SOCKET_TYPE", "`tcp`, or `unix` for the path of a socket in `REDIS_URL`."),
    ("REDIS_TIMEOUT", "How long a call to Redis may take."),
    ("REDIS_TLS", "Whether Redis uses TLS."),
    ("REDIS_TLS_CACERT", "The file with the CA certificates of Redis (PEM)."),
    ("REDIS_TLS_CLIENT_CERT", "The file with the certificate for Redis (PEM)."),
    ("REDIS_TLS_CLIENT_KEY", "The file with its private key (PEM)."),
    ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "Whether the certificate of Redis may have another host name."),
    ("REDIS_TYPE", "`SINGLE`, `SENTINEL` or `CLUSTER`."),
    (
        "REDIS_URL",
        "The host and port of Redis, or several for sentinels and clusters. Without it, counters are in memory.",
    ),
    ("RESPONSE_DYNAMIC_METADATA", "Whether responses contain the request as dynamic metadata."),
    ("RUNTIME_APPDIRECTORY", "The directory with the files, below the other two."),
    ("RUNTIME_IGNOREDOTFILES", "Whether files whose name starts with a dot are ignored."),
    ("RUNTIME_ROOT", "The first part of the path of the files with the limits."),
    ("RUNTIME_SUBDIRECTORY", "The second part of that path."),
    ("SHADOW_MODE", "Whether all limits are in shadow mode."),
    ("STATSD_HOST", "The host of statsd."),
    ("STATSD_PORT", "The port of statsd."),
    ("STATS_FLUSH_INTERVAL", "The interval at which metrics are sent to statsd."),
    (
        "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
        "Whether a request that is over one limit does not count for the others.",
    ),
    (
        "TIDEGATE_ADMIN_TOKEN",
        "The token that operators need for resets. Without it, resets are accepted only if `HOST` is a loopback address.",
    ),
    ("TIDEGATE_BODY", "`problem`: denied clients get a problem document as the body."),
    (
        "TIDEGATE_COUNTING",
        "`envoy` counts every hit, `atomic` charges all descriptors of a request or none, `shared` uses the keys of envoyproxy/ratelimit.",
    ),
    (
        "TIDEGATE_DEADLINE",
        "How long a call to the store may take, from `1ms` to `60s`, instead of `REDIS_TIMEOUT`.",
    ),
    (
        "TIDEGATE_HEADERS",
        "The headers of responses: `ratelimit`, `x-ratelimit` or `ietf`; `envoy` for those of `LIMIT_RESPONSE_HEADERS_ENABLED`.",
    ),
    (
        "TIDEGATE_HTTP_TLS_CERT",
        "The file with the certificate of `/json` and all pages (PEM). Without it, they are plain text.",
    ),
    (
        "TIDEGATE_HTTP_TLS_CLIENT_CACERT",
        "The file with the CA certificates of HTTPS clients (PEM). Without it, clients need no certificate.",
    ),
    ("TIDEGATE_HTTP_TLS_KEY", "The file with the private key of the certificate (PEM)."),
    (
        "TIDEGATE_LEASE",
        "How long tokens that are taken from the store in advance are valid. Without it, none are taken.",
    ),
    (
        "TIDEGATE_OUTAGE",
        "Without the store: `closed`, `open`, or `local 3` for three processes that share a limit.",
    ),
    ("TIDEGATE_TOKENS", "The tokens that callers need, separated by spaces. Without it, callers need none."),
    ("USE_DOG_STATSD", "Whether metrics are sent to DogStatsD."),
    ("USE_DOG_STATSD_MOGRIFIERS", "The names of the mogrifiers, separated by commas."),
    ("USE_PROMETHEUS", "Whether there is an address for Prometheus. Statsd is then off."),
    (
        "USE_STATSD",
        "Whether metrics are sent to statsd; it is on if the variable is not set and `USE_PROMETHEUS` is not true.",
    ),
    ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "The first pause before the management server is called again."),
    ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "The longest pause."),
    (
        "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES",
        "The maximum size of a message of the management server; 0 for no limit.",
    ),
];

#[test]
fn environment_page_is_current() {
    let root = root();
    let general = general_variables(&root.join("crates"));
    let documented: Vec<_> = GENERAL.iter().map(|(name, ..)| (*name).to_owned()).collect();
    assert_eq!(general, documented, "document the variables that the source reads");
    let mut page = HEADER.to_owned();
    page.push_str("\n## Commands and programs\n\n| variable | read by | meaning |\n|---|---|---|\n");
    for (name, reader, meaning) in GENERAL {
        writeln!(page, "| `{name}` | {reader} | {meaning} |").unwrap();
    }

    let (variables, ignored) = service_variables(&root.join("crates/service/src/descriptors/environment"));
    let documented: Vec<_> = SERVICE.iter().map(|(name, _)| (*name).to_owned()).collect();
    let found: Vec<_> = variables.keys().cloned().collect();
    assert_eq!(found, documented, "document the variables that the service reads");
    page.push_str(
        "\n## The rate limit service with `--envoy-config`\n\n\
        They have the names of envoyproxy/ratelimit, except those that start with `TIDEGATE_`. [envoy.md](envoy.md) explains them. Without a\n\
        default, the function is off.\n\n| variable | default | meaning |\n|---|---|---|\n",
    );
    for (name, meaning) in SERVICE {
        let default = &variables[*name];
        let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
        writeln!(page, "| `{name}` | {default} | {meaning} |").unwrap();
    }
    page.push_str("\nThese have no effect; the service logs them. A name that ends in `_` stands for all names that start with it.\n\n");
    page.push_str("| variable | because |\n|---|---|\n");
    assert!(ignored.len() > 15, "{ignored:?}");
    for (name, reason) in ignored {
        writeln!(page, "| `{name}` | {reason} |").unwrap();
    }
    assert_current("environment.md", &page);
}

/// The variables that programs read by themselves.
fn general_variables(crates: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for name in
        ["cli", "rule", "gateway", "http-server", "policy", "redis", "limiter", "tidegate", "tower", "replay"]
    {
        visit_files(&crates.join(name).join("src"), &mut |path, text| {
            if path.ends_with("key_hook.rs") || path.ends_with("tests.rs") {
                return;
            }
            for start in ["env::var(\"", "env::var_os(\"", "POLICY_VARIABLE: &str = \""] {
                let names = text
                    .split(start)
                    .skip(1)
                    .map(|rest| rest.split('"').next().unwrap_or_default().to_owned());
                found.extend(names);
            }
        });
    }
    found.sort();
    found.dedup();
    found
}

/// The variables of the service with their defaults, and the known ones without effect with the reason.
fn service_variables(folder: &Path) -> (BTreeMap<String, String>, Vec<(String, String)>) {
    let mut variables = BTreeMap::new();
    let mut ignored = Vec::new();
    for file in ["mod.rs", "redis.rs", "statsd.rs", "tidegate.rs"] {
        let text = fs::read_to_string(folder.join(file)).unwrap();
        let program: String =
            text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
        let tables =
            program.split("const IGNORED_VARIABLES").nth(1).and_then(|rest| rest.split("\n];").next());
        let literals = string_literals(tables.unwrap_or_default());
        ignored.extend(literals.chunks_exact(2).map(|pair| (pair[0].text.clone(), pair[1].text.clone())));
        let program = program.replace(tables.unwrap_or("\0"), "");
        for method in [
            "bool", "choice", "get", "get_or", "number", "duration", "endpoint", "address", "path", "text",
            "pairs",
        ] {
            for call in program.split(&format!("variables.{method}(")).skip(1) {
                record(&mut variables, method, call, &program);
            }
        }
        // The names of headers, and functions that take the name of a variable.
        for call in program.split("name(\"LIMIT_").skip(1) {
            record(&mut variables, "get_or", &format!("\"LIMIT_{call}"), &program);
        }
        for (start, method) in [("parse_timeout(variables, ", "timeout"), ("required(", "path")] {
            for call in program
                .split(start)
                .skip(1)
                .filter(|call| call.starts_with("\"REDIS_") || call.starts_with("\"GRPC_"))
            {
                record(&mut variables, method, call, &program);
            }
        }
        for part in program.split("variables.").skip(1).filter_map(|call| call.split_once("(&name(\"")) {
            let (method, rest) = part;
            let suffix = rest.split('"').next().unwrap_or_default();
            for prefix in ["REDIS_", "REDIS_PERSECOND_"] {
                let call =
                    format!("\"{prefix}{suffix}\"{}", rest.split_once("\")").map_or("", |(_, rest)| rest));
                if ["bool", "choice", "get"].contains(&method) {
                    record(&mut variables, method, &call, &program);
                }
            }
        }
        if program.contains("const NAMES: [&str; 3]") {
            let names = program.split("const NAMES").nth(1).unwrap().split(';').nth(1).unwrap();
            variables.extend(string_literals(names).into_iter().map(|name| (name.text, String::new())));
        }
        if program.contains("DOG_STATSD_MOGRIFIER_{name}_{part}") {
            for part in ["NAME", "PATTERN", "TAGS"] {
                assert!(program.contains(&format!("(\"{part}\"")), "{part}");
                variables.insert(format!("DOG_STATSD_MOGRIFIER_NAME_{part}"), String::new());
            }
        }
    }
    ignored.sort();
    (variables, ignored)
}

/// Records the variable of a call, with its default. `call` starts at the first argument.
fn record(variables: &mut BTreeMap<String, String>, method: &str, call: &str, program: &str) {
    let call = call.trim_start();
    // The name may be a constant above the call.
    let constant = call.starts_with("NAME").then(|| {
        let before = &program[..program.find(call).unwrap()];
        before.rsplit("const NAME: &str = \"").next().unwrap().split('"').next().unwrap().to_owned()
    });
    let literals = string_literals(call.split(';').next().unwrap_or_default());
    let Some(name) = constant.clone().or_else(|| call.starts_with('"').then(|| literals[0].text.clone()))
    else {
        return;
    };
    let after_name = call.split_once(',').map_or("", |(_, rest)| rest.trim_start());
    let second = literals.get(usize::from(constant.is_none())).map(|literal| literal.text.clone());
    let number = |text: &str| {
        let digits: String =
            text.chars().take_while(|c| c.is_ascii_digit() || matches!(c, '.' | '_')).collect();
        digits.trim_end_matches('_').replace('_', "")
    };
    let default = match method {
        "bool" => "false".to_owned(),
        "choice" if after_name.starts_with("&LEVELS") => {
            let levels = program.split("const LEVELS").nth(1).unwrap();
            string_literals(levels)[0].text.clone()
        }
        "choice" | "get_or" => second.unwrap_or_default(),
        "number" => number(after_name),
        "duration" => after_name
            .strip_prefix("Duration::from_secs(")
            .map_or_else(String::new, |seconds| format!("{}s", number(seconds))),
        "timeout" => {
            let settings =
                fs::read_to_string(root().join("crates/service/src/descriptors/settings.rs")).unwrap();
            let default = settings.split("DEFAULT_DEADLINE: Duration = Duration::from_secs(").nth(1).unwrap();
            format!("{}s", number(default))
        }
        "address" => format!(":{}", number(after_name)),
        "endpoint" => {
            let port = second.unwrap();
            let default = after_name.split_once(',').map_or("", |(_, rest)| rest.trim_start());
            variables.insert(port, number(default));
            "::".to_owned()
        }
        // Without the default of a get that is followed by one.
        "get" => call
            .split_once(").unwrap_or(\"")
            .filter(|(before, _)| !before.contains('('))
            .map_or_else(String::new, |(_, rest)| rest.split('"').next().unwrap_or_default().to_owned()),
        _ => String::new(),
    };
    let known = variables.entry(name).or_default();
    if known.is_empty() || method == "timeout" {
        *known = default;
    }
}

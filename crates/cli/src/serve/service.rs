//! `tidegate serve --envoy-config`: limits by descriptors, for Envoy.

use crate::error::CliError;
use std::{env, ffi::OsString, fs, path::Path, sync::Arc};
use tidegate_redis::{RedisStore, RedisStoreBuilder};
use tidegate_service::descriptors::{
    ConfigSourceSettings, Dotfiles, Environment, HostnameVerification, RateLimitServer, ServerStores,
};

/// What the command line says of a decision service; the rest is in the environment.
#[derive(Debug, clap::Args)]
pub(crate) struct ServiceArgs {
    /// Serve limits by descriptors instead: from this folder of files in the form of envoyproxy/ratelimit, or from where the
    /// variables of its environment say (RUNTIME_ROOT, CONFIG_TYPE, REDIS_URL, GRPC_PORT, ...). What only Tidegate does is
    /// said by TIDEGATE_COUNTING (theirs, atomic, or shared with a fleet of envoyproxy/ratelimit), TIDEGATE_OUTAGE,
    /// TIDEGATE_DEADLINE, TIDEGATE_LEASE, TIDEGATE_HEADERS, TIDEGATE_BODY and TIDEGATE_ADMIN_TOKEN: see docs/envoy.md
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "", conflicts_with_all = ["file", "workers"])]
    envoy_config: Option<OsString>,
}

impl ServiceArgs {
    /// What the environment says, if it is a decision service that is to be served.
    pub(crate) fn environment(&self) -> Result<Option<Environment>, CliError> {
        let Some(folder) = &self.envoy_config else { return Ok(None) };
        let variables = env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        let mut environment =
            Environment::parse(variables).map_err(|error| CliError::input(error.to_string()))?;
        if !folder.is_empty() {
            environment.source =
                ConfigSourceSettings::Folder { folder: folder.into(), dotfiles: Dotfiles::Ignore };
        }
        Ok(Some(environment))
    }
}

/// Reads the limits and binds the addresses.
pub(crate) fn open_server(environment: &Environment) -> Result<RateLimitServer, CliError> {
    let failed = |error: &dyn std::error::Error| CliError::input(error.to_string());
    for (variable, why) in &environment.ignored {
        tracing::warn!(%variable, "variable has no effect: {why}");
    }
    let redis = &environment.redis;
    let builder = redis_builder(environment)?;
    let open = |url: &Option<String>, timeout| {
        let deadline = environment.tidegate.deadline.unwrap_or(timeout);
        let open = |url: &String| {
            let builder = builder.clone().deadline(deadline);
            builder.open(url).map(Arc::new).map_err(|error| failed(&error))
        };
        url.as_ref().map(open).transpose()
    };
    let store = open(&redis.url, redis.timeout)?;
    let seconds = open(&redis.per_second, redis.per_second_timeout)?;
    let stores = ServerStores {
        store: store.clone().map(|store| store as _),
        per_second: seconds.clone().map(|store| store as _),
        counter_store: store.clone().map(|store| store as _),
        counter_store_per_second: seconds.clone().map(|store| store as _),
    };
    let host = RateLimitServer::open(environment, stores).map_err(|error| failed(&error))?;
    let last_error = move || [&store, &seconds].into_iter().flatten().find_map(|store| store.last_error());
    Ok(host.store_health(last_error))
}

/// How stores are reached.
fn redis_builder(environment: &Environment) -> Result<RedisStoreBuilder, CliError> {
    let redis = &environment.redis;
    let mut builder = RedisStore::builder();
    if !environment.counting.prefix.is_empty() {
        // What is theirs under this prefix is not ours.
        builder = builder.prefix(&format!("{}tidegate", environment.counting.prefix));
    }
    if let Some(authority) = &redis.ca {
        builder = builder.tls_authority(&read_pem("REDIS_TLS_CACERT", authority)?);
    }
    if let Some((certificate, key)) = &redis.identity {
        let certificate = read_pem("REDIS_TLS_CLIENT_CERT", certificate)?;
        builder = builder.tls_identity(&certificate, &read_pem("REDIS_TLS_CLIENT_KEY", key)?);
    }
    if redis.hostname_verification == HostnameVerification::Skip {
        builder = builder.tls_skip_hostname_verification();
    }
    let is_plain = |url: &String| !url.starts_with("rediss");
    if (redis.ca.is_some() || redis.identity.is_some())
        && [&redis.url, &redis.per_second].into_iter().flatten().all(is_plain)
    {
        let problem =
            "REDIS_TLS_CACERT and REDIS_TLS_CLIENT_CERT mean nothing without TLS; set REDIS_TLS=true";
        return Err(CliError::input(problem.to_owned()));
    }
    Ok(builder)
}

fn read_pem(variable: &str, file: &Path) -> Result<Vec<u8>, CliError> {
    let unreadable =
        |error| CliError::input(format!("{variable}: {} cannot be read: {error}", file.display()));
    fs::read(file).map_err(unreadable)
}

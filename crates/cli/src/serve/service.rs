//! `tidegate serve --envoy-config`: the rate limit service for Envoy.

use crate::{error::CliError, events};
use std::{env, ffi::OsString, fs, path::Path, sync::Arc};
use tidegate_redis::{RedisStore, RedisStoreBuilder};
use tidegate_service::descriptors::{
    ConfigSourceSettings, Dotfiles, Environment, HostnameVerification, RateLimitServer, ServerStores,
};

/// The arguments of the rate limit service; its other settings are in the environment.
#[derive(Debug, clap::Args)]
pub(crate) struct ServiceArgs {
    /// Run the Envoy rate limit service instead, with the envoyproxy/ratelimit configuration in this directory, or with the
    /// source that its environment variables set (RUNTIME_ROOT, CONFIG_TYPE, REDIS_URL, GRPC_PORT, ...). Settings of Tidegate
    /// are TIDEGATE_COUNTING (envoy, atomic, or shared with envoyproxy/ratelimit), TIDEGATE_OUTAGE, TIDEGATE_DEADLINE,
    /// TIDEGATE_LEASE, TIDEGATE_HEADERS, TIDEGATE_BODY and TIDEGATE_ADMIN_TOKEN: see docs/envoy.md
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "", conflicts_with_all = ["file", "workers"])]
    envoy_config: Option<OsString>,
}

impl ServiceArgs {
    /// Parses the environment, if the rate limit service is selected.
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

/// Loads the configuration and binds the listeners.
pub(crate) fn open_server(environment: &Environment) -> Result<RateLimitServer, CliError> {
    let failed = |error: &dyn std::error::Error| CliError::input(error.to_string());
    for (variable, reason) in &environment.ignored {
        events::VariableIgnored { variable, reason }.emit();
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
    let server = RateLimitServer::open(environment, stores).map_err(|error| failed(&error))?;
    let last_error = move || [&store, &seconds].into_iter().flatten().find_map(|store| store.last_error());
    Ok(server.store_health(last_error))
}

/// Builds the settings of the Redis connections.
fn redis_builder(environment: &Environment) -> Result<RedisStoreBuilder, CliError> {
    let redis = &environment.redis;
    let mut builder = RedisStore::builder();
    if !environment.counting.prefix.is_empty() {
        // Avoid collisions with the keys of envoyproxy/ratelimit under the same prefix.
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
        let problem = "REDIS_TLS_CACERT and REDIS_TLS_CLIENT_CERT require TLS; set REDIS_TLS=true";
        return Err(CliError::input(problem.to_owned()));
    }
    Ok(builder)
}

fn read_pem(variable: &str, file: &Path) -> Result<Vec<u8>, CliError> {
    let unreadable = |error| CliError::input(format!("{variable}: cannot read {}: {error}", file.display()));
    fs::read(file).map_err(unreadable)
}

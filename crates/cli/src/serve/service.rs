//! `tidegate serve --envoy-config`: limits by descriptors, for Envoy.

use crate::{
    failure::Failure,
    terminal::{self, Paint, Tone},
};
use std::{env, ffi::OsString, sync::Arc, time::Duration};
use tidegate_redis::RedisStore;
use tidegate_server::descriptors::{Dotfiles, Environment, LogFormat, ServiceHost, SourceSettings};

/// What the command line says of a decision service; the rest is in the environment.
#[derive(Debug, clap::Args)]
pub(crate) struct ServiceArgs {
    /// Serve limits by descriptors instead: from this folder of files in the form of envoyproxy/ratelimit, or from where the
    /// variables of its environment say (RUNTIME_ROOT, CONFIG_TYPE, REDIS_URL, GRPC_PORT, ...)
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "", conflicts_with_all = ["file", "workers"])]
    envoy_config: Option<OsString>,
}

/// Envoy waits for 20 ms unless told otherwise.
const DEADLINE: Duration = Duration::from_millis(10);

impl ServiceArgs {
    /// Whether it is a decision service that is to be served.
    pub(crate) fn is_wanted(&self) -> bool {
        self.envoy_config.is_some()
    }
}

/// Reads the limits and binds the addresses.
pub(crate) fn open(args: &ServiceArgs) -> Result<ServiceHost, Failure> {
    let failed = |error: &dyn std::error::Error| Failure::input(error.to_string());
    let said = env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let mut environment = Environment::read(said).map_err(|error| failed(&error))?;
    if let Some(folder) = args.envoy_config.as_ref().filter(|folder| !folder.is_empty()) {
        environment.source = SourceSettings::Folder { folder: folder.into(), dotfiles: Dotfiles::Ignore };
    }
    for (variable, why) in &environment.ignored {
        tracing::warn!("{variable} means nothing here: {why}");
    }
    for what in unheeded(&environment) {
        tracing::warn!("{what}");
    }
    if environment.redis.authority.is_some() {
        let told = "REDIS_TLS_CACERT: authorities of a store are those of the system; add it to these";
        return Err(Failure::input(told.to_owned()));
    }
    let Some(url) = &environment.redis.url else {
        return ServiceHost::open(&environment, None).map_err(|error| failed(&error));
    };
    let store = RedisStore::builder().deadline(DEADLINE).open(url).map_err(|error| failed(&error))?;
    let host = ServiceHost::open(&environment, Some(Arc::new(store.clone())));
    Ok(host.map_err(|error| failed(&error))?.store_health(move || store.trouble()))
}

/// What was said and is not done, so that nobody relies on it.
fn unheeded(environment: &Environment) -> impl Iterator<Item = &'static str> {
    let (redis, counting) = (&environment.redis, &environment.counting);
    let said = [
        (redis.per_second.is_some(), "REDIS_PERSECOND: limits per second are counted in the same store"),
        (counting.local_cache.is_some(), "LOCAL_CACHE_SIZE_IN_BYTES: every question goes to the store"),
        (!counting.prefix.is_empty(), "CACHE_KEY_PREFIX: keys in the store are our own"),
        (environment.log_level != "info", "LOG_LEVEL: the log has what is worth knowing, and no more"),
        (environment.log_format == LogFormat::Json, "LOG_FORMAT: the log is text"),
    ];
    said.into_iter().filter_map(|(is_said, what)| is_said.then_some(what))
}

/// Says where it listens.
pub(crate) fn tell(host: &ServiceHost, paint: Paint) -> Result<(), Failure> {
    let line = |(name, address): (&str, String)| format!("{name:8} {}\n", paint.tone(Tone::Strong, address));
    terminal::print(&host.addresses().into_iter().map(line).collect::<String>())
}

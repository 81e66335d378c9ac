//! How a server is reached: by its address, or by asking sentinels which one it is.

use crate::address::Login;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, RedisError,
    aio::MultiplexedConnection,
    io::tcp::TcpSettings,
    sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType},
};
use std::{fmt, time::Duration};
use tokio::sync::Mutex;

/// A way to a server.
pub(crate) struct Dial {
    way: Way,
    /// For the log: never with a password.
    shown: String,
}

enum Way {
    Address(Box<Client>),
    Sentinels(Box<Mutex<SentinelClient>>),
}

impl Dial {
    /// To the server at an address.
    pub(crate) fn address(info: ConnectionInfo) -> Result<Self, RedisError> {
        let shown = info.addr().to_string();
        #[cfg(feature = "tls")]
        if let ConnectionAddr::TcpTls { .. } = info.addr() {
            // The driver brings no cryptography of its own. Whatever the process has chosen stays.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        Ok(Self { way: Way::Address(Box::new(Client::open(quick(info))?)), shown })
    }

    /// To whatever server the sentinels call `master`.
    pub(crate) fn sentinels(
        sentinels: Vec<ConnectionAddr>,
        master: &str,
        login: &Login,
    ) -> Result<Self, RedisError> {
        let shown = format!("{master} of {} sentinels", sentinels.len());
        let primary = SentinelServerType::Master;
        let mut builder = SentinelClientBuilder::new(sentinels, master, primary)?
            .set_client_to_redis_db(login.database)
            .set_client_to_redis_tcp_settings(TcpSettings::default().set_nodelay(true));
        if let Some(user) = &login.user {
            builder = builder.set_client_to_redis_username(user);
        }
        if let Some(password) = &login.password {
            builder = builder.set_client_to_redis_password(password);
        }
        Ok(Self { way: Way::Sentinels(Box::new(Mutex::new(builder.build()?))), shown })
    }

    /// The server as it may be shown.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    /// Connects so many times to the same server. How long an answer may take is up to whoever asks.
    pub(crate) async fn connect(&self, times: usize) -> Result<Vec<MultiplexedConnection>, RedisError> {
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT)).set_response_timeout(None);
        let client = match &self.way {
            Way::Address(client) => Client::clone(client),
            Way::Sentinels(sentinels) => sentinels.lock().await.async_get_client().await?,
        };
        let mut connections = Vec::with_capacity(times);
        for _ in 0..times {
            connections.push(client.get_multiplexed_async_connection_with_config(&config).await?);
        }
        Ok(connections)
    }
}

/// A small message is sent at once, not held back for another.
fn quick(info: ConnectionInfo) -> ConnectionInfo {
    info.set_tcp_settings(TcpSettings::default().set_nodelay(true))
}

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(3);

impl fmt::Debug for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dial({})", self.shown)
    }
}

//! Opens connections to a server, by its address or through sentinels.

use crate::address::Login;
#[cfg(feature = "tls")]
use crate::tls;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, RedisError,
    aio::MultiplexedConnection,
    io::tcp::TcpSettings,
    sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType},
};
#[cfg(feature = "tls")]
use rustls::ClientConfig;
use std::{fmt, time::Duration};
#[cfg(feature = "tls")]
use std::{io, sync::Arc};
use tokio::sync::Mutex;
#[cfg(feature = "tls")]
use tokio::time::timeout;

/// Opens connections to one server.
pub(crate) struct Connector {
    kind: ConnectorKind,
    /// For the log; contains no password.
    display_name: String,
}

/// The TLS configuration for `rediss://` addresses; `None` leaves TLS to the driver.
#[cfg(feature = "tls")]
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientTls(pub(crate) Option<Arc<ClientConfig>>);

/// Placeholder for builds without TLS.
#[cfg(not(feature = "tls"))]
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientTls();

enum ConnectorKind {
    Address(Box<Client>),
    #[cfg(feature = "tls")]
    Tls {
        info: Box<ConnectionInfo>,
        host: String,
        port: u16,
        config: Arc<ClientConfig>,
    },
    Sentinels(Box<Mutex<SentinelClient>>),
}

impl Connector {
    #[cfg_attr(not(feature = "tls"), allow(unused_variables, reason = "only TLS uses `security`"))]
    pub(crate) fn for_server(info: ConnectionInfo, security: &ClientTls) -> Result<Self, RedisError> {
        let shown = info.addr().to_string();
        #[cfg(feature = "tls")]
        if let ConnectionAddr::TcpTls { host, port, .. } = info.addr() {
            if let Some(config) = &security.0 {
                let (host, port, config) = (host.clone(), *port, config.clone());
                return Ok(Self {
                    kind: ConnectorKind::Tls { info: Box::new(info), host, port, config },
                    display_name: shown,
                });
            }
            // The driver needs a default crypto provider. One that the process already installed stays.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        Ok(Self {
            kind: ConnectorKind::Address(Box::new(Client::open(with_nodelay(info))?)),
            display_name: shown,
        })
    }

    /// Connects to the server that the sentinels report as the primary of `master`.
    pub(crate) fn for_sentinels(
        sentinels: Vec<ConnectionAddr>,
        master: &str,
        login: &Login,
        sentinel_login: &Login,
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
        if let Some(user) = &sentinel_login.user {
            builder = builder.set_client_to_sentinel_username(user);
        }
        if let Some(password) = &sentinel_login.password {
            builder = builder.set_client_to_sentinel_password(password);
        }
        Ok(Self {
            kind: ConnectorKind::Sentinels(Box::new(Mutex::new(builder.build()?))),
            display_name: shown,
        })
    }

    /// The server's name for messages, without credentials.
    pub(crate) fn display_name(&self) -> &str {
        &self.display_name
    }

    /// Opens `count` connections to the same server. They have no response timeout: callers set their own.
    pub(crate) async fn connect(&self, count: usize) -> Result<Vec<MultiplexedConnection>, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(None);
        let mut connections = Vec::with_capacity(count);
        let client = match &self.kind {
            ConnectorKind::Address(client) => Client::clone(client),
            ConnectorKind::Sentinels(sentinels) => sentinels.lock().await.async_get_client().await?,
            #[cfg(feature = "tls")]
            ConnectorKind::Tls { info, host, port, config: tls } => {
                for _ in 0..count {
                    let connecting = async {
                        let stream = tls::connect(tls, (host, *port)).await?;
                        let (settings, config) = (info.redis_settings(), config.clone());
                        MultiplexedConnection::new_with_config(settings, stream, config).await
                    };
                    let timed_out = |_| RedisError::from(io::Error::from(io::ErrorKind::TimedOut));
                    let (connection, driver) =
                        timeout(CONNECT_TIMEOUT, connecting).await.map_err(timed_out)??;
                    // The driver task ends when the last clone of the connection is dropped.
                    drop(tokio::spawn(driver));
                    connections.push(connection);
                }
                return Ok(connections);
            }
        };
        for _ in 0..count {
            connections.push(client.get_multiplexed_async_connection_with_config(&config).await?);
        }
        Ok(connections)
    }
}

/// Sets `TCP_NODELAY`, because small messages must not wait for more data.
fn with_nodelay(info: ConnectionInfo) -> ConnectionInfo {
    info.set_tcp_settings(TcpSettings::default().set_nodelay(true))
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connector({})", self.display_name)
    }
}

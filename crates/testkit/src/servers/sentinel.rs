//! A primary and a replica under three sentinels.

use super::{
    RedisServer, RedisServerBuilder, RedisServerState, RespValue, ServerVersion, builder::RedisRole,
    wait_until,
};
use std::iter;

/// Two servers, and three sentinels with a quorum of two.
///
/// The sentinels skip discovery: each starts with a configuration file that lists the others.
#[derive(Debug)]
pub struct RedisSentinel {
    servers: [RedisServer; 2],
    sentinels: Vec<RedisServer>,
}

const MASTER_NAME: &str = "tidegate";
const SENTINEL_COUNT: usize = 3;

/// Shortens the sentinels' timers, which Redis 7 and later allow: more frequent `PING` and `INFO`, and a tilt period of
/// one second instead of thirty after a pause on a busy machine.
const TIMING_COMMAND: &str = "SENTINEL DEBUG PING-PERIOD 200 INFO-PERIOD 1000 TILT-PERIOD 1000";

impl RedisSentinel {
    /// Starts servers with default settings and their sentinels.
    pub fn start() -> Result<Self, String> {
        Self::start_with(&RedisServer::builder())
    }

    /// Starts servers with these settings and their sentinels.
    pub fn start_with(server: &RedisServerBuilder) -> Result<Self, String> {
        let primary = server.start()?;
        let replica = server.clone().config("replicaof", &format!("127.0.0.1 {}", primary.port())).start()?;
        wait_until("the replica is connected", || check_follows(&replica, &primary))?;

        let sentinel = RedisServer::builder().binary(&server.binary).role(RedisRole::Sentinel);
        let sentinels =
            iter::repeat_with(|| sentinel.prepare()).take(SENTINEL_COUNT).collect::<Result<_, _>>()?;
        let group = Self { servers: [primary, replica], sentinels };
        for sentinel in &group.sentinels {
            sentinel.append("redis.conf", &group.sentinel_conf(sentinel))?;
            sentinel.launch()?;
            if sentinel.version() >= ServerVersion::REDIS_7 {
                sentinel.command(&TIMING_COMMAND.split(' ').collect::<Vec<_>>())?;
            }
        }
        group.wait_until_ok()?;
        Ok(group)
    }

    /// The name of the primary in the sentinels.
    pub fn master_name(&self) -> &'static str {
        MASTER_NAME
    }

    /// The URLs of the sentinels.
    pub fn sentinel_urls(&self) -> Vec<String> {
        self.sentinels.iter().map(RedisServer::url).collect()
    }

    /// The sentinels.
    pub fn sentinels(&self) -> &[RedisServer] {
        &self.sentinels
    }

    /// Both servers; the first was the primary at the start.
    pub fn servers(&self) -> &[RedisServer; 2] {
        &self.servers
    }

    /// The primary, if all running sentinels agree on it.
    pub fn primary(&self) -> Result<&RedisServer, String> {
        let mut agreed = None;
        for sentinel in self.running_sentinels() {
            let answer = sentinel.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER_NAME])?;
            let port = answer.items().get(1).and_then(RespValue::text).map(str::to_owned);
            if agreed.as_ref().is_some_and(|agreed| *agreed != port) {
                return Err("the sentinels do not agree".into());
            }
            agreed = Some(port);
        }
        let port = agreed.flatten().ok_or("no sentinel has a primary")?;
        let is_named = |server: &&RedisServer| server.port().to_string() == port;
        self.servers.iter().find(is_named).ok_or_else(|| format!("port {port} is not one of the two servers"))
    }

    /// Swaps the primary and the replica, and disconnects the clients of the old primary.
    ///
    /// The sentinels reconfigure the old primary after ten seconds. This does it at once.
    pub fn fail_over(&self) -> Result<(), String> {
        let old = self.primary()?;
        wait_until("the sentinels make the replica the primary", || {
            let new = self.primary()?;
            if new.port() == old.port() {
                self.running_sentinels().next().ok_or("no sentinel is running")?.command(&[
                    "SENTINEL",
                    "FAILOVER",
                    MASTER_NAME,
                ])?;
                return Err("the failover has started".into());
            }
            Ok(())
        })?;
        let mut connection = old.connect()?;
        connection.command(&["REPLICAOF", "127.0.0.1", &self.primary()?.port().to_string()])?;
        for clients in ["normal", "pubsub"] {
            connection.command(&["CLIENT", "KILL", "TYPE", clients])?;
        }
        self.wait_until_ok()
    }

    /// Kills the primary, and returns it. The replica is the primary when [`Self::wait_until_ok`] returns.
    pub fn kill_primary(&self) -> Result<&RedisServer, String> {
        let primary = self.primary()?;
        primary.kill();
        Ok(primary)
    }

    /// Waits until the running sentinels agree on a running primary, and the other server, if it runs, replicates it.
    pub fn wait_until_ok(&self) -> Result<(), String> {
        wait_until("the sentinels are ok", || self.check_ok())
    }

    fn check_ok(&self) -> Result<(), String> {
        let primary = self.primary()?;
        if primary.state() != RedisServerState::Running
            || fetch_role(primary)?.first().is_none_or(|role| *role != "master")
        {
            return Err(format!("{} is not a primary", primary.address()));
        }
        for sentinel in self.running_sentinels() {
            sentinel.command(&["SENTINEL", "CKQUORUM", MASTER_NAME])?;
        }
        let is_other = |server: &&RedisServer| {
            server.port() != primary.port() && server.state() == RedisServerState::Running
        };
        self.servers.iter().filter(is_other).try_for_each(|other| check_follows(other, primary))
    }

    fn running_sentinels(&self) -> impl Iterator<Item = &RedisServer> {
        self.sentinels.iter().filter(|sentinel| sentinel.state() == RedisServerState::Running)
    }

    /// The configuration of a sentinel.
    fn sentinel_conf(&self, own: &RedisServer) -> String {
        let [primary, replica] = self.servers.each_ref().map(RedisServer::port);
        let mut text = format!(
            "sentinel myid {}\n\
             sentinel monitor {MASTER_NAME} 127.0.0.1 {primary} 2\n\
             sentinel down-after-milliseconds {MASTER_NAME} 1500\n\
             sentinel failover-timeout {MASTER_NAME} 2000\n\
             sentinel known-replica {MASTER_NAME} 127.0.0.1 {replica}\n",
            own.id(),
        );
        if let Some(password) = self.servers[0].password() {
            text += &format!("sentinel auth-pass {MASTER_NAME} \"{password}\"\n");
        }
        for other in self.sentinels.iter().filter(|sentinel| sentinel.port() != own.port()) {
            text +=
                &format!("sentinel known-sentinel {MASTER_NAME} 127.0.0.1 {} {}\n", other.port(), other.id());
        }
        text
    }
}

fn fetch_role(server: &RedisServer) -> Result<Vec<RespValue>, String> {
    Ok(server.command(&["ROLE"])?.items().to_vec())
}

fn check_follows(replica: &RedisServer, primary: &RedisServer) -> Result<(), String> {
    match &fetch_role(replica)?[..] {
        [role, _, port, link, ..]
            if *role == "slave" && port.integer() == Some(primary.port().into()) && *link == "connected" =>
        {
            Ok(())
        }
        other => Err(format!("{} is {other:?}", replica.address())),
    }
}

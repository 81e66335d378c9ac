//! A primary and a replica under three sentinels.

use super::{
    RedisServer, RedisServerBuilder, RedisServerState, RespValue, ServerVersion, builder::RedisRole,
    wait_until,
};
use std::iter;

/// Two servers, and three sentinels of which two must agree that the primary is dead.
///
/// The sentinels need not find each other: each starts from a file that says it always knew the others.
#[derive(Debug)]
pub struct RedisSentinel {
    servers: [RedisServer; 2],
    sentinels: Vec<RedisServer>,
}

const MASTER_NAME: &str = "tidegate";
const SENTINEL_COUNT: usize = 3;

/// Since Redis 7, sentinels can be told to look around more often than every second or ten, and to rest for a second,
/// not for thirty, when a busy machine has stopped them for two.
const TIMING_COMMAND: &str = "SENTINEL DEBUG PING-PERIOD 200 INFO-PERIOD 1000 TILT-PERIOD 1000";

impl RedisSentinel {
    /// Starts bare servers and their sentinels.
    pub fn start() -> Result<Self, String> {
        Self::start_with(&RedisServer::builder())
    }

    /// Starts servers as described and their sentinels.
    pub fn start_with(server: &RedisServerBuilder) -> Result<Self, String> {
        let primary = server.start()?;
        let replica = server.clone().config("replicaof", &format!("127.0.0.1 {}", primary.port())).start()?;
        wait_until("the replica follows", || check_follows(&replica, &primary))?;

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

    /// What the sentinels call their primary.
    pub fn master_name(&self) -> &'static str {
        MASTER_NAME
    }

    /// Where the sentinels are.
    pub fn sentinel_urls(&self) -> Vec<String> {
        self.sentinels.iter().map(RedisServer::url).collect()
    }

    /// The sentinels.
    pub fn sentinels(&self) -> &[RedisServer] {
        &self.sentinels
    }

    /// Both servers; the first was the primary when it started.
    pub fn servers(&self) -> &[RedisServer; 2] {
        &self.servers
    }

    /// The primary, on which all sentinels that run agree.
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
        let port = agreed.flatten().ok_or("no sentinel knows a primary")?;
        let is_named = |server: &&RedisServer| server.port().to_string() == port;
        self.servers.iter().find(is_named).ok_or_else(|| format!("{port} is no server of ours"))
    }

    /// Makes the replica the primary, and the primary its replica, whose clients are sent away.
    ///
    /// The sentinels would leave the old primary alone for ten seconds more. This does at once what they do then.
    pub fn fail_over(&self) -> Result<(), String> {
        let old = self.primary()?;
        wait_until("the sentinels make the replica the primary", || {
            let new = self.primary()?;
            if new.port() == old.port() {
                self.running_sentinels().next().ok_or("no sentinel runs")?.command(&[
                    "SENTINEL",
                    "FAILOVER",
                    MASTER_NAME,
                ])?;
                return Err("they began".into());
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

    /// Kills the primary, and returns it. The replica has its place when [`Self::wait_until_ok`] returns.
    pub fn kill_primary(&self) -> Result<&RedisServer, String> {
        let primary = self.primary()?;
        primary.kill();
        Ok(primary)
    }

    /// Waits until the sentinels that run agree on a primary that runs, and the other server follows it, if it runs.
    pub fn wait_until_ok(&self) -> Result<(), String> {
        wait_until("all is well under the sentinels", || self.check_ok())
    }

    fn check_ok(&self) -> Result<(), String> {
        let primary = self.primary()?;
        if primary.state() != RedisServerState::Running
            || fetch_role(primary)?.first().is_none_or(|role| *role != "master")
        {
            return Err(format!("{} is no primary", primary.address()));
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

    /// What a sentinel keeps of the others.
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

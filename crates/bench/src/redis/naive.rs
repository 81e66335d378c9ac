//! The common implementation: GCRA in a script, with one call per decision.

use redis::{Script, aio::MultiplexedConnection};
use tidegate_bench::BenchResult;

const GCRA_LUA: &str = r"
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local interval, tolerance = tonumber(ARGV[1]), tonumber(ARGV[2])
local arrival = tonumber(redis.call('GET', KEYS[1]) or 0)
if arrival < now then arrival = now end
local allowed_at = arrival - tolerance
if now < allowed_at then return {0, 0, allowed_at - now} end
arrival = arrival + interval
redis.call('SET', KEYS[1], string.format('%.0f', arrival), 'PX', math.ceil((arrival - now) / 1000))
return {1, math.floor((tolerance - (arrival - now)) / interval) + 1, 0}
";

/// A client that makes one script call per decision.
#[derive(Clone)]
pub(crate) struct NaiveClient {
    connection: MultiplexedConnection,
    hash: String,
}

impl NaiveClient {
    pub(crate) async fn connect(url: &str) -> BenchResult<Self> {
        let mut connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
        let hash: String =
            redis::cmd("SCRIPT").arg("LOAD").arg(GCRA_LUA).query_async(&mut connection).await?;
        debug_assert_eq!(hash, Script::new(GCRA_LUA).get_hash());
        Ok(Self { connection, hash })
    }

    /// Takes one token of `1000/s burst 1000000`.
    pub(crate) async fn check(&mut self, key: &str) -> bool {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.hash).arg(1).arg(format!("naive:{key}")).arg(1_000).arg(1_000_000_000);
        let answer: redis::RedisResult<(i64, i64, i64)> = command.query_async(&mut self.connection).await;
        answer.is_ok_and(|(allowed, ..)| allowed == 1)
    }
}

//! Shared counters: `INCRBY` and `EXPIRE`, with one round trip per server and call.

use crate::{cluster::Cluster, node::RedisNode, topology::Topology};
use redis::{Cmd, ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};
use std::sync::Arc;
use tidegate_limiter::{Increment, StoreError};
use tokio::task::JoinSet;

impl Topology {
    /// Applies all increments and returns the new value of each counter.
    pub(crate) async fn add(&self, additions: Vec<Increment>) -> Result<Vec<i64>, StoreError> {
        if additions.is_empty() {
            return Ok(Vec::new());
        }
        match self {
            Self::Single(node) => add_on_node(node, None, &additions).await,
            Self::Cluster(cluster) => add_in_cluster(cluster, additions).await,
        }
    }
}

/// Sends each node of a cluster the increments of its keys, to all nodes concurrently.
async fn add_in_cluster(cluster: &Arc<Cluster>, additions: Vec<Increment>) -> Result<Vec<i64>, StoreError> {
    let mut parts: Vec<(Arc<RedisNode>, Vec<usize>, Vec<Increment>)> = Vec::new();
    let mut sums = vec![0; additions.len()];
    for (index, addition) in additions.into_iter().enumerate() {
        let node = cluster.node_for_key(&addition.key)?;
        match parts.iter_mut().find(|(known, ..)| Arc::ptr_eq(known, &node)) {
            Some((_, indexes, part)) => {
                indexes.push(index);
                part.push(addition);
            }
            None => parts.push((node, vec![index], vec![addition])),
        }
    }
    let mut calls = JoinSet::new();
    for (node, indexes, part) in parts {
        let cluster = cluster.clone();
        calls.spawn(async move { (indexes, add_on_node(&node, Some(&cluster), &part).await) });
    }
    while let Some(joined) = calls.join_next().await {
        let (indexes, part) = joined.map_err(|_| StoreError::Unavailable("call cancelled".to_owned()))?;
        indexes.into_iter().zip(part?).for_each(|(index, sum)| sums[index] = sum);
    }
    Ok(sums)
}

/// Sends all increments to one node. Those whose slot has moved follow the redirect one by one.
async fn add_on_node(
    node: &Arc<RedisNode>,
    cluster: Option<&Arc<Cluster>>,
    additions: &[Increment],
) -> Result<Vec<i64>, StoreError> {
    let mut pipeline = Pipeline::with_capacity(additions.len() * 2);
    for addition in additions {
        pipeline.add_command(incrby_command(addition)).add_command(expire_command(addition));
    }
    let reply = node.send_pipeline(&pipeline).await;
    if let (Some(cluster), Err(StoreError::Unavailable(_))) = (cluster, &reply) {
        cluster.refresh_in_background();
    }
    let mut reply = reply?.into_iter();
    let mut sums = Vec::with_capacity(additions.len());
    for addition in additions {
        let mut next = || reply.next().unwrap_or(Value::Nil).extract_error();
        let (sum, expiry) = (next(), next());
        let sum = follow_redirect(node, cluster, addition, sum, incrby_command).await?;
        follow_redirect(node, cluster, addition, expiry, expire_command).await?;
        let not_a_number = |_| StoreError::ErrorReply(format!("`{}` is not a number", addition.key));
        sums.push(redis::from_redis_value(sum).map_err(not_a_number)?);
    }
    Ok(sums)
}

/// Returns the reply, or the one of the node that `MOVED` or `ASK` names. A redirected command did not run, so sending it
/// again does not count twice.
async fn follow_redirect(
    node: &Arc<RedisNode>,
    cluster: Option<&Arc<Cluster>>,
    addition: &Increment,
    reply: Result<Value, RedisError>,
    command: fn(&Increment) -> Cmd,
) -> Result<Value, StoreError> {
    let error = match reply {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    let is_elsewhere =
        matches!(error.kind(), ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask));
    match cluster {
        Some(cluster) if is_elsewhere => cluster.send_command(&addition.key, &command(addition)).await,
        _ => {
            let error = node.convert_error(&error);
            node.record_result(Some(&error));
            Err(error)
        }
    }
}

fn incrby_command(addition: &Increment) -> Cmd {
    let mut command = redis::cmd("INCRBY");
    command.arg(&addition.key).arg(addition.count);
    command
}

fn expire_command(addition: &Increment) -> Cmd {
    let mut command = redis::cmd("EXPIRE");
    command.arg(&addition.key).arg(addition.ttl.as_secs());
    command
}

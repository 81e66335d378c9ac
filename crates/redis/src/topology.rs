//! One server or a cluster, behind the same operations.

use crate::{
    cluster::Cluster,
    error::ConnectError,
    node::{CallOrigin, NodeResult, RedisNode},
};
use redis::{Cmd, Value};
use std::sync::Arc;
use tidegate_core::Micros;
use tidegate_limiter::{StoreError, store::StoreRequest};

#[derive(Debug)]
pub(crate) enum Topology {
    Single(Arc<RedisNode>),
    Cluster(Arc<Cluster>),
}

impl Topology {
    /// Executes a request within the deadline.
    pub(crate) async fn submit(&self, request: StoreRequest, caller: CallOrigin) -> NodeResult {
        match self {
            Self::Single(node) => node.submit(request, caller).await,
            Self::Cluster(cluster) => Box::pin(cluster.submit(request, caller)).await,
        }
    }

    /// Executes requests at the given time instead of the server's.
    pub(crate) async fn submit_at(&self, requests: &[StoreRequest], now: Micros) -> Vec<NodeResult> {
        match self {
            Self::Single(node) => node.submit_at(requests, now).await,
            Self::Cluster(cluster) => cluster.submit_at(requests, now).await,
        }
    }

    /// Sends a plain command about one key.
    pub(crate) async fn send_command(&self, key: &str, command: &Cmd) -> Result<Value, StoreError> {
        match self {
            Self::Single(node) => node.send_command(command).await,
            Self::Cluster(cluster) => cluster.send_command(key, command).await,
        }
    }

    /// Waits for the first connection attempt; returns the cause if the server is unavailable.
    pub(crate) async fn ready(&self) -> Result<(), ConnectError> {
        match self {
            Self::Single(node) => node.health().ready().await,
            Self::Cluster(cluster) => cluster.health().ready().await,
        }
    }

    /// Waits for the next recovery from an outage.
    pub(crate) async fn wait_recovered(&self) {
        match self {
            Self::Single(node) => node.health().wait_recovered().await,
            Self::Cluster(cluster) => cluster.health().wait_recovered().await,
        }
    }

    /// Why decisions are degraded, if they are.
    pub(crate) fn last_error(&self) -> Option<String> {
        match self {
            Self::Single(node) => node.health().last_error(),
            Self::Cluster(cluster) => cluster.last_error(),
        }
    }

    /// The number of times that a server became unavailable.
    pub(crate) fn outages(&self) -> u64 {
        match self {
            Self::Single(node) => node.health().outages(),
            Self::Cluster(cluster) => cluster.outages(),
        }
    }

    /// The servers' names for messages, without credentials.
    pub(crate) fn display_name(&self) -> String {
        match self {
            Self::Single(node) => node.display_name().to_owned(),
            Self::Cluster(cluster) => cluster.display_name(),
        }
    }
}

//! One server or a cluster of them, behind the same few verbs.

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
    /// Does what is asked, by the deadline.
    pub(crate) async fn submit(&self, request: StoreRequest, caller: CallOrigin) -> NodeResult {
        match self {
            Self::Single(node) => node.submit(request, caller).await,
            Self::Cluster(cluster) => Box::pin(cluster.submit(request, caller)).await,
        }
    }

    /// What is asked, at a moment that the caller names.
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

    /// Waits while it is being connected to for the first time; the cause if it is unavailable.
    pub(crate) async fn ready(&self) -> Result<(), ConnectError> {
        match self {
            Self::Single(node) => node.health().ready().await,
            Self::Cluster(cluster) => cluster.health().ready().await,
        }
    }

    /// Waits until it is available after it was not.
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

    /// How often a server went away.
    pub(crate) fn outages(&self) -> u64 {
        match self {
            Self::Single(node) => node.health().outages(),
            Self::Cluster(cluster) => cluster.outages(),
        }
    }

    /// The servers as they may be shown.
    pub(crate) fn display_name(&self) -> String {
        match self {
            Self::Single(node) => node.display_name().to_owned(),
            Self::Cluster(cluster) => cluster.display_name(),
        }
    }
}

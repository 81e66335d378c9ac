//! One server or a cluster of them, behind the same few verbs.

use crate::{
    cluster::Cluster,
    error::ConnectError,
    node::{Answered, Caller, Node},
};
use redis::{Cmd, Value};
use std::sync::Arc;
use tidegate_core::Micros;
use tidegate_limiter::{StoreError, store::StoreRequest};

#[derive(Debug)]
pub(crate) enum Servers {
    One(Arc<Node>),
    Cluster(Arc<Cluster>),
}

impl Servers {
    /// Does what is asked, by the deadline.
    pub(crate) async fn submit(&self, request: StoreRequest, caller: Caller) -> Answered {
        match self {
            Self::One(node) => node.submit(request, caller).await,
            Self::Cluster(cluster) => Box::pin(cluster.submit(request, caller)).await,
        }
    }

    /// What is asked, at a moment that the caller names.
    pub(crate) async fn submit_at(&self, requests: &[StoreRequest], now: Micros) -> Vec<Answered> {
        match self {
            Self::One(node) => node.submit_at(requests, now).await,
            Self::Cluster(cluster) => cluster.submit_at(requests, now).await,
        }
    }

    /// Sends a plain command about one key.
    pub(crate) async fn command(&self, key: &str, command: &Cmd) -> Result<Value, StoreError> {
        match self {
            Self::One(node) => node.command(command).await,
            Self::Cluster(cluster) => cluster.command(key, command).await,
        }
    }

    /// Waits while it is being connected to for the first time; the cause if it is unavailable.
    pub(crate) async fn ready(&self) -> Result<(), ConnectError> {
        match self {
            Self::One(node) => node.health().ready().await,
            Self::Cluster(cluster) => cluster.health().ready().await,
        }
    }

    /// Waits until it is available after it was not.
    pub(crate) async fn recovered(&self) {
        match self {
            Self::One(node) => node.health().recovered().await,
            Self::Cluster(cluster) => cluster.health().recovered().await,
        }
    }

    /// Why decisions are degraded, if they are.
    pub(crate) fn trouble(&self) -> Option<String> {
        match self {
            Self::One(node) => node.health().trouble(),
            Self::Cluster(cluster) => cluster.trouble(),
        }
    }

    /// How often a server went away.
    pub(crate) fn outages(&self) -> u64 {
        match self {
            Self::One(node) => node.health().times_down(),
            Self::Cluster(cluster) => cluster.outages(),
        }
    }

    /// The servers as they may be shown.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::One(node) => node.shown().to_owned(),
            Self::Cluster(cluster) => cluster.shown(),
        }
    }
}

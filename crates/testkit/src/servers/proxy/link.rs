//! One connection through a proxy.

use super::{NetworkFault, ProxyShared};
use rustix::net::sockopt::set_socket_linger;
use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// Both sockets of a connection, closed when both of its threads have ended.
#[derive(Debug)]
pub(super) struct Link {
    client: TcpStream,
    server: TcpStream,
    is_reset: AtomicBool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Requests,
    Replies,
}

/// What to do with a chunk.
enum ChunkAction {
    Pass,
    Discard,
    Truncate(usize),
    Stop,
}

/// The reply bytes forwarded since the fault was injected.
#[derive(Default)]
struct CutProgress {
    fault_generation: u64,
    bytes: usize,
}

impl Link {
    pub(super) fn new(client: TcpStream, server: TcpStream) -> io::Result<Self> {
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        Ok(Self { client, server, is_reset: AtomicBool::new(false) })
    }

    /// Makes both sockets send a reset when they are closed, and wakes both threads by ending their reads.
    pub(super) fn reset(&self) {
        self.is_reset.store(true, Ordering::Release);
        for stream in [&self.client, &self.server] {
            let _ = set_socket_linger(stream, Some(Duration::ZERO));
            let _ = stream.shutdown(Shutdown::Read);
        }
    }

    /// Shuts down both directions of both sockets.
    pub(super) fn close(&self) {
        for stream in [&self.client, &self.server] {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Forwards one direction until it ends.
    pub(super) fn forward(self: Arc<Self>, shared: &ProxyShared, direction: Direction) {
        if self.forward_chunks(shared, direction).is_err() {
            self.close();
        }
        drop(self);
        // With the lock, so that a thread that waits for the number of links does not miss this change.
        let _state = shared.lock();
        shared.changed.notify_all();
    }

    fn forward_chunks(&self, shared: &ProxyShared, direction: Direction) -> io::Result<()> {
        let (mut from, mut to) = match direction {
            Direction::Requests => (&self.client, &self.server),
            Direction::Replies => (&self.server, &self.client),
        };
        let (mut chunk, mut sent) = ([0; 16 * 1024], CutProgress::default());
        loop {
            let length = from.read(&mut chunk)?;
            match self.next_action(shared, direction, length, &mut sent) {
                ChunkAction::Pass if length == 0 => return to.shutdown(Shutdown::Write),
                ChunkAction::Pass => to.write_all(&chunk[..length])?,
                ChunkAction::Discard if length == 0 => return Ok(()),
                ChunkAction::Discard => {}
                ChunkAction::Truncate(length) => {
                    to.write_all(&chunk[..length])?;
                    self.close();
                    return Ok(());
                }
                ChunkAction::Stop => return Ok(()),
            }
        }
    }

    /// Waits as the fault requires, then returns what to do with the chunk.
    fn next_action(
        &self,
        shared: &ProxyShared,
        direction: Direction,
        length: usize,
        sent: &mut CutProgress,
    ) -> ChunkAction {
        let mut state = shared.lock();
        loop {
            if state.is_closing || self.is_reset.load(Ordering::Acquire) {
                return ChunkAction::Stop;
            }
            let generation = state.fault_generation;
            match (state.fault, direction) {
                (Some(NetworkFault::Stall), _) => {
                    state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                (Some(NetworkFault::Delay(by)), _) => {
                    let waited = shared
                        .changed
                        .wait_timeout_while(state, by, |state| state.fault_generation == generation);
                    let (after, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                    if timeout.timed_out() {
                        return ChunkAction::Pass;
                    }
                    state = after;
                }
                (Some(NetworkFault::DropRequests), Direction::Requests) => {
                    state.lost_bytes += length;
                    return ChunkAction::Discard;
                }
                (Some(NetworkFault::CutReplies { after }), Direction::Replies) => {
                    if sent.fault_generation != generation {
                        *sent = CutProgress { fault_generation: generation, bytes: 0 };
                    }
                    let left = after - sent.bytes;
                    sent.bytes += length.min(left);
                    return if length < left { ChunkAction::Pass } else { ChunkAction::Truncate(left) };
                }
                _ => return ChunkAction::Pass,
            }
        }
    }
}

//! One connection through a proxy.

use super::{Fault, Wire};
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

/// Both sockets of a connection, closed when both of its threads have left.
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

/// What becomes of a chunk.
enum Fate {
    Pass,
    Lose,
    CutAt(usize),
    Abandon,
}

/// How much of the replies came through under the fault of this turn.
#[derive(Default)]
struct Sent {
    turn: u64,
    bytes: usize,
}

impl Link {
    pub(super) fn new(client: TcpStream, server: TcpStream) -> io::Result<Self> {
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        Ok(Self { client, server, is_reset: AtomicBool::new(false) })
    }

    /// Sends both ends a reset instead of an end, once both threads have left; a read that ends wakes them.
    pub(super) fn reset(&self) {
        self.is_reset.store(true, Ordering::Release);
        for stream in [&self.client, &self.server] {
            let _ = set_socket_linger(stream, Some(Duration::ZERO));
            let _ = stream.shutdown(Shutdown::Read);
        }
    }

    /// Ends both directions, in order.
    pub(super) fn close(&self) {
        for stream in [&self.client, &self.server] {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Carries one direction until it ends.
    pub(super) fn carry(self: Arc<Self>, wire: &Wire, direction: Direction) {
        if self.chunks(wire, direction).is_err() {
            self.close();
        }
        drop(self);
        // With the lock, so that whoever counts the links cannot miss that there is one less.
        let _state = wire.lock();
        wire.changed.notify_all();
    }

    fn chunks(&self, wire: &Wire, direction: Direction) -> io::Result<()> {
        let (mut from, mut to) = match direction {
            Direction::Requests => (&self.client, &self.server),
            Direction::Replies => (&self.server, &self.client),
        };
        let (mut chunk, mut sent) = ([0; 16 * 1024], Sent::default());
        loop {
            let length = from.read(&mut chunk)?;
            match self.fate(wire, direction, length, &mut sent) {
                Fate::Pass if length == 0 => return to.shutdown(Shutdown::Write),
                Fate::Pass => to.write_all(&chunk[..length])?,
                Fate::Lose if length == 0 => return Ok(()),
                Fate::Lose => {}
                Fate::CutAt(length) => {
                    to.write_all(&chunk[..length])?;
                    self.close();
                    return Ok(());
                }
                Fate::Abandon => return Ok(()),
            }
        }
    }

    /// Waits as long as the fault wants, and says what to do then.
    fn fate(&self, wire: &Wire, direction: Direction, length: usize, sent: &mut Sent) -> Fate {
        let mut state = wire.lock();
        loop {
            if state.is_leaving || self.is_reset.load(Ordering::Acquire) {
                return Fate::Abandon;
            }
            let turn = state.turn;
            match (state.fault, direction) {
                (Some(Fault::Stall), _) => {
                    state = wire.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                (Some(Fault::Delay(by)), _) => {
                    let waited = wire.changed.wait_timeout_while(state, by, |state| state.turn == turn);
                    let (after, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                    if timeout.timed_out() {
                        return Fate::Pass;
                    }
                    state = after;
                }
                (Some(Fault::LoseRequests), Direction::Requests) => {
                    state.lost += length;
                    return Fate::Lose;
                }
                (Some(Fault::CutReplies { after }), Direction::Replies) => {
                    if sent.turn != turn {
                        *sent = Sent { turn, bytes: 0 };
                    }
                    let left = after - sent.bytes;
                    sent.bytes += length.min(left);
                    return if length < left { Fate::Pass } else { Fate::CutAt(left) };
                }
                _ => return Fate::Pass,
            }
        }
    }
}

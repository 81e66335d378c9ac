//! What is written of each request.
//!
//! ```text
//!   worker ──record──▶ ┌ at most 8192 ┐ ──▶ one thread ──line──▶ file
//! ```
//!
//! A worker hands a record over and goes on; a thread of its own makes lines of them. While the disk is slower than the
//! requests, records are lost rather than requests held up, and a warning says how many. A file that was moved away is
//! opened anew.

mod line;
mod out;

use crate::telemetry::RequestRecord;
use out::Out;
use std::{
    io::{self, Write},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, TryRecvError, sync_channel},
    },
    thread::{self, JoinHandle},
};
use tidegate_http_server::Fault;
use tidegate_policy::model::{AccessLogFormat, AccessLogSpec};

/// Where workers hand over their records.
#[derive(Clone)]
pub(crate) struct Logbook {
    records: SyncSender<Arc<RequestRecord>>,
    lost: Arc<AtomicU64>,
}

/// The thread that writes; it ends when nobody can hand over anything any more.
pub(crate) type Writing = JoinHandle<()>;

/// Records that may wait.
const WAITING: usize = 8_192;

impl Logbook {
    /// Opens the log; nothing where none is wanted.
    pub(crate) fn open(log: &AccessLogSpec) -> Result<Option<(Self, Writing)>, Fault> {
        let format = match log.format {
            AccessLogFormat::None => return Ok(None),
            format => format,
        };
        let out = match &log.file {
            Some(file) => Out::to(file).map_err(|source| Fault::Log { file: file.clone(), source })?,
            None => Out::default(),
        };
        let name = log.file.clone().unwrap_or_else(|| PathBuf::from("standard output"));
        let (records, handed) = sync_channel(WAITING);
        let lost = Arc::new(AtomicU64::new(0));
        let book = Self { records, lost: lost.clone() };
        let work = move || {
            if let Err(error) = write(&handed, format, out, &lost) {
                tracing::error!(file = %name.display(), %error, "the log cannot be written any more");
            }
        };
        let writing = thread::Builder::new().name("log".to_owned()).spawn(work).map_err(Fault::Machine)?;
        Ok(Some((book, writing)))
    }

    /// Hands over a record, if there is room.
    pub(crate) fn hand_over(&self, record: Arc<RequestRecord>) {
        if self.records.try_send(record).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn write(
    records: &Receiver<Arc<RequestRecord>>,
    format: AccessLogFormat,
    mut out: Out,
    lost: &AtomicU64,
) -> io::Result<()> {
    loop {
        let record = match records.try_recv() {
            Ok(record) => record,
            Err(TryRecvError::Disconnected) => return out.flush(),
            Err(TryRecvError::Empty) => {
                // Whoever reads along sees a line when there is time for it.
                out.flush()?;
                let lost = lost.swap(0, Ordering::Relaxed);
                if lost > 0 {
                    tracing::warn!(lost, "requests were not logged: the log is slower than they are");
                }
                let Ok(record) = records.recv() else { return Ok(()) };
                out.reopen_if_moved()?;
                record
            }
        };
        out.write_all(record.line(format).as_bytes())?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_is_slow_loses_records_and_holds_nobody_up() {
        let (records, _unread) = sync_channel(2);
        let book = Logbook { records, lost: Arc::default() };
        for _ in 0..5 {
            book.hand_over(Arc::new(RequestRecord::example()));
        }
        assert_eq!(book.lost.load(Ordering::Relaxed), 3);
    }
}

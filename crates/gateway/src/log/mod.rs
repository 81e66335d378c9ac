//! What is written of each request.
//!
//! ```text
//!   worker ──record──▶ ┌ at most 8192 ┐ ──▶ one thread ──line──▶ file
//! ```
//!
//! A worker hands a record over and goes on; a thread of its own makes lines of them. While the disk is slower than the
//! requests, records are lost rather than requests held up, and a warning says how many. A file that was moved away is
//! opened anew.

mod format;
mod sink;

use crate::telemetry::RequestRecord;
use sink::LogSink;
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
use tidegate_http_server::StartupError;
use tidegate_policy::model::{AccessLogFormat, AccessLogSpec};

/// Where workers hand over their records.
#[derive(Clone)]
pub(crate) struct AccessLog {
    records: SyncSender<Arc<RequestRecord>>,
    lost: Arc<AtomicU64>,
}

/// The thread that writes; it ends when nobody can hand over anything any more.
pub(crate) type LogThread = JoinHandle<()>;

/// Records that may wait.
const QUEUE_CAPACITY: usize = 8_192;

impl AccessLog {
    /// Opens the log; nothing where none is wanted.
    pub(crate) fn open(log: &AccessLogSpec) -> Result<Option<(Self, LogThread)>, StartupError> {
        let format = match log.format {
            AccessLogFormat::None => return Ok(None),
            format => format,
        };
        let out = match &log.file {
            Some(file) => {
                LogSink::open(file).map_err(|source| StartupError::Log { file: file.clone(), source })?
            }
            None => LogSink::default(),
        };
        let name = log.file.clone().unwrap_or_else(|| PathBuf::from("standard output"));
        let (records, handed) = sync_channel(QUEUE_CAPACITY);
        let lost = Arc::new(AtomicU64::new(0));
        let book = Self { records, lost: lost.clone() };
        let work = move || {
            if let Err(error) = write_records(&handed, format, out, &lost) {
                tracing::error!(file = %name.display(), %error, "the log cannot be written any more");
            }
        };
        let writing =
            thread::Builder::new().name("log".to_owned()).spawn(work).map_err(StartupError::System)?;
        Ok(Some((book, writing)))
    }

    /// Hands over a record, if there is room.
    pub(crate) fn submit(&self, record: Arc<RequestRecord>) {
        if self.records.try_send(record).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn write_records(
    records: &Receiver<Arc<RequestRecord>>,
    format: AccessLogFormat,
    mut out: LogSink,
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
        out.write_all(record.format_line(format).as_bytes())?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_log_queue_drops_records_without_blocking() {
        let (records, _unread) = sync_channel(2);
        let book = AccessLog { records, lost: Arc::default() };
        for _ in 0..5 {
            book.submit(Arc::new(RequestRecord::example()));
        }
        assert_eq!(book.lost.load(Ordering::Relaxed), 3);
    }
}

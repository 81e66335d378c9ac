//! The access log.
//!
//! ```text
//!   worker ──record──▶ ┌ at most 8192 ┐ ──▶ one thread ──line──▶ file
//! ```
//!
//! Workers queue records, and one thread formats and writes them. If the disk is too slow, records are dropped instead of
//! delaying requests, and a warning reports their number. A file that was moved is opened again.

mod format;
mod sink;

use crate::{events, telemetry::RequestRecord};
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

/// Queues the records of workers.
#[derive(Clone)]
pub(crate) struct AccessLog {
    records: SyncSender<Arc<RequestRecord>>,
    lost: Arc<AtomicU64>,
}

/// The thread that writes the log. It ends when all senders are dropped.
pub(crate) type LogThread = JoinHandle<()>;

/// The capacity of the queue, in records.
const QUEUE_CAPACITY: usize = 8_192;

impl AccessLog {
    /// Opens the log; `None` if it is disabled.
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
        let (records, receiver) = sync_channel(QUEUE_CAPACITY);
        let lost = Arc::new(AtomicU64::new(0));
        let access_log = Self { records, lost: lost.clone() };
        let work = move || {
            if let Err(error) = write_records(&receiver, format, out, &lost) {
                events::AccessLogFailed { file: &name, error: &error }.emit();
            }
        };
        let handle =
            thread::Builder::new().name("log".to_owned()).spawn(work).map_err(StartupError::System)?;
        Ok(Some((access_log, handle)))
    }

    /// Queues a record; counts it as lost if the queue is full.
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
                // Flushes when the queue is empty, so that readers see recent lines.
                out.flush()?;
                let lost = lost.swap(0, Ordering::Relaxed);
                if lost > 0 {
                    events::AccessLogRecordsLost { lost }.emit();
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
        let access_log = AccessLog { records, lost: Arc::default() };
        for _ in 0..5 {
            access_log.submit(Arc::new(RequestRecord::example()));
        }
        assert_eq!(access_log.lost.load(Ordering::Relaxed), 3);
    }
}

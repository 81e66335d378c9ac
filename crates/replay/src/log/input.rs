//! Inputs: files, standard input and bytes, compressed or not. Each is read by its own thread.

use super::{LineFormats, LogError, LogParser, batch::LogBatch, docker::DockerLines};
use bzip2::bufread::MultiBzDecoder;
use flate2::bufread::MultiGzDecoder;
use lzma_rust2::XzReader;
use ruzstd::decoding::StreamingDecoder;
use std::{
    fmt,
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, SyncSender, channel, sync_channel},
    },
    thread,
};
use tidegate_policy::compile::PolicyGate;

/// The maximum memory for decompressing xz, in KiB. `xz -9` needs 64 MiB.
const MAX_XZ_MEMORY_KIB: u32 = 129 << 10;
/// The number of batches that are read ahead.
const PREFETCHED_BATCHES: usize = 2;

/// The source of a log.
pub struct LogInput {
    name: String,
    source: InputSource,
}

enum InputSource {
    File(PathBuf),
    Stdin,
    Bytes(Arc<[u8]>),
    Stream(Box<dyn Read + Send>),
}

impl LogInput {
    /// The name of standard input.
    pub const STDIN_NAME: &str = "standard input";

    /// Reads a file, or standard input for `-`.
    pub fn from_path(path: &str) -> Self {
        match path {
            "-" => Self { name: Self::STDIN_NAME.to_owned(), source: InputSource::Stdin },
            path => Self { name: path.to_owned(), source: InputSource::File(path.into()) },
        }
    }

    /// Reads bytes from memory.
    pub fn from_bytes(name: impl Into<String>, bytes: impl Into<Arc<[u8]>>) -> Self {
        Self { name: name.into(), source: InputSource::Bytes(bytes.into()) }
    }

    /// Reads a stream.
    pub fn from_stream(name: impl Into<String>, stream: impl Read + Send + 'static) -> Self {
        Self { name: name.into(), source: InputSource::Stream(Box::new(stream)) }
    }

    /// The name for reports and errors.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The size in bytes, before decompression; `None` if unknown.
    pub fn size(&self) -> Option<u64> {
        match &self.source {
            InputSource::File(path) => {
                std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file).map(|file| file.len())
            }
            InputSource::Bytes(bytes) => u64::try_from(bytes.len()).ok(),
            InputSource::Stdin | InputSource::Stream(_) => None,
        }
    }

    /// Returns a second input from the start, if the source can be read again.
    pub fn reopen(&self) -> Option<Self> {
        let from = match &self.source {
            InputSource::File(path) => self.size().map(|_| InputSource::File(path.clone())),
            InputSource::Bytes(bytes) => Some(InputSource::Bytes(bytes.clone())),
            InputSource::Stdin | InputSource::Stream(_) => None,
        };
        from.map(|from| Self { name: self.name.clone(), source: from })
    }

    fn open(self) -> Result<Box<dyn Read + Send>, LogError> {
        Ok(match self.source {
            InputSource::File(path) => match File::open(path) {
                Ok(file) => Box::new(file),
                Err(error) => return Err(LogError::Read { name: self.name, error }),
            },
            InputSource::Stdin => Box::new(io::stdin()),
            InputSource::Bytes(bytes) => Box::new(io::Cursor::new(bytes)),
            InputSource::Stream(stream) => stream,
        })
    }
}

impl fmt::Debug for LogInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogInput({})", self.name)
    }
}

/// One log and the thread that reads it.
#[derive(Debug)]
pub(super) struct LogReader {
    pub(super) name: String,
    batches: Receiver<Result<LogBatch, LogError>>,
    /// The number of batches that are sent but not received yet.
    ready: Arc<AtomicUsize>,
    /// Returns used batches to the thread.
    free_batches: Sender<LogBatch>,
}

/// The sending end of the reader thread.
struct BatchSender {
    batches: SyncSender<Result<LogBatch, LogError>>,
    ready: Arc<AtomicUsize>,
    free_batches: Receiver<LogBatch>,
}

impl BatchSender {
    /// Whether the receiver may be waiting for the next batch.
    fn is_receiver_idle(&self) -> bool {
        self.ready.load(Ordering::Relaxed) == 0
    }

    /// Sends a batch; `Err` if the receiver is closed.
    fn send(&self, batch: Result<LogBatch, LogError>) -> Result<(), ReceiverClosed> {
        self.ready.fetch_add(1, Ordering::Relaxed);
        self.batches.send(batch).map_err(|_| ReceiverClosed)
    }
}

/// The receiver is closed.
struct ReceiverClosed;

/// The policies to prepare requests for; set after the log is opened.
pub(super) type SharedGates = Arc<OnceLock<Vec<PolicyGate>>>;

/// Prepares requests for policies in the reader thread.
#[derive(Debug)]
pub(super) struct BatchPreparer {
    pub(super) gates: SharedGates,
    pub(super) formats: Arc<LineFormats>,
    pub(super) user_key: Option<Arc<str>>,
}

impl BatchPreparer {
    fn prepare(&self, batch: &mut LogBatch) {
        if let Some(gates) = self.gates.get() {
            batch.prepare(gates, &self.formats.headers, self.user_key.as_deref());
        }
    }
}

impl LogReader {
    /// Opens the input and starts its thread. `batch_size` is the number of bytes that are read at once; a longer line counts
    /// as broken. `read` counts the bytes before decompression.
    pub(super) fn start(
        input: LogInput,
        batch_size: usize,
        preparer: BatchPreparer,
        read: Arc<AtomicU64>,
    ) -> Result<Self, LogError> {
        let name = input.name.clone();
        let source = CountingReader { inner: input.open()?, bytes_read: read };
        let (sender, batches) = sync_channel(PREFETCHED_BATCHES);
        let (back, returned) = channel();
        let ready = Arc::new(AtomicUsize::new(0));
        let outlet = BatchSender { batches: sender, ready: ready.clone(), free_batches: returned };
        let of_thread = name.clone();
        let failed = name.clone();
        thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || {
                if let Err(error) = read_all(&of_thread, source, batch_size, &preparer, &outlet) {
                    let _ = outlet.send(Err(error));
                }
            })
            .map_err(|error| LogError::Read { name: failed, error })?;
        Ok(Self { name, batches, ready, free_batches: back })
    }

    /// Returns the next batch; `None` at the end.
    pub(super) fn next_batch(&mut self) -> Result<Option<LogBatch>, LogError> {
        let batch = self.batches.recv().ok().transpose()?;
        if batch.is_some() {
            self.ready.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(batch)
    }

    /// Returns a used batch to the thread.
    pub(super) fn recycle(&mut self, batch: LogBatch) {
        // The thread may have ended.
        let _ = self.free_batches.send(batch);
    }
}

fn read_all(
    name: &str,
    source: impl Read + Send,
    batch_size: usize,
    preparer: &BatchPreparer,
    outlet: &BatchSender,
) -> Result<(), LogError> {
    let failed = |error| LogError::Read { name: name.to_owned(), error };
    let mut text = decompress(source).map_err(failed)?;
    let mut parser = LogParser::new(preparer.formats.clone());
    let mut docker = DockerLines::default();
    let mut rest = Vec::new();
    let mut is_within_long = false;
    loop {
        let mut batch = outlet.free_batches.try_recv().unwrap_or_default();
        let mut bytes = std::mem::take(&mut batch.text).into_bytes();
        bytes.clear();
        bytes.reserve(batch_size);
        bytes.append(&mut rest);
        let room = batch_size.saturating_sub(bytes.len());
        let count = text.by_ref().take(room as u64).read_to_end(&mut bytes).map_err(failed)?;
        let is_end = count < room;
        match memchr::memrchr(b'\n', &bytes) {
            _ if is_end => {}
            Some(end) => rest.extend(bytes.drain(end + 1..)),
            // The line is longer than a batch: skip up to the next line.
            None => {
                if !is_within_long {
                    parser.record_too_long();
                }
                is_within_long = true;
                continue;
            }
        }
        if is_within_long {
            let end = memchr::memchr(b'\n', &bytes).unwrap_or(bytes.len());
            bytes.drain(..end);
            is_within_long = false;
        }
        if !bytes.is_empty() || (is_end && docker.has_parts()) {
            let text = String::from_utf8(bytes)
                .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
            let text = docker.unwrap_lines(text, is_end);
            parser.parse(name, text, &mut batch)?;
            // Prepare requests only if the receiver is busy; an idle receiver prepares them itself.
            if !outlet.is_receiver_idle() {
                preparer.prepare(&mut batch);
            }
            if outlet.send(Ok(batch)).is_err() {
                return Ok(());
            }
        }
        if is_end {
            return Ok(());
        }
    }
}

/// Decompresses gzip, zstd, xz and bzip2, detected by their magic numbers.
fn decompress<'r>(mut source: impl Read + Send + 'r) -> io::Result<Box<dyn Read + Send + 'r>> {
    // A pipe may return fewer bytes than a magic number has.
    let mut start = Vec::new();
    source.by_ref().take(6).read_to_end(&mut start)?;
    let kind = start.clone();
    let source = BufReader::with_capacity(1 << 17, io::Cursor::new(start).chain(source));
    Ok(match &kind[..] {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(source)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(ZstdReader { source: Some(source), frame: None }),
        [0xfd, b'7', b'z', b'X', b'Z', 0] => {
            Box::new(XzLog(XzReader::new_mem_limit(source, true, MAX_XZ_MEMORY_KIB)))
        }
        [b'B', b'Z', b'h', b'1'..=b'9', 0x31 | 0x17, ..] => Box::new(MultiBzDecoder::new(source)),
        _ => Box::new(source),
    })
}

/// Decompresses xz, with an error that explains its memory limit.
struct XzLog<R: Read>(XzReader<R>);

impl<R: Read> Read for XzLog<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into).map_err(|error| match error.kind() {
            io::ErrorKind::OutOfMemory => io::Error::other(
                "it needs more than 128 MiB to decompress; decompress it first, with xz -dc, and pipe it to standard input",
            ),
            _ => error,
        })
    }
}

/// Decodes concatenated zstd frames.
struct ZstdReader<R: BufRead> {
    source: Option<R>,
    frame: Option<StreamingDecoder<R, ruzstd::decoding::FrameDecoder>>,
}

impl<R: BufRead> Read for ZstdReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(frame) = &mut self.frame {
                match frame.read(into)? {
                    0 if !into.is_empty() => {
                        self.source = self.frame.take().map(StreamingDecoder::into_inner);
                    }
                    count => return Ok(count),
                }
            }
            let Some(mut source) = self.source.take() else { return Ok(0) };
            if source.fill_buf()?.is_empty() {
                return Ok(0);
            }
            self.frame = Some(StreamingDecoder::new(source).map_err(io::Error::other)?);
        }
    }
}

/// Counts the bytes that are read.
struct CountingReader<R> {
    inner: R,
    bytes_read: Arc<AtomicU64>,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(into)?;
        self.bytes_read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

//! Files, standard input and bytes, packed or not, read by a thread of their own.

use super::{Formats, LogError, Parser, batch::Batch};
use flate2::bufread::MultiGzDecoder;
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

/// How much of a log is read at once. A line that is longer is broken.
pub(super) const BATCH: usize = 1 << 20;
/// Batches that are read ahead.
const AHEAD: usize = 2;

/// Where a log comes from.
pub struct Input {
    name: String,
    from: From,
}

enum From {
    File(PathBuf),
    Stdin,
    Bytes(Arc<[u8]>),
    Stream(Box<dyn Read + Send>),
}

impl Input {
    /// A file, or standard input for `-`.
    pub fn of(path: &str) -> Self {
        match path {
            "-" => Self { name: "standard input".to_owned(), from: From::Stdin },
            path => Self { name: path.to_owned(), from: From::File(path.into()) },
        }
    }

    /// What is already here.
    pub fn bytes(name: impl Into<String>, bytes: impl Into<Arc<[u8]>>) -> Self {
        Self { name: name.into(), from: From::Bytes(bytes.into()) }
    }

    /// Whatever gives bytes.
    pub fn stream(name: impl Into<String>, stream: impl Read + Send + 'static) -> Self {
        Self { name: name.into(), from: From::Stream(Box::new(stream)) }
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many bytes there are to read, packed as they are; `None` if nobody knows.
    pub fn size(&self) -> Option<u64> {
        match &self.from {
            From::File(path) => {
                std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file).map(|file| file.len())
            }
            From::Bytes(bytes) => u64::try_from(bytes.len()).ok(),
            From::Stdin | From::Stream(_) => None,
        }
    }

    /// The same once more, if it can be read from its start again.
    pub fn again(&self) -> Option<Self> {
        let from = match &self.from {
            From::File(path) => self.size().map(|_| From::File(path.clone())),
            From::Bytes(bytes) => Some(From::Bytes(bytes.clone())),
            From::Stdin | From::Stream(_) => None,
        };
        from.map(|from| Self { name: self.name.clone(), from })
    }

    fn open(self) -> Result<Box<dyn Read + Send>, LogError> {
        Ok(match self.from {
            From::File(path) => match File::open(path) {
                Ok(file) => Box::new(file),
                Err(error) => return Err(LogError::Read { name: self.name, error }),
            },
            From::Stdin => Box::new(io::stdin()),
            From::Bytes(bytes) => Box::new(io::Cursor::new(bytes)),
            From::Stream(stream) => stream,
        })
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Input({})", self.name)
    }
}

/// One log, read by a thread of its own.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) name: String,
    batches: Receiver<Result<Batch, LogError>>,
    /// How many of them nobody has taken yet.
    ready: Arc<AtomicUsize>,
    /// Batches to be filled again.
    back: Sender<Batch>,
}

/// Where batches go.
struct Outlet {
    batches: SyncSender<Result<Batch, LogError>>,
    ready: Arc<AtomicUsize>,
    returned: Receiver<Batch>,
}

impl Outlet {
    /// Whether somebody may be waiting for the next one.
    fn is_awaited(&self) -> bool {
        self.ready.load(Ordering::Relaxed) == 0
    }

    /// `Err` if nobody listens any more.
    fn send(&self, batch: Result<Batch, LogError>) -> Result<(), Gone> {
        self.ready.fetch_add(1, Ordering::Relaxed);
        self.batches.send(batch).map_err(|_| Gone)
    }
}

/// Nobody listens any more.
struct Gone;

/// The policies that requests are read for; nobody knows them before the first request.
pub(super) type Gates = Arc<OnceLock<Vec<PolicyGate>>>;

/// Finds out what policies have to know of requests.
#[derive(Debug)]
pub(super) struct Scout {
    pub(super) gates: Gates,
    pub(super) formats: Arc<Formats>,
    pub(super) user_header: Option<Arc<str>>,
}

impl Scout {
    fn look_at(&self, batch: &mut Batch) {
        if let Some(gates) = self.gates.get() {
            batch.prepare(gates, &self.formats.headers, self.user_header.as_deref());
        }
    }
}

impl Reader {
    /// Opens it. `read` counts the bytes that were read, packed as they are.
    pub(super) fn start(input: Input, scout: Scout, read: Arc<AtomicU64>) -> Result<Self, LogError> {
        let name = input.name.clone();
        let source = Counting { inner: input.open()?, read };
        let (sender, batches) = sync_channel(AHEAD);
        let (back, returned) = channel();
        let ready = Arc::new(AtomicUsize::new(0));
        let outlet = Outlet { batches: sender, ready: ready.clone(), returned };
        let of_thread = name.clone();
        let failed = name.clone();
        thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || {
                if let Err(error) = read_all(&of_thread, source, &scout, &outlet) {
                    let _ = outlet.send(Err(error));
                }
            })
            .map_err(|error| LogError::Read { name: failed, error })?;
        Ok(Self { name, batches, ready, back })
    }

    /// The next lines; `None` at the end.
    pub(super) fn next_batch(&mut self) -> Result<Option<Batch>, LogError> {
        let batch = self.batches.recv().ok().transpose()?;
        if batch.is_some() {
            self.ready.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(batch)
    }

    /// Gives a batch back that nobody looks at any more.
    pub(super) fn give_back(&mut self, batch: Batch) {
        // The thread may have come to its end.
        let _ = self.back.send(batch);
    }
}

fn read_all(name: &str, source: impl Read + Send, scout: &Scout, outlet: &Outlet) -> Result<(), LogError> {
    let failed = |error| LogError::Read { name: name.to_owned(), error };
    let mut text = unpacked(source).map_err(failed)?;
    let mut parser = Parser::new(scout.formats.clone());
    let mut rest = Vec::new();
    let mut is_within_long = false;
    loop {
        let mut batch = outlet.returned.try_recv().unwrap_or_default();
        let mut bytes = std::mem::take(&mut batch.text).into_bytes();
        bytes.clear();
        bytes.reserve(BATCH);
        bytes.append(&mut rest);
        let room = BATCH.saturating_sub(bytes.len());
        let count = text.by_ref().take(room as u64).read_to_end(&mut bytes).map_err(failed)?;
        let is_end = count < room;
        match memchr::memrchr(b'\n', &bytes) {
            _ if is_end => {}
            Some(end) => rest.extend(bytes.drain(end + 1..)),
            // A line that has no end: what is left of it is lost, up to the next one.
            None => {
                if !is_within_long {
                    parser.pass_over();
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
        if !bytes.is_empty() {
            let text = String::from_utf8(bytes)
                .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
            parser.read(name, text, &mut batch)?;
            // Whoever has time does it: somebody who waits for these lines can look ahead as well.
            if !outlet.is_awaited() {
                scout.look_at(&mut batch);
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

/// Undoes gzip and zstd, whatever the name of the file says.
fn unpacked<'r>(source: impl Read + Send + 'r) -> io::Result<Box<dyn Read + Send + 'r>> {
    let mut source = BufReader::with_capacity(1 << 17, source);
    let start = source.fill_buf()?;
    Ok(match start {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(source)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(Zstd { source: Some(source), frame: None }),
        _ => Box::new(source),
    })
}

/// Frame after frame, as `zstd` writes when files are put together.
struct Zstd<R: BufRead> {
    source: Option<R>,
    frame: Option<StreamingDecoder<R, ruzstd::decoding::FrameDecoder>>,
}

impl<R: BufRead> Read for Zstd<R> {
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

/// Counts what was read.
struct Counting<R> {
    inner: R,
    read: Arc<AtomicU64>,
}

impl<R: Read> Read for Counting<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(into)?;
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

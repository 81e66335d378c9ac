//! Lines to records, in the format that the last line had, or else in another that is known.

use super::{
    LogError,
    batch::{Batch, Counts, Record},
    format::{Format, Formats, Shape},
};
use std::sync::Arc;
use tidegate_policy::compile::Prefetch;

/// How many broken lines are kept to be shown.
const SAMPLES: usize = 5;
/// How much of a line is shown.
const SHOWN: usize = 160;

/// Reads the lines of one file.
#[derive(Clone, Debug)]
pub struct Parser {
    formats: Arc<Formats>,
    /// The format that is tried first.
    usual: usize,
    /// Lines before the next batch.
    lines: u64,
    /// Whether any line was read.
    has_read: bool,
    /// Lines that were too long, to be told with the next batch.
    too_long: u64,
}

/// What no format could read: where each of them gave up.
pub type Broken = Vec<(String, String)>;

impl Parser {
    /// One for these formats.
    pub fn new(formats: Arc<Formats>) -> Self {
        Self { formats, usual: 0, lines: 0, has_read: false, too_long: 0 }
    }

    /// Notes a line that was too long to be read.
    pub(super) fn pass_over(&mut self) {
        self.too_long += 1;
    }

    /// Reads all lines of a text into a batch, in the order of time. Whatever was in the batch is gone.
    pub fn read(&mut self, name: &str, text: String, batch: &mut Batch) -> Result<(), LogError> {
        batch.records.clear();
        batch.aside.clear();
        batch.prefetch.iter_mut().for_each(Prefetch::clear);
        let broken = std::mem::take(&mut self.too_long);
        batch.counts = Counts { broken, formats: vec![0; self.formats.list.len()], ..Counts::default() };
        batch.text = text;
        let mut first_broken = None;
        let bytes = batch.text.as_bytes();
        let mut start = 0;
        while start < bytes.len() {
            let end = memchr::memchr(b'\n', &bytes[start..]).map_or(bytes.len(), |end| start + end);
            let line = bytes[start..end].strip_suffix(b"\r").unwrap_or(&bytes[start..end]);
            batch.counts.lines += 1;
            // A record in place, since most lines are fine.
            let mut record = Record::default();
            match self.read_line(line, start, &mut record, &mut batch.aside) {
                Some(format) => {
                    record.go_back();
                    batch.records.push(record);
                    batch.counts.formats[format] += 1;
                }
                None if line.trim_ascii().is_empty() => {}
                None => {
                    let number = self.lines + batch.counts.lines;
                    first_broken.get_or_insert((number, start, line.len()));
                    batch.counts.broken += 1;
                    if batch.counts.samples.len() < SAMPLES {
                        batch.counts.samples.push((number, shown(line)));
                    }
                }
            }
            start = end + 1;
        }
        self.lines += batch.counts.lines;
        self.has_read |= !batch.records.is_empty();
        if let Some((line, at, len)) = first_broken
            && !self.has_read
        {
            let (text, tried) = (shown(&bytes[at..at + len]), self.tried(&bytes[at..at + len]));
            return Err(LogError::Unknown { name: name.to_owned(), line, text, tried });
        }
        batch.counts.reordered = put_in_order(&mut batch.records);
        Ok(())
    }

    /// The place of the format that reads this line.
    #[inline]
    fn read_line(
        &mut self,
        line: &[u8],
        at: usize,
        record: &mut Record,
        aside: &mut String,
    ) -> Option<usize> {
        let formats = &self.formats.list;
        if formats[self.usual].read(line, at, record, aside).is_ok() {
            return Some(self.usual);
        }
        for (place, format) in formats.iter().enumerate() {
            *record = Record::default();
            if place != self.usual && format.read(line, at, record, aside).is_ok() {
                self.usual = place;
                return Some(place);
            }
        }
        None
    }

    /// Where each format gave up.
    fn tried(&self, line: &[u8]) -> Broken {
        let each = self.formats.list.iter().map(|format| {
            let (mut record, mut aside) = (Record::default(), String::new());
            let why = format.read(line, 0, &mut record, &mut aside).err().unwrap_or_default();
            (format.name.clone(), why)
        });
        each.collect()
    }
}

impl Format {
    #[inline]
    fn read(&self, line: &[u8], at: usize, record: &mut Record, aside: &mut String) -> Result<(), String> {
        match &self.shape {
            Shape::Text(text) => {
                text.read(line, at, record).map_err(|field| format!("no {field} where it should be"))
            }
            Shape::Json(json) => json.read(line, at, record, aside).map_err(str::to_owned),
        }
    }
}

/// Sorts records by time, and says how many were earlier than one before them.
fn put_in_order(records: &mut [Record]) -> u64 {
    let mut latest = 0;
    let mut late = 0;
    for record in records.iter() {
        match record.time < latest {
            true => late += 1,
            false => latest = record.time,
        }
    }
    if late > 0 {
        // Lines of one moment stay in the order in which they were written.
        records.sort_by_key(|record| record.time);
    }
    late
}

fn shown(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.into_owned(),
    }
}

//! Parses lines into records. The format of the previous line is tried first.

use super::{
    LogError,
    batch::{BatchCounts, LogBatch, LogRecord},
    cloudfront::CloudfrontFormat,
    format::{FormatKind, LineFormat, LineFormats},
    haproxy,
};
use std::sync::Arc;
use tidegate_policy::compile::Prefetch;

/// The number of broken lines that are reported.
const MAX_SAMPLES: usize = 5;
/// The number of characters of a broken line that are reported.
const MAX_SAMPLE_CHARS: usize = 160;

/// Parses the lines of one file.
#[derive(Clone, Debug)]
pub struct LogParser {
    formats: Arc<LineFormats>,
    /// The index of the format that is tried first.
    last_format: usize,
    /// The columns of the last `#Fields` line of CloudFront.
    cloudfront: Option<CloudfrontFormat>,
    /// The number of lines before the next batch.
    lines: u64,
    /// Whether any line was parsed.
    has_read: bool,
    /// Lines that were too long; counted in the next batch.
    too_long: u64,
}

/// The formats that were tried on a line, with the reason why each does not match.
pub type FormatAttempts = Vec<(String, String)>;

impl LogParser {
    /// Creates a parser for these formats.
    pub fn new(formats: Arc<LineFormats>) -> Self {
        Self { formats, last_format: 0, cloudfront: None, lines: 0, has_read: false, too_long: 0 }
    }

    /// Counts a line that is too long.
    pub(super) fn record_too_long(&mut self) {
        self.too_long += 1;
    }

    /// Parses all lines of a text into a batch, ordered by time. Replaces the content of the batch.
    ///
    /// # Errors
    ///
    /// Returns [`LogError::UnknownFormat`] if no line so far matches a format.
    pub fn parse(&mut self, name: &str, text: String, batch: &mut LogBatch) -> Result<(), LogError> {
        batch.records.clear();
        batch.unescaped.clear();
        batch.prefetch.iter_mut().for_each(Prefetch::clear);
        let broken = std::mem::take(&mut self.too_long);
        batch.counts =
            BatchCounts { broken, formats: vec![0; self.formats.list.len()], ..BatchCounts::default() };
        batch.text = text;
        batch.lines_before = self.lines;
        let mut first_broken = None;
        let bytes = batch.text.as_bytes();
        let mut start = 0;
        while start < bytes.len() {
            let end = memchr::memchr(b'\n', &bytes[start..]).map_or(bytes.len(), |end| start + end);
            let line = bytes[start..end].strip_suffix(b"\r").unwrap_or(&bytes[start..end]);
            batch.counts.lines += 1;
            // Parse in place, because most lines are valid.
            let mut record = LogRecord { line: batch.counts.lines as u32 - 1, ..LogRecord::default() };
            match self.parse_line(line, start, &mut record, &mut batch.unescaped) {
                Some(format) => {
                    record.shift_to_arrival();
                    batch.records.push(record);
                    batch.counts.formats[format] += 1;
                }
                None if line.trim_ascii().is_empty() || self.parse_header(line) => {}
                None => {
                    let number = self.lines + batch.counts.lines;
                    first_broken.get_or_insert((number, start, line.len()));
                    batch.counts.broken += 1;
                    if batch.counts.samples.len() < MAX_SAMPLES {
                        batch.counts.samples.push((number, truncate_line(line)));
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
            let (text, tried) =
                (truncate_line(&bytes[at..at + len]), self.collect_attempts(&bytes[at..at + len]));
            return Err(LogError::UnknownFormat { name: name.to_owned(), line, text, attempts: tried });
        }
        batch.counts.reordered = sort_by_time(&mut batch.records);
        Ok(())
    }

    /// Parses a header line of CloudFront. Returns whether it is one.
    fn parse_header(&mut self, line: &[u8]) -> bool {
        let columns = self.formats.parse_cloudfront_header(line);
        let is_header = columns.is_some() || line.starts_with(b"#Version:");
        self.cloudfront = columns.or(self.cloudfront.take());
        is_header
    }

    /// Returns the index of the format that matches the line.
    #[inline]
    fn parse_line(
        &mut self,
        line: &[u8],
        at: usize,
        record: &mut LogRecord,
        unescaped: &mut String,
    ) -> Option<usize> {
        let (number, unescaped_len) = (record.line, unescaped.len());
        let formats = &self.formats.list;
        let columns = self.cloudfront.as_ref();
        if formats[self.last_format].parse(line, at, record, unescaped, columns).is_ok() {
            return Some(self.last_format);
        }
        for (place, format) in formats.iter().enumerate() {
            if place == self.last_format {
                continue;
            }
            *record = LogRecord { line: number, ..LogRecord::default() };
            unescaped.truncate(unescaped_len);
            if format.parse(line, at, record, unescaped, columns).is_ok() {
                self.last_format = place;
                return Some(place);
            }
        }
        unescaped.truncate(unescaped_len);
        None
    }

    /// Returns the reason why each format does not match.
    fn collect_attempts(&self, line: &[u8]) -> FormatAttempts {
        let each = self.formats.list.iter().map(|format| {
            let (mut record, mut unescaped) = (LogRecord::default(), String::new());
            let parsed = format.parse(line, 0, &mut record, &mut unescaped, self.cloudfront.as_ref());
            (format.name.clone(), parsed.err().unwrap_or_default())
        });
        each.collect()
    }
}

impl LineFormat {
    #[inline]
    fn parse(
        &self,
        line: &[u8],
        at: usize,
        record: &mut LogRecord,
        unescaped: &mut String,
        columns: Option<&CloudfrontFormat>,
    ) -> Result<(), String> {
        let expected = |field: &str| format!("expected {field}");
        match &self.kind {
            FormatKind::Text(text) => text.parse(line, at, record, unescaped).map_err(expected),
            FormatKind::Json(json) => json.parse(line, at, record, unescaped).map_err(str::to_owned),
            FormatKind::Haproxy => haproxy::parse(line, at, record, unescaped).map_err(expected),
            FormatKind::Cloudfront(format) => {
                let format = columns.unwrap_or(format);
                format.parse(line, at, record, unescaped).map_err(|column| expected(&column))
            }
        }
    }
}

/// Sorts records by time, and returns how many were out of order.
fn sort_by_time(records: &mut [LogRecord]) -> u64 {
    let mut latest = 0;
    let mut late = 0;
    for record in records.iter() {
        match record.time < latest {
            true => late += 1,
            false => latest = record.time,
        }
    }
    if late > 0 {
        // The sort is stable, so lines of the same time keep their order.
        records.sort_by_key(|record| record.time);
    }
    late
}

fn truncate_line(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    match text.char_indices().nth(MAX_SAMPLE_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.into_owned(),
    }
}

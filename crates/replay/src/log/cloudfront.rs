//! Standard logs of CloudFront: values separated by tabs, with the names of the columns in a `#Fields` line.

use super::{
    batch::{LogRecord, TimeKind},
    builtin::{self, HeaderIndex},
    escape::Escape,
    field::LogField,
    time::{self, TimeFormat},
};

/// The columns of a file.
#[derive(Clone, Debug)]
pub(super) struct CloudfrontFormat {
    columns: Vec<Column>,
}

#[derive(Clone, Debug)]
struct Column {
    name: String,
    kind: ColumnKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ColumnKind {
    Date,
    Time,
    Field(LogField),
}

impl CloudfrontFormat {
    /// Creates the format for columns, separated by spaces.
    pub(super) fn new(columns: &str, place: &mut HeaderIndex<'_>) -> Self {
        let kind = |name: &str, place: &mut HeaderIndex<'_>| match name {
            "date" => ColumnKind::Date,
            "time" => ColumnKind::Time,
            name => ColumnKind::Field(builtin::cloudfront_field(name, place)),
        };
        let columns = columns.split_ascii_whitespace();
        Self {
            columns: columns.map(|name| Column { name: name.to_owned(), kind: kind(name, place) }).collect(),
        }
    }

    /// Parses a line that starts at `at`; unescaped values are appended to `unescaped`. `Err` names the column that does not
    /// match.
    pub(super) fn parse(
        &self,
        line: &[u8],
        at: usize,
        record: &mut LogRecord,
        unescaped: &mut String,
    ) -> Result<(), String> {
        let escape = Escape::Percent.if_in(line);
        let (mut date, mut clock): (&[u8], &[u8]) = (b"", b"");
        let mut from = 0;
        for Column { name, kind } in &self.columns {
            let Some(rest) = line.get(from..) else { break };
            let end = memchr::memchr(b'\t', rest).unwrap_or(rest.len());
            let value = &rest[..end];
            match kind {
                ColumnKind::Date => date = value,
                ColumnKind::Time => clock = value,
                ColumnKind::Field(field) => {
                    escape.parse_field(*field, value, at + from, record, unescaped).ok_or(name.as_str())?;
                }
            }
            from += end + 1;
        }
        let time = time::parse(TimeFormat::Iso, &[date, b"T", clock].concat()).ok_or("date and time")?;
        // The time is that of the end of the response.
        record.set_time(time, TimeKind::Completion);
        if record.path.is_empty() {
            return Err("cs-uri-stem".to_owned());
        }
        Ok(())
    }
}

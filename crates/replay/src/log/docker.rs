//! Lines of Docker's `json-file` driver, which wrap the lines of a program:
//!
//! ```text
//! {"log":"192.0.2.1 - - [01/Feb/2024:12:00:00 +0000] \"GET / HTTP/1.1\" 200 1\n","stream":"stdout","time":"…"}
//! ```
//!
//! Docker splits lines at 16 kB; the parts of a line do not end with a line break.

use serde_json::Value;

/// The start of each line.
const START: &[u8] = b"{\"log\":\"";
/// The maximum length of a line that consists of several parts.
const MAX_LINE_BYTES: usize = 1 << 20;

/// Unwraps the lines of one file.
#[derive(Clone, Debug, Default)]
pub(super) struct DockerLines {
    /// The parts of unfinished lines of standard output and standard error.
    parts: [String; 2],
}

impl DockerLines {
    /// Replaces wrapped lines with the lines in them. Other lines are left as they are. The number of lines does not change: a
    /// part of a line becomes an empty line.
    pub(super) fn unwrap_lines(&mut self, text: String, is_end: bool) -> String {
        if memchr::memmem::find(text.as_bytes(), START).is_none() && !self.has_parts() {
            return text;
        }
        let mut lines = String::with_capacity(text.len());
        for line in text.lines() {
            match parse_line(line) {
                Some((log, stream)) => self.append(&log, stream, &mut lines),
                None => lines.push_str(line),
            }
            lines.push('\n');
        }
        if is_end {
            // A program may end without a line break.
            for part in self.parts.iter_mut().filter(|part| !part.is_empty()) {
                lines.push_str(&std::mem::take(part));
                lines.push('\n');
            }
        }
        lines
    }

    /// Whether a line is unfinished.
    pub(super) fn has_parts(&self) -> bool {
        self.parts.iter().any(|part| !part.is_empty())
    }

    fn append(&mut self, log: &str, stream: usize, lines: &mut String) {
        let Some(part) = self.parts.get_mut(stream) else { return };
        match log.strip_suffix('\n') {
            Some(end) => {
                let start = lines.len();
                lines.push_str(&std::mem::take(part));
                lines.push_str(end);
                // The text has one line for each wrapped line.
                if lines[start..].contains('\n') {
                    let line = lines[start..].replace('\n', " ");
                    lines.truncate(start);
                    lines.push_str(&line);
                }
            }
            // The middle of a line that is too long is dropped.
            None if part.len() + log.len() > MAX_LINE_BYTES => {}
            None => part.push_str(log),
        }
    }
}

/// Returns the text of a wrapped line, and the index of its stream.
fn parse_line(line: &str) -> Option<(String, usize)> {
    if !line.as_bytes().starts_with(START) {
        return None;
    }
    let mut value: Value = serde_json::from_str(line).ok()?;
    let stream = match value.get("stream")?.as_str()? {
        "stdout" => 0,
        "stderr" => 1,
        _ => return None,
    };
    match value.get_mut("log")?.take() {
        Value::String(log) => Some((log, stream)),
        _ => None,
    }
}

//! Overrides in a file: one line of JSON per change.
//!
//! A line is appended and synced before the change is confirmed. A crash leaves whole lines, and at most a part of the last one,
//! which was not confirmed. A rewrite replaces the file as a whole.

use crate::events;
use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};
use tidegate_http_server::StartupError;
use tidegate_policy::overrides::{OverrideInterner, OverrideRecord};

/// The file of the overrides, locked for this process.
pub(super) struct OverrideFile {
    path: PathBuf,
    file: File,
    /// The size of its whole lines.
    size: u64,
    pub(super) lines: usize,
    /// Whether there may be a part of a line behind them.
    is_cut_off: bool,
}

impl OverrideFile {
    /// Opens or creates the file, and reads its changes.
    pub(super) fn open(path: &Path) -> Result<(Self, Vec<OverrideRecord>), StartupError> {
        let failed = |reason: String| StartupError::Overrides { file: path.to_owned(), reason };
        let io_failed = |error: io::Error| failed(error.to_string());
        let mut file = open_locked(path).map_err(|error| match error {
            TryLockError::WouldBlock => {
                failed("in use by another process; give each gateway its own file, or use `store`".to_owned())
            }
            TryLockError::Error(error) => io_failed(error),
        })?;
        let mut content = Vec::new();
        file.read_to_end(&mut content).map_err(io_failed)?;
        let whole = content.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        if whole < content.len() {
            file.set_len(whole as u64).and_then(|()| file.sync_all()).map_err(io_failed)?;
            events::OverrideFileRepaired { file: path, removed: content.len() - whole }.emit();
        }
        let (mut interner, mut records) = (OverrideInterner::default(), Vec::new());
        for (index, line) in content[..whole].split_inclusive(|byte| *byte == b'\n').enumerate() {
            let record = OverrideRecord::parse(line, &mut interner).map_err(|problem| {
                failed(format!("line {}: {problem}; correct the line, or remove it", index + 1))
            })?;
            records.push(record);
        }
        let this =
            Self { path: path.to_owned(), file, size: whole as u64, lines: records.len(), is_cut_off: false };
        Ok((this, records))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends a change. After an error it is not in the file.
    pub(super) fn append(&mut self, record: &OverrideRecord) -> io::Result<()> {
        if self.is_cut_off {
            self.file.set_len(self.size)?;
            self.is_cut_off = false;
        }
        let line = record.to_line() + "\n";
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        match written {
            Ok(()) => {
                self.size += line.len() as u64;
                self.lines += 1;
                Ok(())
            }
            Err(error) => {
                self.is_cut_off = self.file.set_len(self.size).is_err();
                Err(error)
            }
        }
    }

    /// Replaces all changes.
    pub(super) fn rewrite<'a>(
        &mut self,
        records: impl Iterator<Item = &'a OverrideRecord>,
    ) -> io::Result<()> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let new_path = self.path.with_file_name(format!(".{name}.new"));
        let _left_over = fs::remove_file(&new_path);
        let mut text = String::new();
        let mut lines = 0;
        for record in records {
            text.push_str(&record.to_line());
            text.push('\n');
            lines += 1;
        }
        let write = || -> io::Result<File> {
            let mut new = options().create_new(true).open(&new_path)?;
            new.lock()?;
            new.set_permissions(self.file.metadata()?.permissions())?;
            new.write_all(text.as_bytes())?;
            new.sync_all()?;
            fs::rename(&new_path, &self.path)?;
            sync_folder(&self.path)?;
            Ok(new)
        };
        match write() {
            Ok(file) => {
                (self.file, self.size, self.lines) = (file, text.len() as u64, lines);
                self.is_cut_off = false;
                Ok(())
            }
            Err(error) => {
                let _left_over = fs::remove_file(&new_path);
                Err(error)
            }
        }
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).append(true).mode(0o600);
    options
}

/// Opens and locks the file of this path. Another process may have replaced it meanwhile.
fn open_locked(path: &Path) -> Result<File, TryLockError> {
    loop {
        let file = options().create(true).open(path).map_err(TryLockError::Error)?;
        file.try_lock()?;
        let is_current = || -> io::Result<bool> { Ok(fs::metadata(path)?.ino() == file.metadata()?.ino()) };
        if is_current().map_err(TryLockError::Error)? {
            sync_folder(path).map_err(TryLockError::Error)?;
            return Ok(file);
        }
    }
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

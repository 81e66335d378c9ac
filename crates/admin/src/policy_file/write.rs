//! Atomic replacement of a file: readers find the old content or the new one.

use super::PolicyFileError;
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown},
    path::{Path, PathBuf},
};

/// A temporary file with the new content of another file.
#[derive(Debug)]
pub(super) struct PendingFile {
    new: PathBuf,
    file: PathBuf,
}

/// Replaces a file, or creates it.
pub fn replace_file(file: &Path, bytes: &[u8]) -> Result<(), PolicyFileError> {
    PendingFile::write(file, bytes)?.commit()
}

impl PendingFile {
    /// Writes and syncs the new content of a file, with the permissions of the existing file.
    pub(super) fn write(file: &Path, bytes: &[u8]) -> Result<Self, PolicyFileError> {
        let existing = match fs::symlink_metadata(file) {
            Ok(existing) if existing.is_symlink() => {
                return Err(PolicyFileError::SymbolicLink(file.to_owned()));
            }
            Ok(existing) if existing.permissions().readonly() => {
                return Err(PolicyFileError::ReadOnly(file.to_owned()));
            }
            Ok(existing) => Some(existing),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(PolicyFileError::io("cannot read the metadata", file, error)),
        };
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let new = file.with_file_name(format!(".{name}.new"));
        let write = || -> io::Result<()> {
            // A killed writer may have left one.
            match fs::remove_file(&new) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
            written.write_all(bytes)?;
            match &existing {
                Some(existing) => {
                    // Only a privileged process can set the owner; every process can set the permissions.
                    let _ = fchown(&written, Some(existing.uid()), Some(existing.gid()));
                    written.set_permissions(existing.permissions())?;
                }
                None => written.set_permissions(fs::Permissions::from_mode(0o644))?,
            }
            written.sync_all()
        };
        match write() {
            Ok(()) => Ok(Self { new, file: file.to_owned() }),
            Err(error) => {
                let _ = fs::remove_file(&new);
                Err(PolicyFileError::io("cannot write the temporary file", file, error))
            }
        }
    }

    /// Replaces the file.
    pub(super) fn commit(self) -> Result<(), PolicyFileError> {
        let replace = || -> io::Result<()> {
            fs::rename(&self.new, &self.file)?;
            let folder = self.file.parent().filter(|folder| !folder.as_os_str().is_empty());
            File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
        };
        replace().map_err(|error| PolicyFileError::io("cannot replace the file", &self.file, error))
    }

    /// Removes the temporary file.
    pub(super) fn discard(&self) {
        // The next writer removes a file that is left.
        let _ = fs::remove_file(&self.new);
    }
}

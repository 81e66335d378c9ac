//! A file in the place of another, at once: whoever reads finds the old one or the new one.

use super::PolicyFileError;
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown},
    path::{Path, PathBuf},
};

/// A file that is written under another name.
#[derive(Debug)]
pub(super) struct PendingFile {
    new: PathBuf,
    file: PathBuf,
}

impl PendingFile {
    /// Writes what is to be in the place of a file, to the disk itself, with the permissions of the one that is there.
    pub(super) fn write(file: &Path, bytes: &[u8]) -> Result<Self, PolicyFileError> {
        let there = match fs::symlink_metadata(file) {
            Ok(there) if there.is_symlink() => return Err(PolicyFileError::SymbolicLink(file.to_owned())),
            Ok(there) if there.permissions().readonly() => {
                return Err(PolicyFileError::ReadOnly(file.to_owned()));
            }
            Ok(there) => Some(there),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(PolicyFileError::io("it cannot be looked at", file, error)),
        };
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let new = file.with_file_name(format!(".{name}.new"));
        let write = || -> io::Result<()> {
            // What somebody left who was killed.
            match fs::remove_file(&new) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
            written.write_all(bytes)?;
            match &there {
                Some(there) => {
                    // Only who may give files away can keep the owner; the permissions are kept by all.
                    let _ = fchown(&written, Some(there.uid()), Some(there.gid()));
                    written.set_permissions(there.permissions())?;
                }
                None => written.set_permissions(fs::Permissions::from_mode(0o644))?,
            }
            written.sync_all()
        };
        match write() {
            Ok(()) => Ok(Self { new, file: file.to_owned() }),
            Err(error) => {
                let _ = fs::remove_file(&new);
                Err(PolicyFileError::io("it cannot be written beside it", file, error))
            }
        }
    }

    /// Puts it in the place of the other.
    pub(super) fn commit(self) -> Result<(), PolicyFileError> {
        let put = || -> io::Result<()> {
            fs::rename(&self.new, &self.file)?;
            let folder = self.file.parent().filter(|folder| !folder.as_os_str().is_empty());
            File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
        };
        put().map_err(|error| PolicyFileError::io("it cannot be replaced", &self.file, error))
    }

    /// Leaves the other where it is.
    pub(super) fn discard(&self) {
        // One that stays is removed by the next who writes.
        let _ = fs::remove_file(&self.new);
    }
}

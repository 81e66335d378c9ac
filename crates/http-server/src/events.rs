//! The log events of this crate, one struct each.

use crate::StartupError;
use std::{error::Error, io, path::Path, time::Duration};

/// `accept` returned an error; the listener retries after a delay.
pub(crate) struct AcceptFailed<'a> {
    pub(crate) error: &'a io::Error,
}

impl AcceptFailed<'_> {
    pub(crate) fn emit(self) {
        tracing::warn!(error = %self.error, "accept failed");
    }
}

/// A TLS handshake failed, and the connection is closed.
pub(crate) struct TlsHandshakeFailed<'a> {
    pub(crate) error: &'a io::Error,
}

impl TlsHandshakeFailed<'_> {
    pub(crate) fn emit(self) {
        tracing::debug!(error = %self.error, "TLS handshake failed");
    }
}

/// A TLS handshake timed out, and the connection is closed.
pub(crate) struct TlsHandshakeTimedOut {
    pub(crate) timeout: Duration,
}

impl TlsHandshakeTimedOut {
    pub(crate) fn emit(self) {
        tracing::debug!(timeout = ?self.timeout, "TLS handshake timed out");
    }
}

/// A thread of a listener ended with an error.
pub(crate) struct ServerThreadFailed<'a> {
    pub(crate) thread: &'a str,
    pub(crate) error: &'a StartupError,
}

impl ServerThreadFailed<'_> {
    pub(crate) fn emit(self) {
        tracing::error!(thread = self.thread, error = %self.error, "server thread failed");
    }
}

/// The watched files could not be scanned; they count as unchanged.
pub(crate) struct FileScanFailed<'a> {
    pub(crate) error: &'a dyn Error,
}

impl FileScanFailed<'_> {
    pub(crate) fn emit(self) {
        tracing::error!(error = %self.error, "file scan failed; assuming that no file changed");
    }
}

/// The files of a certificate changed, and new connections use them.
pub(crate) struct CertificateReloaded<'a> {
    pub(crate) file: &'a Path,
}

impl CertificateReloaded<'_> {
    pub(crate) fn emit(self) {
        tracing::info!(file = %self.file.display(), "certificate reloaded");
    }
}

/// The files of a certificate changed and are invalid.
pub(crate) struct CertificateRejected<'a> {
    pub(crate) error: &'a StartupError,
}

impl CertificateRejected<'_> {
    pub(crate) fn emit(self) {
        tracing::error!(error = %self.error, "certificate rejected, keeping the previous one");
    }
}

//! Client certificates, as rules see them.

use std::sync::Arc;

/// The names in the certificate of the client of a TLS connection. The server must have verified it. Clones share their content.
///
/// The gateway reads it from its connections. Layers read it from the extensions of the request, where a program that accepts
/// TLS connections inserts it. Middleware for actix-web also reads it from the data of the connection (`on_connect`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    names: Arc<CertificateNames>,
}

#[derive(Debug, PartialEq, Eq)]
struct CertificateNames {
    subject: String,
    sans: Vec<String>,
}

/// A name in a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CertificateName {
    /// The subject.
    Subject,
    /// The first subject alternative name.
    San,
}

impl ClientCertificate {
    /// A certificate with this subject, and these subject alternative names.
    pub fn new(subject: impl Into<String>, sans: impl IntoIterator<Item = String>) -> Self {
        let names = CertificateNames { subject: subject.into(), sans: sans.into_iter().collect() };
        Self { names: Arc::new(names) }
    }

    /// The subject; `None` if it is empty.
    pub fn subject(&self) -> Option<&str> {
        Some(self.names.subject.as_str()).filter(|subject| !subject.is_empty())
    }

    /// The subject alternative names, the most specific kind first.
    pub fn sans(&self) -> impl Iterator<Item = &str> {
        self.names.sans.iter().map(String::as_str).filter(|name| !name.is_empty())
    }

    /// One of its names, if it has it.
    pub fn name(&self, name: CertificateName) -> Option<&str> {
        match name {
            CertificateName::Subject => self.subject(),
            CertificateName::San => self.sans().next(),
        }
    }
}

//! The certificate of a listener and the CA certificates of its clients; both are reloaded when their files change.

use super::{ALPN_HTTP1, ALPN_HTTP2, Roots, client_name::ClientNameVerifier};
use crate::{StartupError, events};
use arc_swap::ArcSwap;
use std::{
    fmt, fs, io,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};
use tidegate_policy::model::Tls;
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::{CryptoProvider, ring},
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
        server::{WebPkiClientVerifier, danger::ClientCertVerifier},
        sign::{CertifiedKey, SingleCertAndKey},
    },
};

/// The certificate of a listener, and the CA certificates of its clients.
pub struct Certificate {
    files: Tls,
    /// The name that client certificates must have.
    client_name: Option<ServerName<'static>>,
    config: ArcSwap<ServerConfig>,
    stamps: Mutex<[CertificateStamp; 3]>,
}

/// Modification time and size of a file; `None` if it does not exist.
type CertificateStamp = Option<(SystemTime, u64)>;

impl Certificate {
    /// Reads a certificate and its key.
    pub fn load(files: &Tls) -> Result<Arc<Self>, StartupError> {
        Self::load_with_client_name(files, None)
    }

    /// Like [`load`](Self::load); client certificates must also have this name.
    pub fn load_with_client_name(
        files: &Tls,
        name: Option<&ServerName<'static>>,
    ) -> Result<Arc<Self>, StartupError> {
        let stamps = Mutex::new(read_stamps(files));
        let config = ArcSwap::from_pointee(server_config(files, name)?);
        Ok(Arc::new(Self { files: files.clone(), client_name: name.cloned(), config, stamps }))
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.config.load_full().into()
    }

    /// Reloads the files if they have changed. Invalid files are logged once, and the previous certificate stays in use.
    pub(crate) fn refresh(&self) {
        let current = read_stamps(&self.files);
        let mut stamps = self.stamps.lock().unwrap_or_else(PoisonError::into_inner);
        if *stamps == current {
            return;
        }
        *stamps = current;
        match server_config(&self.files, self.client_name.as_ref()) {
            // TLS sessions belong to the configuration that created them, so none outlives its CA certificate.
            Ok(config) => {
                self.config.store(Arc::new(config));
                events::CertificateReloaded { file: &self.files.certificate }.emit();
            }
            Err(error) => events::CertificateRejected { error: &error }.emit(),
        }
    }
}

fn server_config(files: &Tls, name: Option<&ServerName<'static>>) -> Result<ServerConfig, StartupError> {
    let provider = Arc::new(ring::default_provider());
    let key = read_certified_key(files, &provider)?;
    let clients = match (client_verifier(files, &provider)?, name.cloned()) {
        (clients, Some(name)) => Arc::new(ClientNameVerifier { inner: clients, name }),
        (clients, None) => clients,
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| certificate_error(&files.certificate, error))?
        .with_client_cert_verifier(clients)
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
    config.alpn_protocols = vec![ALPN_HTTP2.to_vec(), ALPN_HTTP1.to_vec()];
    Ok(config)
}

/// Accepts all clients by default, and only those of `client_ca` if the policy has one.
fn client_verifier(
    files: &Tls,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, StartupError> {
    let Some(authorities) = &files.client_ca else { return Ok(WebPkiClientVerifier::no_client_auth()) };
    let roots = Arc::new(Roots::File(authorities.clone()).store()?);
    WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
        .build()
        .map_err(|error| certificate_error(authorities, error))
}

fn read_stamps(files: &Tls) -> [CertificateStamp; 3] {
    let stamp = |file: &Path| {
        let metadata = fs::metadata(file).ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    };
    [stamp(&files.certificate), stamp(&files.key), files.client_ca.as_deref().and_then(stamp)]
}

fn read_certified_key(files: &Tls, provider: &CryptoProvider) -> Result<CertifiedKey, StartupError> {
    let chain = read_file(&files.certificate)?;
    let chain = CertificateDer::pem_slice_iter(&chain)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| certificate_error(&files.certificate, error))?;
    if chain.is_empty() {
        return Err(certificate_error(&files.certificate, "no certificate found; the file must be PEM"));
    }
    let key = PrivateKeyDer::from_pem_slice(&read_file(&files.key)?).map_err(|_| {
        certificate_error(&files.key, "no private key found; the file must be PEM without a password")
    })?;
    CertifiedKey::from_der(chain, key, provider).map_err(|error| {
        certificate_error(&files.key, format!("key does not match {}: {error}", files.certificate.display()))
    })
}

fn read_file(file: &Path) -> Result<Vec<u8>, StartupError> {
    fs::read(file).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => certificate_error(file, "no such file"),
        _ => certificate_error(file, error),
    })
}

fn certificate_error(file: &Path, reason: impl fmt::Display) -> StartupError {
    StartupError::Certificate { file: file.to_owned(), reason: reason.to_string() }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Certificate({})", self.files.certificate.display())
    }
}

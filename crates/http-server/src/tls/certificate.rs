//! The certificate of a listener and the authorities of its clients, which are read again when their files change.

use super::{ALPN_HTTP1, ALPN_HTTP2, Roots, client_name::ClientNameVerifier};
use crate::StartupError;
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

/// The certificate of a listener, and the authorities of its clients.
pub struct Certificate {
    files: Tls,
    /// What clients also need in their certificate.
    client_name: Option<ServerName<'static>>,
    config: ArcSwap<ServerConfig>,
    stamps: Mutex<[CertificateStamp; 3]>,
}

/// What a file looks like from outside: `None` where it is not there.
type CertificateStamp = Option<(SystemTime, u64)>;

impl Certificate {
    /// Reads a certificate and its key.
    pub fn load(files: &Tls) -> Result<Arc<Self>, StartupError> {
        Self::load_with_client_name(files, None)
    }

    /// The same, where clients also need this name in their certificate.
    pub fn load_with_client_name(
        files: &Tls,
        name: Option<&ServerName<'static>>,
    ) -> Result<Arc<Self>, StartupError> {
        let seen = Mutex::new(read_stamps(files));
        let acceptor = ArcSwap::from_pointee(server_config(files, name)?);
        Ok(Arc::new(Self {
            files: files.clone(),
            client_name: name.cloned(),
            config: acceptor,
            stamps: seen,
        }))
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.config.load_full().into()
    }

    /// Reads the files again if they have changed. Those that are no good are told of once, and the old ones stay.
    pub(crate) fn refresh(&self) {
        let now = read_stamps(&self.files);
        let mut seen = self.stamps.lock().unwrap_or_else(PoisonError::into_inner);
        if *seen == now {
            return;
        }
        *seen = now;
        match server_config(&self.files, self.client_name.as_ref()) {
            // Sessions go with the configuration that they were made by, so that none outlives its authority.
            Ok(config) => {
                self.config.store(Arc::new(config));
                tracing::info!(file = %self.files.certificate.display(), "a certificate was read again");
            }
            Err(fault) => tracing::error!(%fault, "a new certificate is no good; the old one stays"),
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

/// Who is let in: all, unless authorities are named.
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
        return Err(certificate_error(
            &files.certificate,
            "there is no certificate in it; it has to be in PEM",
        ));
    }
    let key = PrivateKeyDer::from_pem_slice(&read_file(&files.key)?).map_err(|_| {
        certificate_error(
            &files.key,
            "there is no private key in it; it has to be in PEM, without a password",
        )
    })?;
    CertifiedKey::from_der(chain, key, provider).map_err(|error| {
        certificate_error(&files.key, format!("it does not go with {}: {error}", files.certificate.display()))
    })
}

fn read_file(file: &Path) -> Result<Vec<u8>, StartupError> {
    fs::read(file).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => certificate_error(file, "there is no such file"),
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

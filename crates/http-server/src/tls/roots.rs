//! The CA certificates that verify servers.

use crate::StartupError;
use std::{path::PathBuf, sync::Arc};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, pem::PemObject},
    },
};

/// The CA certificates that verify servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Roots {
    /// The CA certificates of the system.
    #[default]
    System,
    /// Only those in this PEM file.
    File(PathBuf),
}

impl Roots {
    /// Builds a TLS connector with this ALPN protocol: `h2` or `http/1.1`.
    pub fn connector(&self, protocol: &[u8]) -> Result<TlsConnector, StartupError> {
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| self.certificate_error(error.to_string()))?
            .with_root_certificates(self.store()?)
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(TlsConnector::from(Arc::new(config)))
    }

    /// Loads the CA certificates.
    pub fn store(&self) -> Result<RootCertStore, StartupError> {
        let mut store = RootCertStore::empty();
        match self {
            Self::System => {
                store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
            Self::File(file) => {
                let all = CertificateDer::pem_file_iter(file)
                    .map_err(|error| self.certificate_error(error.to_string()))?;
                for certificate in all {
                    let certificate =
                        certificate.map_err(|error| self.certificate_error(error.to_string()))?;
                    store.add(certificate).map_err(|error| self.certificate_error(error.to_string()))?;
                }
            }
        }
        match store.is_empty() {
            true => Err(self.certificate_error("no CA certificate found".to_owned())),
            false => Ok(store),
        }
    }

    fn certificate_error(&self, reason: String) -> StartupError {
        let file = match self {
            Self::System => PathBuf::from("system CA certificates"),
            Self::File(file) => file.clone(),
        };
        StartupError::Certificate { file, reason }
    }
}

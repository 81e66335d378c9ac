//! Whose certificates of servers are believed.

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

/// Whose certificates of servers are believed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Roots {
    /// Those that the system believes.
    #[default]
    System,
    /// Those in this file, in PEM, and no others.
    File(PathBuf),
}

impl Roots {
    /// How servers are spoken to that understand this: `h2`, or `http/1.1`.
    pub fn connector(&self, protocol: &[u8]) -> Result<TlsConnector, StartupError> {
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| self.certificate_error(error.to_string()))?
            .with_root_certificates(self.store()?)
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(TlsConnector::from(Arc::new(config)))
    }

    /// The certificates of these authorities.
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
            true => Err(self.certificate_error("there is no certificate of an authority in it".to_owned())),
            false => Ok(store),
        }
    }

    fn certificate_error(&self, reason: String) -> StartupError {
        let file = match self {
            Self::System => PathBuf::from("the system's certificates"),
            Self::File(file) => file.clone(),
        };
        StartupError::Certificate { file, reason }
    }
}

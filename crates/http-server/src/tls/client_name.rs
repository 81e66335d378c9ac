//! Verifies a name in client certificates.

use std::{fmt, sync::Arc};
use tokio_rustls::rustls::{
    DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::{danger::HandshakeSignatureValid, verify_server_name},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::{
        ParsedCertificate,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};

/// Accepts the clients that `inner` accepts, if their certificate has this host name or address.
pub(super) struct ClientNameVerifier {
    pub(super) inner: Arc<dyn ClientCertVerifier>,
    pub(super) name: ServerName<'static>,
}

impl ClientCertVerifier for ClientNameVerifier {
    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        true
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(certificate, chain, now)?;
        verify_server_name(&ParsedCertificate::try_from(certificate)?, &self.name)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

impl fmt::Debug for ClientNameVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientNameVerifier").field("name", &self.name).finish_non_exhaustive()
    }
}

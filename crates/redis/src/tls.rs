//! TLS with custom settings: CA certificates, a client certificate, and the host name check.
//!
//! Without settings the driver connects and trusts the system's CA certificates. With settings this module does, because
//! Redis deployments often use a self-signed server certificate as its own CA, or skip the host name check.

use crate::error::ConnectError;
use redis::RedisError;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
    server::ParsedCertificate,
};
use std::{fmt, io, sync::Arc};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

/// TLS settings; certificates and keys are PEM.
#[derive(Clone, Default)]
pub(crate) struct TlsFiles {
    /// CA certificates used to verify the server.
    pub(crate) authority: Option<Vec<u8>>,
    /// The client certificate and its key.
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
    pub(crate) hostname_check: HostnameCheck,
}

/// Whether the certificate must be valid for the server's host name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum HostnameCheck {
    #[default]
    Verify,
    Skip,
}

impl fmt::Debug for TlsFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsFiles(…)")
    }
}

impl TlsFiles {
    /// The rustls configuration; `None` without settings.
    pub(crate) fn config(&self) -> Result<Option<Arc<ClientConfig>>, ConnectError> {
        let Self { authority, identity, hostname_check: host_names } = self;
        if authority.is_none() && identity.is_none() && *host_names == HostnameCheck::Verify {
            return Ok(None);
        }
        let trusted = match authority {
            Some(pem) => parse_certificates(pem).map_err(|error| ca_error(&error))?,
            None => rustls_native_certs::load_native_certs().certs,
        };
        let mut roots = RootCertStore::empty();
        match authority {
            Some(_) => trusted.iter().try_for_each(|certificate| {
                roots.add(certificate.clone()).map_err(|error| ca_error(&error.to_string()))
            })?,
            // System certificates that do not parse are skipped: the user cannot fix them here.
            None => _ = roots.add_parsable_certificates(trusted.iter().cloned()),
        }
        let provider = Arc::new(ring::default_provider());
        let chains = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .build()
            .map_err(|error| ca_error(&error.to_string()))?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| ca_error(&error.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Verifier {
                chains,
                trusted,
                hostname_check: *host_names,
            }));
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = parse_certificates(certificate).map_err(|error| identity_error(&error))?;
                let key =
                    PrivateKeyDer::from_pem_slice(key).map_err(|error| identity_error(&error.to_string()))?;
                builder
                    .with_client_auth_cert(chain, key)
                    .map_err(|error| identity_error(&error.to_string()))?
            }
        };
        Ok(Some(Arc::new(config)))
    }
}

fn parse_certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if all.is_empty() => Err("no certificate found".to_owned()),
        Ok(all) => Ok(all),
        Err(error) => Err(error.to_string()),
    }
}

fn ca_error(cause: &str) -> ConnectError {
    ConnectError::new(
        format!("invalid CA certificate: {cause}"),
        "pass PEM certificates: -----BEGIN CERTIFICATE-----…",
    )
}

fn identity_error(cause: &str) -> ConnectError {
    ConnectError::new(
        format!("invalid client certificate or key: {cause}"),
        "pass both as PEM: -----BEGIN CERTIFICATE-----… and -----BEGIN PRIVATE KEY-----…",
    )
}

/// Connects and performs the TLS handshake.
pub(crate) async fn connect(
    config: &Arc<ClientConfig>,
    (host, port): (&str, u16),
) -> Result<TlsStream<TcpStream>, RedisError> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    Ok(TlsConnector::from(config.clone()).connect(name, stream).await?)
}

/// Accepts what webpki accepts, a trusted self-signed server certificate, and any host name if the check is off.
#[derive(Debug)]
struct Verifier {
    chains: Arc<WebPkiServerVerifier>,
    trusted: Vec<CertificateDer<'static>>,
    hostname_check: HostnameCheck,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        server: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let skips = self.hostname_check == HostnameCheck::Skip;
        match self.chains.verify_server_cert(server, others, name, ocsp, now) {
            // webpki checks the name last, so the chain is valid.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if skips => Ok(ServerCertVerified::assertion()),
            // webpki rejects a self-signed CA certificate as a server certificate; accept it if it is trusted explicitly.
            Err(Error::InvalidCertificate(CertificateError::Other(_) | CertificateError::UnknownIssuer))
                if self.trusted.iter().any(|trusted| trusted == server) =>
            {
                if !skips {
                    verify_server_name(&ParsedCertificate::try_from(server)?, name)?;
                }
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chains.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chains.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}

//! TLS to a server: whose certificate is accepted, and who we are.
//!
//! Without any settings the driver does it, by the machine's own authorities. With settings it is done here, as Redis is run: a
//! certificate that is signed by itself is accepted where it is given as the authority, and its name may be left unchecked.

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

/// What TLS to a server needs besides its address, in PEM.
#[derive(Clone, Default)]
pub(crate) struct TlsFiles {
    /// Whose signature counts.
    pub(crate) authority: Option<Vec<u8>>,
    /// Our certificate, and its key.
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
    pub(crate) hostname_check: HostnameCheck,
}

/// Whether the name of a server must be in its certificate.
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
    /// How servers are spoken to; `None` where nothing is set.
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
            // Those of the machine that cannot be read are of no use to anybody.
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
        Ok(all) if all.is_empty() => Err("it has no certificate".to_owned()),
        Ok(all) => Ok(all),
        Err(error) => Err(error.to_string()),
    }
}

fn ca_error(cause: &str) -> ConnectError {
    ConnectError::new(
        format!("the authority for TLS cannot be read: {cause}"),
        "give its certificate in PEM: -----BEGIN CERTIFICATE-----…",
    )
}

fn identity_error(cause: &str) -> ConnectError {
    ConnectError::new(
        format!("the certificate for TLS cannot be read: {cause}"),
        "give both in PEM: -----BEGIN CERTIFICATE-----… and -----BEGIN PRIVATE KEY-----…",
    )
}

/// Connects, and agrees on TLS.
pub(crate) async fn connect(
    config: &Arc<ClientConfig>,
    (host, port): (&str, u16),
) -> Result<TlsStream<TcpStream>, RedisError> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    Ok(TlsConnector::from(config.clone()).connect(name, stream).await?)
}

/// Accepts what webpki accepts, and what is declared besides.
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
            // The name is looked at last: whose it is has been found to be right.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if skips => Ok(ServerCertVerified::assertion()),
            // One that is signed by itself is an authority to webpki, and no server; whoever trusts this very one means it.
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

//! Certificates for a server on loopback, created with `openssl`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// A CA and a certificate that it signed, in the server's directory.
#[derive(Clone, Debug)]
pub struct Certificates {
    /// The CA certificate, which a client must trust.
    pub authority: PathBuf,
    /// A certificate for `localhost` and `127.0.0.1`, which is also valid as a client certificate.
    pub certificate: PathBuf,
    /// The certificate's private key.
    pub key: PathBuf,
}

/// A complete configuration, so that the system's is not used.
const CONFIG: &str = "\
[req]
distinguished_name = name
prompt = no
[name]
CN = localhost
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = DNS:localhost, IP:127.0.0.1
";

impl Certificates {
    /// Creates the files in this directory.
    ///
    /// # Errors
    ///
    /// Returns an error if `openssl` is not installed or fails.
    pub fn create(directory: &Path) -> Result<Self, String> {
        fs::write(directory.join("openssl.cnf"), CONFIG).map_err(|error| error.to_string())?;
        sign(directory, &["-subj", "/CN=Tidegate tests", "-extensions", "authority"], "authority")?;
        let signed_by = ["-CA", "authority.crt", "-CAkey", "authority.key", "-extensions", "server"];
        sign(directory, &signed_by, "server")?;
        Ok(Self {
            authority: directory.join("authority.crt"),
            certificate: directory.join("server.crt"),
            key: directory.join("server.key"),
        })
    }
}

fn sign(directory: &Path, how: &[&str], name: &str) -> Result<(), String> {
    let output = Command::new("openssl")
        .args(["req", "-x509", "-config", "openssl.cnf", "-days", "2"])
        .args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc"])
        .args(["-keyout", &format!("{name}.key"), "-out", &format!("{name}.crt")])
        .args(how)
        .current_dir(directory)
        .output()
        .map_err(|error| format!("cannot start openssl: {error}; run apt-get install openssl"))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("openssl failed: {}", String::from_utf8_lossy(&output.stderr)))
    }
}

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
[client]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = clientAuth
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

    /// Creates a client certificate in the same directory: the certificate, and its private key. `subject` is as in
    /// `/O=Example/CN=ada`, and `sans` as in `URI:spiffe://example.org/ada`, or empty.
    ///
    /// # Errors
    ///
    /// Returns an error if `openssl` fails.
    pub fn create_client(&self, name: &str, subject: &str, sans: &str) -> Result<(PathBuf, PathBuf), String> {
        let directory = self.authority.parent().ok_or("no directory")?;
        let sans_extension = format!("subjectAltName = {sans}");
        let mut how =
            vec!["-CA", "authority.crt", "-CAkey", "authority.key", "-extensions", "client", "-utf8"];
        how.extend(["-subj", subject]);
        if !sans.is_empty() {
            how.extend(["-addext", &sans_extension]);
        }
        sign(directory, &how, name)?;
        Ok((directory.join(format!("{name}.crt")), directory.join(format!("{name}.key"))))
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

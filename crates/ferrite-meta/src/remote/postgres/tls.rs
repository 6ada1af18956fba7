//! Encrypted connections to PostgreSQL.
//!
//! A server shows a certificate, which is always verified, against one file of certificates or those of the system.
//! `sslmode` of the connection string says whether a server without encryption is accepted: `prefer`, the default,
//! accepts it, `require` does not, and `disable` asks for none.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::{Error, Result};

/// Encrypts connections: certificates of `ca`, in PEM, are trusted, or without it the system's.
pub(super) fn connector(ca: Option<&Path>) -> Result<MakeRustlsConnect> {
    let roots = match ca {
        Some(path) => roots_of(path)?,
        None => {
            let mut roots = RootCertStore::empty();
            // A system without certificates trusts no server.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            roots
        }
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Invalid(format!("TLS cannot be set up: {error}")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

fn roots_of(path: &Path) -> Result<RootCertStore> {
    let bad = |why: String| {
        Error::Invalid(format!(
            "{}: {why}; name a file with certificates in PEM",
            path.display()
        ))
    };
    let certificates = CertificateDer::pem_file_iter(path).map_err(|error| bad(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        let added = certificate.map_err(|error| bad(error.to_string()));
        roots.add(added?).map_err(|error| bad(error.to_string()))?;
    }
    match roots.is_empty() {
        true => Err(bad("it holds no certificate".into())),
        false => Ok(roots),
    }
}

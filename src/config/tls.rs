//! TLS: the servers that the client trusts, and the client's own certificate. Files are read here,
//! and nothing is sent.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
#[cfg(feature = "unstable-tool")]
use std::time::Duration;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
#[cfg(feature = "unstable-tool")]
use rustls::time_provider::TimeProvider;
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, InconsistentKeys, RootCertStore,
    SignatureScheme,
};

use super::error::ConfigError;
use super::is_read_once;
use super::url::{Endpoint, NodeUrl, TlsUrl};

/// The longest file that is read.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Sessions are kept for each node apart, and rustls keeps so many tickets for each name.
const SESSIONS_PER_NODE: usize = 8;

/// TLS settings for all nodes with `rediss://`, from memory instead of files; see
/// [`Builder::tls`](crate::Builder::tls). The parameters of an address take precedence.
///
/// ```no_run
/// use muxlock::Redlock;
/// use muxlock::settings::Tls;
///
/// # fn from_vault(name: &str) -> String { std::env::var(name).unwrap_or_default() }
/// let [ca, cert, key] = ["redis-ca", "me", "me-key"].map(from_vault);
/// let redlock = Redlock::builder()
///     .nodes(["rediss://10.0.0.1", "rediss://10.0.0.2", "rediss://10.0.0.3"])
///     .tls(Tls::new().ca_pem(ca).client_cert_pem(cert, key))
///     .build()?;
/// # drop(redlock);
/// # Ok::<(), muxlock::error::ConfigError>(())
/// ```
#[derive(Clone, Default)]
#[must_use = "it does nothing until a builder has it"]
pub struct Tls {
    pem: Pem,
    config: Option<Arc<ClientConfig>>,
}

impl Tls {
    /// Trusts the roots of the system, and has no client certificate.
    pub fn new() -> Tls {
        Tls::default()
    }

    /// The trusted roots, as PEM: one certificate or more. They replace the roots of the system.
    pub fn ca_pem(self, pem: impl Into<Vec<u8>>) -> Tls {
        let [_, cert, key] = self.pem;
        Tls { pem: [Some(pem.into()), cert, key], ..self }
    }

    /// The client's certificate, followed by any intermediate certificates, and its private key,
    /// each as PEM. The key must not be encrypted.
    pub fn client_cert_pem(self, cert: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Tls {
        let [ca, ..] = self.pem;
        Tls { pem: [ca, Some(cert.into()), Some(key.into())], ..self }
    }

    /// Your own settings, for needs such as revocation lists or a key in a hardware module. They
    /// exclude the other settings, and `ca=`, `cert=`, `key=` and `verify=no` in an address.
    ///
    /// Each node gets a copy with its own session store. Early data is off, because an attacker
    /// could replay it.
    ///
    /// Semantic versioning does not cover this function until version 1.0, because the type is of
    /// [rustls] 0.23.
    pub fn unversioned_config(config: Arc<ClientConfig>) -> Tls {
        Tls { config: Some(config), ..Tls::default() }
    }
}

/// Shows no key.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("ca_pem", &self.pem[0].is_some())
            .field("client_cert_pem", &self.pem[1].is_some())
            .field("unversioned_config", &self.config.is_some())
            .finish()
    }
}

/// The texts that settings are made of: the roots, the client's certificate, and its key.
type Pem = [Option<Vec<u8>>; 3];
/// The files with these texts.
type Files = [Option<PathBuf>; 3];

/// These texts, with what is in the files now.
fn read_files(files: &Files, before: &Pem) -> Result<Pem, String> {
    let mut pem = before.clone();
    for ((parameter, path), text) in ["ca", "cert", "key"].iter().zip(files).zip(&mut pem) {
        if let Some(path) = path {
            *text = Some(read(parameter, path)?);
        }
    }
    Ok(pem)
}

/// The file, if it can be read again, wherever the process goes.
fn lasting(path: Option<PathBuf>) -> Option<PathBuf> {
    let path = path.filter(|path| !is_read_once(path))?;
    Some(std::path::absolute(&path).unwrap_or(path))
}

/// How to connect to one node. Not `Debug`: it contains a private key.
#[derive(Clone)]
pub(crate) struct NodeTls {
    config: Arc<ClientConfig>,
    pem: Arc<Pem>,
    /// Read again before each connection.
    files: Files,
    /// The name that the server's certificate must have.
    name: ServerName<'static>,
    /// The settings of its address.
    pub(crate) url: TlsUrl,
}

impl NodeTls {
    /// The client's side of a new connection, for any stream of bytes. It does no I/O.
    pub(crate) fn session(&self) -> Result<ClientConnection, rustls::Error> {
        ClientConnection::new(Arc::clone(&self.config), self.name.clone())
    }

    /// Whether files are read before each connection.
    pub(crate) fn has_files(&self) -> bool {
        self.files.iter().any(Option::is_some)
    }

    /// As the files are now. While they are unchanged, sessions can be resumed.
    pub(crate) fn fresh(&self) -> Result<NodeTls, String> {
        let pem = read_files(&self.files, &self.pem)?;
        if pem == *self.pem {
            return Ok(self.clone());
        }
        let config = finished(built(&self.url, &pem, system_roots)?);
        Ok(NodeTls { config, pem: Arc::new(pem), ..self.clone() })
    }

    /// For certificates that are to be valid so much later. It resumes no session, since that would
    /// check none.
    #[cfg(feature = "unstable-tool")]
    pub(crate) fn later(&self, by: Duration) -> NodeTls {
        let mut config = ClientConfig::clone(&self.config);
        config.time_provider = Arc::new(Later { by, clock: Arc::clone(&config.time_provider) });
        config.resumption = Resumption::disabled();
        NodeTls { config: Arc::new(config), ..self.clone() }
    }
}

#[cfg(feature = "unstable-tool")]
#[derive(Debug)]
struct Later {
    by: Duration,
    clock: Arc<dyn TimeProvider>,
}

#[cfg(feature = "unstable-tool")]
impl TimeProvider for Later {
    fn current_time(&self) -> Option<UnixTime> {
        let now = Duration::from_secs(self.clock.current_time()?.as_secs());
        Some(UnixTime::since_unix_epoch(now.saturating_add(self.by)))
    }
}

/// Makes the settings of the nodes; the roots of the system are read once, if a node needs them.
pub(super) struct Maker<'a> {
    tls: Option<&'a Tls>,
    system_roots: Option<Arc<RootCertStore>>,
    is_used: bool,
}

impl<'a> Maker<'a> {
    pub(super) fn new(tls: Option<&'a Tls>) -> Maker<'a> {
        Maker { tls, system_roots: None, is_used: false }
    }

    /// The settings of a node; `None` if its address is one without TLS.
    pub(super) fn node(&mut self, url: &NodeUrl) -> Result<Option<NodeTls>, ConfigError> {
        let Some(tls) = &url.tls else {
            return Ok(None);
        };
        self.is_used = true;
        let node = self.make(&url.endpoint, tls);
        let refused = |reason| ConfigError::Tls { reason: format!("{}: {reason}", url.endpoint) };
        node.map(Some).map_err(refused)
    }

    /// Settings that no node uses are a mistake: the connections would not be encrypted.
    pub(super) fn finish(self) -> Result<(), ConfigError> {
        match self.tls.is_some() && !self.is_used {
            true => Err(ConfigError::Tls {
                reason: "Builder::tls is set, but no address begins with rediss://".into(),
            }),
            false => Ok(()),
        }
    }

    fn make(&mut self, endpoint: &Endpoint, url: &TlsUrl) -> Result<NodeTls, String> {
        let name = server_name(endpoint, url)?;
        let (cert, key) = url.client.as_ref().map(|(cert, key)| (cert, key)).unzip();
        let files = [url.ca.as_ref(), cert, key].map(|path| path.map(PathBuf::from));
        let (config, pem) = match self.tls.and_then(|tls| tls.config.as_ref()) {
            Some(config) => (self.own(url, config)?, Pem::default()),
            None => {
                let memory = self.tls.map(|tls| tls.pem.clone()).unwrap_or_default();
                let pem = read_files(&files, &memory)?;
                (built(url, &pem, || self.system_roots())?, pem)
            }
        };
        let (config, pem, files) = (finished(config), Arc::new(pem), files.map(lasting));
        let node = NodeTls { config, pem, files, name, url: url.clone() };
        // Wrong settings fail here, not at each connection.
        node.session().map_err(|error| error.to_string())?;
        Ok(node)
    }

    /// From the caller's settings.
    fn own(&self, url: &TlsUrl, config: &ClientConfig) -> Result<ClientConfig, String> {
        let tls = self.tls.is_some_and(|tls| tls.pem != Pem::default());
        if tls || url.ca.is_some() || url.client.is_some() || url.is_unverified {
            return Err("Tls::unversioned_config replaces all settings: leave out the others, \
                and ca, cert, key and verify=no"
                .into());
        }
        Ok(config.clone())
    }

    fn system_roots(&mut self) -> Result<Arc<RootCertStore>, String> {
        if let Some(roots) = &self.system_roots {
            return Ok(Arc::clone(roots));
        }
        Ok(Arc::clone(self.system_roots.insert(system_roots()?)))
    }
}

fn finished(mut config: ClientConfig) -> Arc<ClientConfig> {
    config.enable_early_data = false;
    config.resumption = Resumption::in_memory_sessions(SESSIONS_PER_NODE);
    Arc::new(config)
}

fn built(
    url: &TlsUrl,
    pem: &Pem,
    system_roots: impl FnOnce() -> Result<Arc<RootCertStore>, String>,
) -> Result<ClientConfig, String> {
    let builder = ClientConfig::builder_with_provider(provider()?)
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("the crypto provider does not fit: {error}"))?;
    let [ca, cert, key] = pem;
    let builder = match (url.is_unverified, ca) {
        (true, _) => {
            let schemes = builder.crypto_provider().signature_verification_algorithms;
            let any = AnyServer(schemes.supported_schemes());
            builder.dangerous().with_custom_certificate_verifier(Arc::new(any))
        }
        (false, Some(ca)) => builder.with_root_certificates(roots(url, ca)?),
        (false, None) => builder.with_root_certificates(system_roots()?),
    };
    let (Some(cert), Some(key)) = (cert, key) else {
        return Ok(builder.with_no_client_auth());
    };
    let (certs, keys) = match &url.client {
        Some((cert, key)) => (format!("cert={cert}"), format!("key={key}")),
        None => {
            let what = "Tls::client_cert_pem";
            (format!("the certificate of {what}"), format!("the key of {what}"))
        }
    };
    let (chain, key) = (certificates(&certs, cert)?, private_key(&keys, key)?);
    builder.with_client_auth_cert(chain, key).map_err(|error| match error {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            format!("{certs}: the key does not match the certificate")
        }
        error => format!("{certs}: the key or the certificate cannot be used: {error}"),
    })
}

fn roots(url: &TlsUrl, pem: &[u8]) -> Result<Arc<RootCertStore>, String> {
    let what =
        url.ca.as_ref().map_or_else(|| "Tls::ca_pem".to_owned(), |path| format!("ca={path}"));
    let mut roots = RootCertStore::empty();
    for (at, root) in certificates(&what, pem)?.into_iter().enumerate() {
        roots
            .add(root)
            .map_err(|error| format!("{what}: certificate {} cannot be a root: {error}", at + 1))?;
    }
    Ok(Arc::new(roots))
}

fn system_roots() -> Result<Arc<RootCertStore>, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // Some systems have roots that rustls does not understand.
    let (used, _) = roots.add_parsable_certificates(found.certs);
    if used == 0 {
        let errors = found.errors.first().map(|error| format!(": {error}"));
        let errors = errors.unwrap_or_default();
        return Err(format!(
            "the system has no trusted roots{errors}; install ca-certificates, or write ca="
        ));
    }
    Ok(Arc::new(roots))
}

/// The caller's choice for the whole process, or ring.
fn provider() -> Result<Arc<CryptoProvider>, String> {
    if let Some(installed) = CryptoProvider::get_default() {
        return Ok(Arc::clone(installed));
    }
    #[cfg(feature = "tls")]
    return Ok(Arc::new(rustls::crypto::ring::default_provider()));
    #[cfg(not(feature = "tls"))]
    Err("no crypto provider: use the feature \"tls\" of muxlock, or install a provider with \
         rustls::crypto::CryptoProvider::install_default"
        .into())
}

fn server_name(endpoint: &Endpoint, url: &TlsUrl) -> Result<ServerName<'static>, String> {
    let (what, name) = match (&url.server_name, endpoint) {
        (Some(name), _) => ("server_name", name),
        (None, Endpoint::Tcp { host, .. }) => ("host", host),
        (None, Endpoint::Unix(_)) => return Err("a Unix socket has no TLS".into()),
        (None, Endpoint::Sentinel(_)) => {
            return Err(
                "server_name is missing: the name in the certificates of all its servers".into()
            );
        }
    };
    // A zone is no part of an address in a certificate.
    let name = name.split('%').next().unwrap_or_default();
    ServerName::try_from(name.to_owned())
        .map_err(|_| format!("the {what} is neither a DNS name nor an IP address"))
}

fn read(parameter: &str, path: &Path) -> Result<Vec<u8>, String> {
    let shown = path.display();
    // A text in the place of a path may be a secret.
    if path.to_string_lossy().contains("-----BEGIN") {
        return Err(format!("{parameter} names a file; Tls::new() takes PEM from memory"));
    }
    let has_folder =
        path.parent().is_some_and(|folder| !folder.as_os_str().is_empty() && folder.is_dir());
    let failed = |error: io::Error| match parameter == "key" && !has_folder {
        true => format!("{parameter}, the name of a file, cannot be read: {error}"),
        false => format!("{parameter}={shown} cannot be read: {error}"),
    };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    match bytes.len() as u64 > FILE_BYTES_MAX {
        true => Err(format!("{parameter}={shown} has more than {FILE_BYTES_MAX} bytes")),
        false => Ok(bytes),
    }
}

/// One certificate or more. The errors of the parser quote the text, so they are not shown.
fn certificates(what: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(certificates) if certificates.is_empty() => {
            Err(format!("{what} has no certificate as PEM (-----BEGIN CERTIFICATE-----)"))
        }
        Ok(certificates) => Ok(certificates),
        Err(_) => Err(format!("{what} is damaged: it is not PEM throughout")),
    }
}

fn private_key(what: &str, pem: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    const ENCRYPTED: &[u8] = b"ENCRYPTED";
    match PrivateKeyDer::from_pem_slice(pem) {
        Ok(key) => Ok(key),
        Err(_) if pem.windows(ENCRYPTED.len()).any(|window| window == ENCRYPTED) => {
            Err(format!("{what} is encrypted; decrypt it with \"openssl pkey\""))
        }
        Err(pem::Error::NoItemsFound) => {
            Err(format!("{what} has no private key as PEM (-----BEGIN PRIVATE KEY-----)"))
        }
        Err(_) => Err(format!("{what} is damaged: it is not PEM throughout")),
    }
}

/// Believes every server: `verify=no`.
#[derive(Debug)]
struct AnyServer(Vec<SignatureScheme>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.clone()
    }
}

#[cfg(all(test, not(feature = "tls")))]
mod tests {
    use crate::config::{Builder, ConfigError};

    #[test]
    fn without_a_provider_the_settings_are_refused_and_nothing_panics() {
        let error = Builder::default().node("rediss://127.0.0.1?verify=no").config().unwrap_err();
        assert!(matches!(error, ConfigError::Tls { .. }), "{error}");
        assert!(error.to_string().contains("no crypto provider: use the feature"), "{error}");
    }
}

//! Certificates for tests, signed by an authority of the test's own.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use muxlock::testing::{Master, TlsFiles};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer,
    KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};

use crate::Folder;

/// A master with a port for TLS.
///
/// # Panics
///
/// Panics if it does not start.
pub fn start_with_tls(files: &TlsFiles, extra_args: &[&str]) -> Master {
    Master::start_with_tls(files, extra_args).unwrap_or_else(|error| panic!("{error}"))
}

/// That port, on 127.0.0.1.
///
/// # Panics
///
/// Panics if the master has none.
pub fn tls_addr(master: &Master) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], master.tls_port().expect("it has TLS")))
}

/// Signs certificates. Its files are removed with it.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    folder: Folder,
    signed: AtomicUsize,
}

impl Default for Authority {
    fn default() -> Authority {
        Authority::new()
    }
}

impl Authority {
    pub fn new() -> Authority {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.distinguished_name.push(DnType::CommonName, format!("authority {number}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        let root = params.self_signed(&key).expect("a certificate");
        let folder = Folder::create(&format!("authority-{number}"));
        fs::write(folder.0.join("ca.pem"), root.pem()).expect("the folder can be written");
        let issuer = Issuer::new(params, key);
        Authority { issuer, folder, signed: AtomicUsize::new(0) }
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.0.join(name)
    }

    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.file(name);
        fs::write(&path, text).expect("the folder can be written");
        path
    }

    /// The file with its root.
    pub fn ca(&self) -> PathBuf {
        self.file("ca.pem")
    }

    /// The address of a master, with this root.
    pub fn trusting(&self, master: &Master) -> String {
        let url = master.tls_url().expect("it has TLS");
        format!("{url}?ca={}", self.ca().display())
    }

    /// A certificate for these names and addresses.
    pub fn sign(&self, names: &[&str]) -> TlsFiles {
        self.sign_with(names, |_| {})
    }

    /// The same with changes.
    pub fn sign_with(
        &self,
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> TlsFiles {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names as they should be");
        let number = self.signed.fetch_add(1, Ordering::Relaxed);
        params.serial_number = Some(SerialNumber::from(number as u64 + 1));
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &self.issuer).expect("a certificate");
        TlsFiles {
            ca: self.ca(),
            cert: self.write(&format!("cert-{number}.pem"), cert.pem()),
            key: self.write(&format!("key-{number}.pem"), key.serialize_pem()),
        }
    }

    /// The certificate of an authority that is its own, as `openssl req -x509` makes it.
    pub fn itself(&self, names: &[&str]) -> TlsFiles {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names as they should be");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let cert = self.write("itself.pem", params.self_signed(&key).expect("a certificate").pem());
        TlsFiles { ca: cert.clone(), cert, key: self.write("its-key.pem", key.serialize_pem()) }
    }

    /// A list that revokes the first certificate that was signed.
    pub fn revoke_first(&self) -> Vec<u8> {
        let revoked = RevokedCertParams {
            serial_number: SerialNumber::from(1),
            revocation_time: date_time_ymd(2025, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2025, 1, 1),
            next_update: date_time_ymd(2999, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).expect("a list").der().to_vec()
    }
}

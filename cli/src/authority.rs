//! Certificates for the masters of one run, which `openssl` makes.

use std::io::{self, ErrorKind};
use std::process::{Command, Stdio};

use muxlock::testing::{Master, TlsFiles};
use muxlock::unstable_tool::Folder;

/// The script that makes them; `tests/tls/run` runs it too.
const SCRIPT: &str = include_str!("authority.sh");

/// An authority that has signed one certificate, for servers on this machine. Its files are removed
/// with it.
pub struct Authority(Folder);

impl Authority {
    pub fn new() -> io::Result<Authority> {
        if !cfg!(feature = "tls") {
            let why = "--tls needs a muxlock with TLS: build it with --features tls";
            return Err(io::Error::new(ErrorKind::Unsupported, why));
        }
        let folder = Folder::create()?;
        // The script would fail too, in words that depend on the shell.
        match Command::new("openssl").arg("version").stdout(Stdio::null()).status() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let why = "--tls needs openssl, which makes the certificates, and is not on PATH; \
                           install the package openssl";
                return Err(io::Error::new(ErrorKind::NotFound, why));
            }
            status => status?,
        };
        let mut command = Command::new("sh");
        let output = command.args(["-c", SCRIPT]).current_dir(folder.path()).output()?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr);
            let words = words.trim();
            return Err(io::Error::other(format!("openssl made no certificates: {words}")));
        }
        Ok(Authority(folder))
    }

    pub fn files(&self) -> TlsFiles {
        TlsFiles::in_folder(self.0.path())
    }

    /// The address of a master with such a certificate, for a client that trusts only this
    /// authority.
    pub fn url(&self, master: &Master) -> String {
        let ca = self.files().ca;
        // A temporary folder may have any name.
        let ca = ca.as_os_str().as_encoded_bytes().iter().map(|byte| format!("%{byte:02X}"));
        let url = master.tls_url().unwrap_or_else(|| master.url());
        format!("{url}?ca={}", ca.collect::<String>())
    }
}

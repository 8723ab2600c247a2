//! The masters that clients are measured on: real servers on free ports of this machine.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{fs, io};

use muxlock::testing::{self, Masters, TlsFiles};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};

use crate::{clock, noise};

/// What a server's age lacks of the truth: it tells whole seconds, and the clocks may differ.
const AGE_SLACK: Duration = Duration::from_millis(2_200);
/// How often a server that was frozen is asked whether it has caught up.
const THAW_TRIES: usize = 20;

/// Masters that were started together.
pub struct Pool {
    masters: Masters,
    started: Instant,
    certificate: Option<Certificate>,
}

/// A certificate that signs itself, in a folder that is removed with it.
struct Certificate {
    folder: PathBuf,
    files: TlsFiles,
}

impl Certificate {
    fn create() -> io::Result<Certificate> {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]);
        let made = made.map_err(io::Error::other)?;
        let folder = std::env::temp_dir().join(format!("peers-{}-tls", std::process::id()));
        fs::create_dir(&folder)?;
        let files = TlsFiles::in_folder(&folder);
        let certificate = Certificate { folder, files };
        let TlsFiles { ca, cert, key } = &certificate.files;
        fs::write(ca, made.cert.pem())?;
        fs::write(cert, made.cert.pem())?;
        fs::write(key, made.signing_key.serialize_pem())?;
        Ok(certificate)
    }
}

impl Drop for Certificate {
    fn drop(&mut self) {
        // What cannot be removed stays in the folder for temporary files.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Pool {
    /// Starts so many.
    pub fn start(count: usize) -> io::Result<Pool> {
        let masters = Masters::start(count)?;
        Ok(Pool { masters, started: clock::now(), certificate: None })
    }

    /// Starts so many that also listen on a port with TLS.
    pub fn start_with_tls(count: usize) -> io::Result<Pool> {
        let certificate = Certificate::create()?;
        let masters = Masters::start_with_tls(count, &certificate.files, &[])?;
        Ok(Pool { masters, started: clock::now(), certificate: Some(certificate) })
    }

    /// Where they listen with TLS, and the file with the root of their certificates, if they do.
    pub fn tls(&self) -> Option<(Vec<u16>, PathBuf)> {
        let ports = self.masters.iter().filter_map(testing::Master::tls_port).collect();
        Some((ports, self.certificate.as_ref()?.files.ca.clone()))
    }

    /// Where they listen.
    pub fn ports(&self) -> Vec<u16> {
        self.masters.iter().map(testing::Master::port).collect()
    }

    /// The ids of their processes.
    pub fn pids(&self) -> Vec<u32> {
        self.masters.iter().map(testing::Master::pid).collect()
    }

    /// Calls of SET so far, and the time that they computed, in nanoseconds; of all together.
    pub fn spent(&self) -> io::Result<(f64, f64)> {
        let (mut sets, mut cpu) = (0, 0.0);
        for master in self.masters.iter() {
            sets += master.command_calls("set")?;
            let testing::Value::Bulk(info) = master.query(&[b"INFO", b"cpu"])? else {
                return Err(io::Error::other("a master does not say what it computed"));
            };
            let info = String::from_utf8_lossy(&info).into_owned();
            let seconds = |name: &str| -> f64 {
                let line = info.lines().find_map(|line| line.strip_prefix(name));
                line.and_then(|rest| rest.trim().parse().ok()).unwrap_or(f64::NAN)
            };
            cpu += seconds("used_cpu_user:") + seconds("used_cpu_sys:");
        }
        Ok((sets as f64, cpu * 1e9))
    }

    /// Takes a lock in nobody's name, on all of them.
    pub fn hold(&self, key: &str) -> io::Result<()> {
        self.each(&[b"SET", key.as_bytes(), b"somebody else"])
    }

    /// Frees it.
    pub fn free(&self, key: &str) -> io::Result<()> {
        self.each(&[b"DEL", key.as_bytes()])
    }

    fn each(&self, command: &[&[u8]]) -> io::Result<()> {
        self.masters.iter().try_for_each(|master| master.query(command).map(drop))
    }

    /// What they have computed so far, in nanoseconds; not a number where the kernel does not say.
    pub fn computed(&self) -> f64 {
        self.pids().into_iter().map(noise::computed).sum()
    }

    /// Waits until a client whose locks live for `ttl` at most does not mistrust them any more.
    pub fn ripen(&self, ttl: Duration) {
        let ripe = self.started + ttl + ttl / 50 + AGE_SLACK;
        clock::pause(ripe.saturating_duration_since(clock::now()));
    }

    /// Stops the last `count`; their kernel still takes bytes and connections.
    pub fn freeze(&self, count: usize) -> io::Result<()> {
        self.last(count).try_for_each(testing::Master::freeze)
    }

    /// Lets them go on, and waits until they have caught up.
    pub fn thaw(&self, count: usize) -> io::Result<()> {
        for master in self.last(count) {
            master.thaw()?;
            let answers = || master.query(&[b"PING"]).is_ok();
            if !(0..THAW_TRIES).any(|_| answers()) {
                return Err(io::Error::other("a master that was frozen does not answer"));
            }
        }
        Ok(())
    }

    fn last(&self, count: usize) -> impl Iterator<Item = &testing::Master> {
        self.masters.iter().skip(self.masters.len().saturating_sub(count))
    }
}

/// A port that refuses connections, as long as this is kept: it is taken, and nobody listens.
pub struct Refused {
    port: u16,
    _socket: OwnedFd,
}

impl Refused {
    /// Takes a free port.
    pub fn take() -> io::Result<Refused> {
        let taken = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        bind(&taken, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let address = SocketAddr::try_from(getsockname(&taken)?)?;
        Ok(Refused { port: address.port(), _socket: taken })
    }

    /// Its number.
    pub fn port(&self) -> u16 {
        self.port
    }
}

/// The version of the servers.
pub fn version() -> io::Result<String> {
    let binary =
        std::env::var_os(testing::SERVER_VARIABLE).unwrap_or_else(|| "redis-server".into());
    let output = std::process::Command::new(binary).arg("--version").output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.split_whitespace().find_map(|word| word.strip_prefix("v="));
    Ok(version.unwrap_or("of an unknown version").to_owned())
}

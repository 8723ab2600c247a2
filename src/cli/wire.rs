//! Questions to single masters, by the addresses of the locks.

use std::io;

use muxlock::Config;
use muxlock::testing::{Connection, Value};

/// Connects to a master as its locks do: authenticated, and to their database.
pub fn connect(config: &Config, node: usize) -> io::Result<Connection> {
    let dial = config.dial(node)?;
    let mut connection = Connection::over(dial.stream);
    if let Some(password) = &dial.password {
        let words: Vec<&[u8]> = match &dial.user {
            Some(user) => vec![b"AUTH", user.as_bytes(), password.as_bytes()],
            None => vec![b"AUTH", password.as_bytes()],
        };
        expect_ok(connection.ask(&words)?)?;
    }
    if dial.db != 0 {
        expect_ok(connection.ask(&[b"SELECT", dial.db.to_string().as_bytes()])?)?;
    }
    Ok(connection)
}

/// The server's own words may repeat what it was sent, so only their code is shown.
fn expect_ok(reply: Value) -> io::Result<()> {
    match reply {
        Value::Status(_) => Ok(()),
        Value::Error(text) => {
            let code = text.split(' ').next().unwrap_or_default();
            Err(io::Error::new(io::ErrorKind::PermissionDenied, code.to_owned()))
        }
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "this is no Redis server")),
    }
}

/// Asks all masters at the same time.
pub fn ask_all<T: Send>(
    config: &Config,
    ask: impl Fn(&mut Connection) -> io::Result<T> + Sync,
) -> Vec<(String, io::Result<T>)> {
    let addresses: Vec<String> = config.addresses().map(str::to_owned).collect();
    let ask = &ask;
    std::thread::scope(|scope| {
        let one = |node| scope.spawn(move || connect(config, node).and_then(|mut it| ask(&mut it)));
        let asked: Vec<_> = (0..addresses.len()).map(one).collect();
        let answers = asked.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("the question failed")))
        });
        addresses.into_iter().zip(answers).collect()
    })
}

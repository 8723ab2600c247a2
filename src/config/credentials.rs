//! The user and password of a node: fixed by its address, or asked for before each connection.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A password and its user; see [`Builder::credentials`](crate::Builder::credentials).
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub(crate) user: Option<String>,
    pub(crate) password: String,
}

impl Credentials {
    /// The password of the default user.
    pub fn new(password: impl Into<String>) -> Credentials {
        Credentials { user: None, password: password.into() }
    }

    /// The same password, of this user; of the default user if the text is empty.
    #[must_use]
    pub fn user(self, user: impl Into<String>) -> Credentials {
        Credentials { user: Some(user.into()).filter(|user| !user.is_empty()), ..self }
    }
}

/// Shows neither.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}

/// Where the credentials of a node come from.
#[derive(Clone, Default)]
pub(crate) enum Login {
    #[default]
    None,
    Fixed(Credentials),
    Asked {
        /// The user, if it is always the same.
        #[cfg_attr(
            not(feature = "unstable-tool"),
            expect(dead_code, reason = "the tool shows it")
        )]
        user: Option<String>,
        ask: Arc<Ask>,
    },
}

type Ask = dyn Fn(&str) -> io::Result<Credentials> + Send + Sync;

impl Login {
    pub(super) fn asked<F>(user: Option<String>, ask: F) -> Login
    where
        F: Fn(&str) -> io::Result<Credentials> + Send + Sync + 'static,
    {
        Login::Asked { user, ask: Arc::new(ask) }
    }

    /// The present credentials for the node with this address. It may block for any time.
    pub(crate) fn ask(&self, address: &str) -> io::Result<Option<Credentials>> {
        let ask = match self {
            Login::None => return Ok(None),
            Login::Fixed(credentials) => return Ok(Some(credentials.clone())),
            Login::Asked { ask, .. } => ask,
        };
        let asked = catch_unwind(AssertUnwindSafe(|| ask(address)));
        match asked.map_err(|_| io::Error::other("the function for credentials panicked"))?? {
            Credentials { password, .. } if password.is_empty() => {
                Err(io::Error::other("the password is empty"))
            }
            credentials => Ok(Some(credentials)),
        }
    }
}

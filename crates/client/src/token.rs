//! Where a client's token comes from if it may change under a running client.

use std::fmt;
use std::sync::Arc;

use epicepoch_wire::native::Token;

/// Gives the token to show, again and again: whenever a connection begins, and over HTTP with each
/// request. It is asked on the client's runtime, so it must return quickly and not block: what is
/// read from a file is read elsewhere, and kept.
#[derive(Clone)]
pub struct TokenSource(Arc<dyn Fn() -> Option<Token> + Send + Sync>);

impl TokenSource {
    /// Asks `source`; `None` of it is no token.
    pub fn new(source: impl Fn() -> Option<Token> + Send + Sync + 'static) -> Self {
        Self(Arc::new(source))
    }

    /// The token to show now.
    #[must_use]
    pub fn token(&self) -> Option<Token> {
        (self.0)()
    }
}

impl From<Token> for TokenSource {
    /// Always the same.
    fn from(token: Token) -> Self {
        Self::new(move || Some(token.clone()))
    }
}

impl fmt::Debug for TokenSource {
    /// Without the token.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("TokenSource").finish_non_exhaustive()
    }
}

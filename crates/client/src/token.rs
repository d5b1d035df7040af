//! A source of tokens, for programs whose token may change while the client runs.

use std::fmt;
use std::sync::Arc;

use epicepoch_wire::native::Token;

/// A function that returns the current token. The client calls it for each new connection, and over
/// HTTP for each request. It runs on the client's runtime, so it must not block. Read files
/// elsewhere, and keep the token in memory.
#[derive(Clone)]
pub struct TokenSource(Arc<dyn Fn() -> Option<Token> + Send + Sync>);

impl TokenSource {
    /// Creates a source from a function. `None` means no token.
    pub fn new(source: impl Fn() -> Option<Token> + Send + Sync + 'static) -> Self {
        Self(Arc::new(source))
    }

    /// The current token.
    #[must_use]
    pub fn token(&self) -> Option<Token> {
        (self.0)()
    }
}

impl From<Token> for TokenSource {
    /// Creates a source that always returns this token.
    fn from(token: Token) -> Self {
        Self::new(move || Some(token.clone()))
    }
}

impl fmt::Debug for TokenSource {
    /// The output does not contain the token.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("TokenSource").finish_non_exhaustive()
    }
}

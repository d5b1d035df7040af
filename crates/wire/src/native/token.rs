//! The token of a client. Neither `Debug` nor any error shows it.

use std::fmt;
use std::sync::Arc;

/// Longest token, bytes.
pub const TOKEN_LEN_MAX: usize = 256;

/// A bearer token: 1 to [`TOKEN_LEN_MAX`] visible ASCII characters.
///
/// Do not check a client's token with `==`: its time depends on how many characters are equal, and
/// an attacker can measure that. A node compares in constant time instead.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Arc<str>);

impl Token {
    /// Returns a token with this text; `None` if the text is not valid.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let is_fit = (1..=TOKEN_LEN_MAX).contains(&text.len());
        let is_visible = text.bytes().all(|byte| byte.is_ascii_graphic());
        (is_fit && is_visible).then(|| Self(text.into()))
    }

    /// The text, for sending.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_shown_only_on_request() {
        let token = Token::new("secret-0123456789").unwrap();
        assert_eq!(token.reveal(), "secret-0123456789");
        assert_eq!(format!("{token:?}"), "Token(..)");
        let long = "x".repeat(TOKEN_LEN_MAX + 1);
        for bad in ["", "two words", "line\n", "t\u{f6}ken", &long] {
            assert_eq!(Token::new(bad), None, "{bad}");
        }
    }
}

//! What a client shows to be let in. It is never shown to anybody else: not by `Debug`, and in no
//! error.

use std::fmt;

/// Longest token, bytes.
pub const TOKEN_LEN_MAX: usize = 256;

/// A bearer token: 1 to [`TOKEN_LEN_MAX`] visible ASCII characters.
///
/// Two tokens are compared as texts are, which takes longer the more of them is the same: a node
/// compares otherwise.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Box<str>);

impl Token {
    /// The token of that text; `None` if it is none.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let is_fit = (1..=TOKEN_LEN_MAX).contains(&text.len());
        let is_visible = text.bytes().all(|byte| byte.is_ascii_graphic());
        (is_fit && is_visible).then(|| Self(text.into()))
    }

    /// The text that is sent.
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
    fn a_token_is_visible_to_nobody_but_who_asks_for_it() {
        let token = Token::new("secret-0123456789").unwrap();
        assert_eq!(token.reveal(), "secret-0123456789");
        assert_eq!(format!("{token:?}"), "Token(..)");
        let long = "x".repeat(TOKEN_LEN_MAX + 1);
        for bad in ["", "two words", "line\n", "t\u{f6}ken", &long] {
            assert_eq!(Token::new(bad), None, "{bad}");
        }
    }
}

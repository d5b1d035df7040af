//! Bearer tokens from a file, one on each line. With several tokens, a new one can be handed out
//! before an old one is withdrawn. Tokens are never logged or shown. The time of a comparison does
//! not reveal how much of a token was right; the lengths of tokens are not a secret.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use subtle::{Choice, ConstantTimeEq as _};
use thiserror::Error;

/// Shortest token, bytes. A token shorter than 16 random hexadecimal digits could be guessed over a
/// network.
pub const TOKEN_LEN_MIN: usize = 16;
/// Longest token, bytes. It has to fit in the hello of the native protocol.
pub const TOKEN_LEN_MAX: usize = epicepoch_wire::native::TOKEN_LEN_MAX;
/// At most this many tokens in a file. Each sent token is compared with all of them.
pub const TOKENS_MAX: usize = 32;
/// At most this many bytes in a token file.
const FILE_LEN_MAX: u64 = 64 << 10;

/// Why a token file cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TokenFileError {
    /// The file cannot be read. Make it readable for the user of the node.
    #[error("{setting}: {path} cannot be read: {cause}", path = .path.display())]
    Read {
        /// The setting that names the file.
        setting: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The error of the system.
        cause: io::Error,
    },
    /// The content is invalid. Correct it as the text says.
    #[error(
        "{setting}: {path}: {complaint}; allowed are 1 to {TOKENS_MAX} tokens, one on each line, each \
         of {TOKEN_LEN_MIN} to {TOKEN_LEN_MAX} visible ASCII characters, and lines that begin with #",
        path = .path.display()
    )]
    Content {
        /// The setting that names the file.
        setting: &'static str,
        /// The path of the file.
        path: PathBuf,
        /// The error and its line, never the token.
        complaint: String,
    },
}

/// The tokens of a file, which is read again at intervals.
pub struct Tokens {
    setting: &'static str,
    path: PathBuf,
    current: ArcSwap<Vec<Box<[u8]>>>,
    /// Grows by one each time the tokens have changed.
    version: AtomicU64,
    /// The last error of the file, so that each error is logged once.
    complaint: Mutex<Option<String>>,
    /// Whether users other than the owner could read the file at the last check.
    is_exposed: AtomicBool,
}

impl Tokens {
    /// Reads a token file. `setting` is the setting that names it.
    ///
    /// # Errors
    /// When the file cannot be read or holds no tokens.
    pub fn read(setting: &'static str, path: &Path) -> Result<Self, TokenFileError> {
        let tokens = read(setting, path)?;
        let current = ArcSwap::from_pointee(tokens);
        let tokens = Self {
            setting,
            path: path.to_owned(),
            current,
            version: AtomicU64::new(0),
            complaint: Mutex::default(),
            is_exposed: AtomicBool::new(false),
        };
        tokens.warn_of_exposure();
        Ok(tokens)
    }

    /// Logs a warning if users other than the owner can read the file and could not at the last
    /// check. Returns whether it logged.
    fn warn_of_exposure(&self) -> bool {
        let mode = self.path.metadata().map(|data| data.permissions().mode());
        let is_exposed = mode.is_ok_and(|mode| mode & 0o077 != 0);
        let was_exposed = self.is_exposed.swap(is_exposed, Ordering::Relaxed);
        let is_new = is_exposed && !was_exposed;
        if is_new {
            let (setting, path) = (self.setting, self.path.display());
            tracing::warn!(setting, %path, "other users may read this file (chmod 600)");
        }
        is_new
    }

    /// Whether `sent` is one of the tokens. Always compares with all tokens.
    #[must_use]
    pub fn admit(&self, sent: &[u8]) -> bool {
        let tokens = self.current.load();
        let none = Choice::from(0);
        bool::from(tokens.iter().fold(none, |found, token| found | token.ct_eq(sent)))
    }

    /// How often the tokens have changed. After a change, clients with an older token must be
    /// checked again.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Reads the file again. If the file is unusable, the old tokens stay in force, and the error
    /// is logged once.
    pub fn reload(&self) {
        self.warn_of_exposure();
        let read = read(self.setting, &self.path);
        let mut last = self.complaint.lock().unwrap_or_else(PoisonError::into_inner);
        match read {
            Ok(tokens) => {
                *last = None;
                if **self.current.load() != tokens {
                    let count = tokens.len();
                    self.current.store(Arc::new(tokens));
                    self.version.fetch_add(1, Ordering::Release);
                    tracing::info!(setting = self.setting, count, "tokens reloaded");
                }
            }
            Err(error) => {
                let text = error.to_string();
                if last.as_ref() != Some(&text) {
                    tracing::error!(
                        error = text,
                        "token file not reloaded, the old tokens stay in use"
                    );
                    *last = Some(text);
                }
            }
        }
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("path", &self.path).finish_non_exhaustive()
    }
}

fn read(setting: &'static str, path: &Path) -> Result<Vec<Box<[u8]>>, TokenFileError> {
    let path = path.to_owned();
    let mut text = Vec::new();
    let whole =
        File::open(&path).and_then(|file| file.take(FILE_LEN_MAX + 1).read_to_end(&mut text));
    if let Err(cause) = whole {
        return Err(TokenFileError::Read { setting, path, cause });
    }
    parse(&text).map_err(|complaint| TokenFileError::Content { setting, path, complaint })
}

/// Parses the tokens of a file: one on each line. Comments and empty lines are skipped.
///
/// # Errors
/// When the content is invalid. The text says why. It never quotes the file, because the quoted
/// part might be a token.
pub fn parse(text: &[u8]) -> Result<Vec<Box<[u8]>>, String> {
    if text.len() as u64 > FILE_LEN_MAX {
        return Err(format!("it is longer than {FILE_LEN_MAX} bytes"));
    }
    let mut tokens: Vec<Box<[u8]>> = Vec::new();
    for (at, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let token = line.trim_ascii();
        if token.is_empty() || token[0] == b'#' {
            continue;
        }
        let number = at + 1;
        if !token.iter().all(u8::is_ascii_graphic) {
            return Err(format!("line {number} holds what is no visible ASCII character"));
        }
        if !(TOKEN_LEN_MIN..=TOKEN_LEN_MAX).contains(&token.len()) {
            return Err(format!("line {number} has {} characters", token.len()));
        }
        tokens.push(token.into());
    }
    match tokens.len() {
        0 => Err("it holds no token".to_owned()),
        1..=TOKENS_MAX => Ok(tokens),
        count => Err(format!("it holds {count} tokens")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "old-token-0123456789";
    const NEW: &str = "new-token-0123456789";

    #[test]
    fn a_file_holds_a_token_on_each_line() {
        let text = format!("# of the team\n\n{OLD}\r\n  {NEW}  \n#{OLD}x\n");
        let tokens = parse(text.as_bytes()).unwrap();
        assert_eq!(tokens, [OLD.as_bytes().into(), NEW.as_bytes().into()]);
        let long = "x".repeat(TOKEN_LEN_MAX);
        assert_eq!(parse(long.as_bytes()).map(|tokens| tokens.len()), Ok(1));
    }

    #[test]
    fn a_file_that_would_admit_nobody_or_anybody_is_refused_without_showing_a_token() {
        let many = format!("{OLD}\n").repeat(TOKENS_MAX + 1);
        let long = "x".repeat(TOKEN_LEN_MAX + 1);
        let huge = "#".repeat(FILE_LEN_MAX as usize + 1);
        for bad in ["", "\n\n", "# nothing\n", "short", "two words are long enough", &many, &long] {
            let complaint = parse(bad.as_bytes()).unwrap_err();
            assert!(
                bad.is_empty() || !complaint.contains(bad.trim()) || bad == "\n\n",
                "{complaint}"
            );
        }
        assert!(parse(huge.as_bytes()).is_err());
        assert!(parse(format!("{OLD}\nt\u{f6}ken-0123456789\n").as_bytes()).is_err());
    }

    #[test]
    fn tokens_are_taken_up_and_taken_back_and_stay_in_force_while_the_file_is_no_good() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        let admitted = |tokens: &Tokens| [OLD, NEW].map(|token| tokens.admit(token.as_bytes()));
        assert!(matches!(Tokens::read("X", &path), Err(TokenFileError::Read { .. })));
        std::fs::write(&path, OLD).unwrap();
        let tokens = Tokens::read("X", &path).unwrap();
        assert_eq!(admitted(&tokens), [true, false]);
        std::fs::write(&path, format!("{OLD}\n{NEW}\n")).unwrap();
        tokens.reload();
        assert_eq!(admitted(&tokens), [true, true]);
        std::fs::write(&path, "").unwrap();
        tokens.reload();
        assert_eq!(admitted(&tokens), [true, true], "an empty file is no good");
        std::fs::remove_file(&path).unwrap();
        tokens.reload();
        assert_eq!(admitted(&tokens), [true, true], "no file is no good");
        std::fs::write(&path, NEW).unwrap();
        tokens.reload();
        assert_eq!(admitted(&tokens), [false, true]);
        let shown = format!("{tokens:?}");
        assert!(!shown.contains(NEW), "{shown}");
    }

    #[test]
    fn a_file_that_others_may_read_is_told_whenever_it_becomes_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        std::fs::write(&path, OLD).unwrap();
        let set_mode = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        set_mode(0o600);
        let tokens = Tokens::read("X", &path).unwrap();
        assert!(!tokens.warn_of_exposure());
        for _ in 0..2 {
            set_mode(0o644);
            assert!(tokens.warn_of_exposure());
            assert!(!tokens.warn_of_exposure(), "once");
            set_mode(0o600);
            assert!(!tokens.warn_of_exposure());
        }
    }
}

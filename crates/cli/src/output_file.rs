//! A file that an argument names and that a command writes when its work is done. A path that
//! cannot be written is refused before the work begins. The content of an older file stays until
//! the new content is there.

use std::fs::{File, OpenOptions};
use std::io::Write as _;

use anyhow::{Context as _, anyhow};
use clap::ArgMatches;

use crate::failure::Failure;

/// The open file of an argument.
#[derive(Debug)]
pub(crate) struct OutputFile {
    file: File,
    /// The argument and its value, for errors.
    given: String,
}

impl OutputFile {
    /// Opens the file of `--argument`, and keeps its content; `None` without the argument.
    ///
    /// # Errors
    /// When the file cannot be written. That is wrong usage.
    pub(crate) fn open(matches: &ArgMatches, argument: &str) -> Result<Option<Self>, Failure> {
        let Some(path) = matches.get_one::<String>(argument) else { return Ok(None) };
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file =
            file.map_err(|error| Failure::usage(anyhow!("--{argument} is {path:?}: {error}")))?;
        Ok(Some(Self { file, given: format!("--{argument} {path}") }))
    }

    /// Writes `text` in place of what the file has.
    ///
    /// # Errors
    /// When the file system fails.
    pub(crate) fn replace(self, text: &str) -> anyhow::Result<()> {
        let Self { mut file, given } = self;
        // A pipe or a terminal has no length.
        let is_file = file.metadata().is_ok_and(|it| it.is_file());
        let emptied = if is_file { file.set_len(0) } else { Ok(()) };
        emptied.and_then(|()| file.write_all(text.as_bytes())).context(given)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Command;

    use super::*;
    use crate::arguments::text;

    fn opened(path: &str) -> Result<Option<OutputFile>, Failure> {
        let command = Command::new("run").arg(text("report", "FILE", "A file"));
        let matches = command.try_get_matches_from(["run", "--report", path]).expect("it parses");
        OutputFile::open(&matches, "report")
    }

    #[test]
    fn an_older_file_keeps_its_content_until_it_is_replaced_whole() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("report.json");
        fs::write(&path, "an older and longer report").expect("written");
        let read = || fs::read_to_string(&path).expect("it is there");
        let file = opened(path.to_str().expect("UTF-8")).expect("it opens").expect("it is given");
        assert_eq!(read(), "an older and longer report");
        file.replace("a new one").expect("written");
        assert_eq!(read(), "a new one");
        let missing = home.path().join("missing/report.json");
        let failure = opened(missing.to_str().expect("UTF-8")).expect_err("no directory");
        assert_eq!(failure.code, 2, "{:#}", failure.error);
        assert!(failure.error.to_string().starts_with("--report is "), "{:#}", failure.error);
    }
}

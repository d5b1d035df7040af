//! Command line options of the form `--name value`, and flags of the form `--name`.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail};

/// The options of the command line that were not taken yet, by name.
#[derive(Debug)]
pub(crate) struct Arguments(BTreeMap<String, Option<String>>);

impl Arguments {
    /// `flags` are the names of the options without a value.
    pub(crate) fn parse(mut words: impl Iterator<Item = String>, flags: &[&str]) -> Result<Self> {
        let mut values = BTreeMap::new();
        while let Some(word) = words.next() {
            let name = word.strip_prefix("--").with_context(|| format!("{word:?} is no option"))?;
            let value = if flags.contains(&name) {
                None
            } else {
                Some(words.next().with_context(|| format!("--{name} needs a value"))?)
            };
            if values.insert(name.to_owned(), value).is_some() {
                bail!("--{name} is given twice");
            }
        }
        Ok(Self(values))
    }

    pub(crate) fn take<T>(&mut self, name: &str) -> Result<Option<T>>
    where
        T: FromStr,
        T::Err: Display,
    {
        let Some(text) = self.0.remove(name).flatten() else { return Ok(None) };
        text.parse().map(Some).map_err(|error| anyhow!("--{name} {text}: {error}"))
    }

    /// Takes a flag. Returns whether it is there.
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        self.0.remove(name).is_some()
    }

    /// Takes an option that is a count. The count must be within bounds, so that a typo cannot
    /// start a thousand threads.
    pub(crate) fn count(
        &mut self,
        name: &str,
        default: usize,
        bounds: [usize; 2],
    ) -> Result<usize> {
        let count = self.take(name)?.unwrap_or(default);
        let [low, high] = bounds;
        if !(low..=high).contains(&count) {
            bail!("--{name} {count}: allowed are {low} to {high}");
        }
        Ok(count)
    }

    /// Returns an error if an option is left.
    pub(crate) fn finish(self) -> Result<()> {
        match self.0.keys().next() {
            Some(name) => bail!("there is no option --{name} here"),
            None => Ok(()),
        }
    }
}

//! Settings from a file.
//!
//! ```toml
//! mode = "enforce"                     # enforce, shadow, off: for all rules that say nothing else
//! store = "redis://:$PASSWORD@db:6379" # or "memory"
//! prefix = "shop"
//! deadline = "20ms"                    # how long a store may take
//! on-outage = "local 4"                # open, closed, local N: N processes share the quota
//! reload = "1s"                        # look for changes of this file so often; left out: never
//!
//! [stores]
//! sessions = "redis+cluster://10.0.0.1,10.0.0.2"
//!
//! [rules.login]                        # or [rules."shop::api::login"]
//! quota = "5/min"                      # or quotas = ["5/min", "20/h"]
//! mode = "shadow"
//! store = "sessions"
//! on-outage = "closed"
//! wait = "50ms"
//! message = "slow down"
//!
//! [rules]
//! signup = "3/h"                       # where a quota is all there is to say
//! ```

mod place;
mod read;

pub(crate) use place::Place;

use super::{FileError, FileProblem, Settings, SettingsError, text::Variables};
use std::{
    collections::BTreeMap,
    env, fmt, fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

/// What a file said when it was last read.
#[derive(Clone)]
pub(crate) struct SettingsFile {
    path: PathBuf,
    bytes: Vec<u8>,
    says: Settings,
    spots: BTreeMap<Spot, Place>,
}

/// What may turn out to be wrong only when it is put to use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Spot {
    Store(Option<String>),
    Rule(String),
    StoreOfRule(String),
}

/// A larger file is a mistake.
const MOST_BYTES: u64 = 1024 * 1024;

impl Settings {
    /// What a file says, in TOML. It is read again by [`crate::Rules::reload`], or by itself if it says so.
    ///
    /// Addresses of stores may name variables of the environment, where secrets live: `redis://:$PASSWORD@db`.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, SettingsError> {
        Self::read_file(path.as_ref(), &|name| env::var(name).ok())
    }

    /// The same, with variables that are given.
    pub(crate) fn read_file(path: &Path, variables: &Variables<'_>) -> Result<Self, SettingsError> {
        let bytes = bytes_of(path).map_err(|error| unreadable(path, error))?;
        let file = SettingsFile::read(path, bytes, variables)?;
        Ok(Self { file: Some(Box::new(file)), ..Self::new() })
    }

    /// The file that they come from, if they come from one.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|file| &*file.path)
    }

    /// The same error, with the place in the file that it comes from, if it does.
    pub(crate) fn locate(&self, error: SettingsError) -> SettingsError {
        match &self.file {
            Some(file) => file.locate(error, self),
            None => error,
        }
    }

    /// The same, with what the file says now; `None` without a file.
    pub(crate) fn read_again(&self, bytes: io::Result<Vec<u8>>) -> Option<Result<Self, SettingsError>> {
        let path = &self.file.as_ref()?.path;
        let file = bytes
            .map_err(|error| unreadable(path, error))
            .and_then(|bytes| SettingsFile::read(path, bytes, &|name| env::var(name).ok()));
        Some(file.map(|file| Self { file: Some(Box::new(file)), ..self.clone() }))
    }
}

impl SettingsFile {
    fn read(path: &Path, bytes: Vec<u8>, variables: &Variables<'_>) -> Result<Self, SettingsError> {
        let read = read::read(&bytes, variables);
        match read {
            Ok((says, spots)) => Ok(Self { path: path.to_owned(), bytes, says, spots }),
            Err(problems) => Err(SettingsError::File(FileError { path: path.to_owned(), problems })),
        }
    }

    pub(crate) fn says(&self) -> &Settings {
        &self.says
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn locate(&self, error: SettingsError, over: &Settings) -> SettingsError {
        let is_from_code = |rule: &String| over.rules.contains_key(rule);
        let spot = match &error {
            SettingsError::Store { name: None, .. } if over.store.is_some() => None,
            SettingsError::Store { name: Some(name), .. } if over.stores.contains_key(name) => None,
            SettingsError::Store { name, .. } => Some(Spot::Store(name.clone())),
            SettingsError::UnknownStore { rule, .. }
            | SettingsError::Rule { rule, .. }
            | SettingsError::Unfit { rule, .. }
                if is_from_code(rule) =>
            {
                None
            }
            SettingsError::UnknownStore { rule, .. } => Some(Spot::StoreOfRule(rule.clone())),
            SettingsError::Rule { rule, .. } | SettingsError::Unfit { rule, .. } => {
                Some(Spot::Rule(rule.clone()))
            }
            _ => None,
        };
        match spot.and_then(|spot| self.spots.get(&spot)) {
            None => error,
            Some(place) => {
                let problem =
                    FileProblem { place: place.clone(), problem: error.to_string(), fix: String::new() };
                SettingsError::File(FileError { path: self.path.clone(), problems: vec![problem] })
            }
        }
    }
}

/// What it says may be secret.
impl fmt::Debug for SettingsFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SettingsFile")
            .field("path", &self.path)
            .field("says", &self.says)
            .finish_non_exhaustive()
    }
}

/// The contents of a file, unless it is too large to be meant.
pub(crate) fn bytes_of(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > MOST_BYTES {
        true => Err(io::Error::new(io::ErrorKind::FileTooLarge, "more than a megabyte of settings")),
        false => Ok(bytes),
    }
}

fn unreadable(path: &Path, error: io::Error) -> SettingsError {
    SettingsError::Unreadable { path: path.to_owned(), error }
}

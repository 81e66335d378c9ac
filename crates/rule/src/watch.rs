//! A file of settings that is read again.

use crate::{
    notice::Notice,
    rules::{Inner, Rules},
    settings::{SHORTEST_PACE, Settings, SettingsError, bytes_of},
};
use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread,
    time::Duration,
};

/// What a look at the file brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reloaded {
    /// It was read, and its settings hold now.
    Applied,
    /// It says what it said when it was last looked at.
    Unchanged,
    /// The settings do not come from a file.
    NoFile,
}

/// How it went with the settings so far.
#[derive(Clone, Debug)]
pub struct SettingsStatus {
    applied: u64,
    path: Option<PathBuf>,
    error: Option<Arc<str>>,
}

impl SettingsStatus {
    /// How often settings were applied, from code or from a file.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// The file that those come from that hold now, if they come from one.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Why the last ones were not applied; `None` if they were.
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }
}

impl fmt::Display for SettingsStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = if self.applied == 1 { "time" } else { "times" };
        write!(f, "applied {} {times}", self.applied)?;
        if let Some(path) = &self.path {
            write!(f, ", now from {}", path.display())?;
        }
        match &self.error {
            None => Ok(()),
            Some(error) => write!(f, "; the last ones were not: {error}"),
        }
    }
}

/// What is known of the file, and who looks at it.
#[derive(Default)]
pub(crate) struct Watch {
    seen: Option<Seen>,
    error: Option<Arc<str>>,
    watcher: Option<Sender<Option<Duration>>>,
    pace: Option<Duration>,
}

/// What was there at the last look.
#[derive(PartialEq, Eq)]
enum Seen {
    Bytes(Vec<u8>),
    Nothing(io::ErrorKind),
}

impl Rules {
    /// Reads the file that the settings come from again, now. What is wrong with it changes nothing.
    pub fn reload(&self) -> Result<Reloaded, SettingsError> {
        self.look(|_| true)
    }

    /// The same, unless the file says what it said at the last look, whether or not that was right. By its contents: a
    /// renamed file or another target of a link is noticed, and one that was only touched is not.
    ///
    /// This is what is done every so often if the settings say `reload`.
    pub fn reload_if_changed(&self) -> Result<Reloaded, SettingsError> {
        self.look(|is_new| is_new)
    }

    /// How it went with the settings so far.
    pub fn status(&self) -> SettingsStatus {
        self.with(|inner| {
            let path = inner.given.path().map(Path::to_owned);
            SettingsStatus { applied: inner.applied, path, error: inner.watch.error.clone() }
        })
    }

    fn look(&self, is_wanted: impl Fn(bool) -> bool) -> Result<Reloaded, SettingsError> {
        let turn = self.turn();
        let _turn = turn.lock();
        let Some(path) = self.with(|inner| inner.given.path().map(Path::to_owned)) else {
            return Ok(Reloaded::NoFile);
        };
        // Without the lock: a slow disk must not hold up new rules.
        let bytes = bytes_of(&path);
        let seen = match &bytes {
            Ok(bytes) => Seen::Bytes(bytes.clone()),
            Err(error) => Seen::Nothing(error.kind()),
        };
        let (is_new, given) = self.with(|inner| inner.see(seen));
        if !is_wanted(is_new) {
            return Ok(Reloaded::Unchanged);
        }
        let Some(read) = given.read_again(bytes) else { return Ok(Reloaded::NoFile) };
        let outcome = read.and_then(|settings| self.take_over(&Arc::new(settings)));
        self.with(|inner| {
            inner.watch.error = outcome.as_ref().err().map(|error| error.to_string().into());
            inner.notices.extend(match &inner.watch.error {
                None => Some(Notice::Reloaded { path }),
                Some(error) => is_new.then(|| Notice::NotReloaded { error: error.clone() }),
            });
            inner.set_pace(&self.inner);
        });
        outcome.map(|()| Reloaded::Applied)
    }
}

impl Inner {
    /// Notes what is in the file: whether that is new, and what it is to be under.
    fn see(&mut self, seen: Seen) -> (bool, Arc<Settings>) {
        let is_new = self.watch.seen.as_ref() != Some(&seen);
        self.watch.seen = Some(seen);
        (is_new, self.given.clone())
    }

    /// Notes how it went with settings that were given, and looks after their file if they say so.
    pub(crate) fn watch_over(&mut self, rules: &Arc<Mutex<Self>>, error: Option<&SettingsError>) {
        self.watch.error = error.map(|error| error.to_string().into());
        if error.is_none() {
            self.watch.seen = self.given.file.as_ref().map(|file| Seen::Bytes(file.bytes().to_vec()));
            self.set_pace(rules);
        }
    }

    /// Has the file looked at as often as the settings say.
    fn set_pace(&mut self, rules: &Arc<Mutex<Self>>) {
        let has_file = self.given.path().is_some();
        let pace = self.settings.reload.filter(|_| has_file).map(|pace| pace.max(SHORTEST_PACE));
        if self.watch.pace == pace {
            return;
        }
        self.watch.pace = pace;
        if let Some(watcher) = &self.watch.watcher
            && watcher.send(pace).is_ok()
        {
            return;
        }
        let (watcher, paces) = mpsc::channel();
        let weak = Arc::downgrade(rules);
        let look = move || {
            let rules = weak.upgrade().map(|inner| Rules { inner });
            match rules {
                None => Next::Stop,
                Some(rules) => {
                    // What is wrong has been told.
                    let _ = rules.reload_if_changed();
                    Next::GoOn
                }
            }
        };
        let watching = thread::Builder::new()
            .name("tidegate-settings".to_owned())
            .spawn(move || keep_looking(pace, &paces, look));
        match watching {
            Ok(_) => self.watch.watcher = Some(watcher),
            Err(error) => self.notices.push(Notice::NoWatcher { error }),
        }
    }
}

/// Looks at a pace that can change, until nobody can change it any more.
fn keep_looking(
    mut pace: Option<Duration>,
    paces: &mpsc::Receiver<Option<Duration>>,
    look: impl Fn() -> Next,
) {
    loop {
        let next = match pace {
            Some(pace) => paces.recv_timeout(pace),
            None => paces.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match next {
            Ok(next) => pace = next,
            Err(RecvTimeoutError::Timeout) => match look() {
                Next::GoOn => {}
                Next::Stop => return,
            },
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

enum Next {
    GoOn,
    Stop,
}

//! Loads the configuration from a folder.
//!
//! Reads every file in the folder and its subfolders, with any extension, in the order of their names. Skips folders whose
//! names start with two dots: Kubernetes keeps a second copy of each file there.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tidegate_http_server::{FileWatch, ReadFiles};
use tidegate_policy::{
    FileSource as _,
    descriptors::{DescriptorError, DescriptorFile, DescriptorSet, DomainMerge},
};

/// The maximum number of files.
const MAX_FILES: usize = 10_000;

/// The maximum depth of subfolders.
const MAX_DEPTH: usize = 16;

/// The maximum size of all files together.
const MAX_TOTAL_BYTES: usize = 64 * 1024 * 1024;

/// A folder of descriptor files, with change detection.
///
/// ```no_run
/// # async fn example() -> Result<(), tidegate_service::descriptors::ConfigLoadError> {
/// use tidegate_service::descriptors::DescriptorDirectory;
///
/// let mut source = DescriptorDirectory::new("/data/ratelimit/config");
/// let mut set = source.load()?;
/// loop {
///     source.changed().await;
///     // Keep the previous set if the new one is invalid.
///     if let Ok(next) = source.load() {
///         set = next;
///     }
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct DescriptorDirectory {
    folder: PathBuf,
    dotfiles: Dotfiles,
    merge: DomainMerge,
    loads: Arc<ConfigLoadCounters>,
    watch: Option<FileWatch>,
}

/// How to treat files whose names start with a dot (`RUNTIME_IGNOREDOTFILES`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dotfiles {
    /// Reads them.
    #[default]
    Read,
    /// Ignores them.
    Ignore,
}

/// The number of loads: `config_load_success` and `config_load_error`.
#[derive(Debug, Default)]
pub struct ConfigLoadCounters {
    successes: AtomicU64,
    errors: AtomicU64,
}

/// An error while loading the configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigLoadError {
    /// A file or the folder cannot be read.
    #[error("cannot read {path}: {source}")]
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The content is invalid.
    #[error("{0}")]
    Invalid(#[source] DescriptorError),
}

impl DescriptorDirectory {
    /// Reads all files in `folder`.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            dotfiles: Dotfiles::default(),
            merge: DomainMerge::default(),
            loads: Arc::default(),
            watch: None,
        }
    }

    /// Sets how to treat files whose names start with a dot.
    #[must_use]
    pub fn with_dotfiles(self, dotfiles: Dotfiles) -> Self {
        Self { dotfiles, ..self }
    }

    /// Sets whether several files may configure the same domain.
    #[must_use]
    pub fn merge(self, merge: DomainMerge) -> Self {
        Self { merge, ..self }
    }

    /// The counters of loads, which other sources may share.
    pub fn loads(&self) -> Arc<ConfigLoadCounters> {
        self.loads.clone()
    }

    /// Reads all files. Counts the result. Blocks on file I/O.
    pub fn load(&mut self) -> Result<DescriptorSet, ConfigLoadError> {
        let files = ReadFiles::default();
        let loaded = self.read_files(&files);
        match &mut self.watch {
            Some(watch) => watch.watch(&files),
            None => self.watch = Some(FileWatch::new(&files)),
        }
        match &loaded {
            Ok(_) => self.loads.record_success(),
            Err(_) => self.loads.record_error(),
        }
        loaded
    }

    /// Waits until the files differ from those loaded last. Returns at once before the first load. Requires a Tokio runtime.
    /// Cancel safe.
    pub async fn changed(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.changed().await;
        }
    }

    fn read_files(&self, files: &ReadFiles) -> Result<DescriptorSet, ConfigLoadError> {
        let unreadable = |path: &Path| {
            let path = path.to_owned();
            move |source| ConfigLoadError::Unreadable { path, source }
        };
        let mut paths = Vec::new();
        self.list_files(files, Path::new(""), &mut paths)?;
        let (mut read, mut bytes) = (Vec::new(), 0);
        for name in paths {
            let path = self.folder.join(&name);
            let text = files.read(&path).map_err(unreadable(&path))?;
            bytes += text.len();
            if bytes > MAX_TOTAL_BYTES || read.len() >= MAX_FILES {
                let problem = "more than 10,000 files or 64 MiB; use fewer files";
                return Err(unreadable(&self.folder)(io::Error::other(problem)));
            }
            let text = String::from_utf8(text)
                .map_err(|_| unreadable(&path)(io::Error::other("invalid UTF-8; save the file as UTF-8")))?;
            read.push(DescriptorFile { name: name.to_string_lossy().into_owned(), text });
        }
        DescriptorSet::read(&read, self.merge).map_err(ConfigLoadError::Invalid)
    }

    /// Adds the paths of all files in a subfolder and below it, relative to the folder.
    fn list_files(
        &self,
        files: &ReadFiles,
        subfolder: &Path,
        names: &mut Vec<PathBuf>,
    ) -> Result<(), ConfigLoadError> {
        let folder =
            if subfolder.as_os_str().is_empty() { self.folder.clone() } else { self.folder.join(subfolder) };
        let unreadable = |source| ConfigLoadError::Unreadable { path: folder.clone(), source };
        if subfolder.components().count() > MAX_DEPTH {
            let problem =
                format!("folders are nested more than {MAX_DEPTH} levels deep; remove symlink cycles");
            return Err(unreadable(io::Error::other(problem)));
        }
        for name in files.list(&folder).map_err(unreadable)? {
            let text = name.to_string_lossy();
            if text.starts_with('.') && self.dotfiles == Dotfiles::Ignore {
                continue;
            }
            let path = subfolder.join(&name);
            match self.folder.join(&path).is_dir() {
                true if text.starts_with("..") => {}
                true => self.list_files(files, &path, names)?,
                false => names.push(path),
            }
        }
        Ok(())
    }
}

impl ConfigLoadCounters {
    /// The number of successful loads.
    pub fn successes(&self) -> u64 {
        self.successes.load(Ordering::Relaxed)
    }

    /// The number of failed loads.
    pub fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// Counts a successful load.
    pub fn record_success(&self) {
        self.successes.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a failed load.
    pub fn record_error(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, time::Duration};

    fn load_limits(source: &mut DescriptorDirectory) -> Result<Vec<String>, String> {
        let set = source.load().map_err(|error| error.to_string())?;
        Ok(set.limits().map(|limit| limit.path.to_string()).collect())
    }

    fn config_text(domain: &str, key: &str) -> String {
        format!("domain: {domain}\ndescriptors: [{{ key: {key}, rate_limit: {{ unit: day }} }}]")
    }

    /// Waits for a change, with a timeout that only a failing test reaches.
    async fn wait_for_change(source: &mut DescriptorDirectory) {
        tokio::time::timeout(Duration::from_secs(20), source.changed()).await.expect("no change detected");
    }

    #[test]
    fn every_file_of_a_folder_is_read() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("config");
        let mut source = DescriptorDirectory::new(&folder);
        let error = load_limits(&mut source).unwrap_err();
        assert!(error.starts_with(&format!("cannot read {}: ", folder.display())), "{error}");

        fs::create_dir_all(&folder).unwrap();
        assert_eq!(load_limits(&mut source), Ok(vec![]));
        fs::write(folder.join("b"), config_text("b", "k")).unwrap();
        fs::write(folder.join("a.txt"), config_text("a", "k")).unwrap();
        assert_eq!(load_limits(&mut source), Ok(vec!["a.k".to_owned(), "b.k".to_owned()]));

        fs::write(folder.join(".b.swp"), config_text("b", "l")).unwrap();
        assert_eq!(load_limits(&mut source), Err("b: duplicate domain 'b' in config file".to_owned()));
        let mut joined = DescriptorDirectory::new(&folder).merge(DomainMerge::Combine);
        assert_eq!(load_limits(&mut joined).unwrap().len(), 3);
        let mut source = source.with_dotfiles(Dotfiles::Ignore);
        assert_eq!(load_limits(&mut source).unwrap().len(), 2);

        fs::write(folder.join("d"), b"domain: \xff").unwrap();
        assert!(load_limits(&mut source).unwrap_err().ends_with("d: invalid UTF-8; save the file as UTF-8"));
        assert_eq!((source.loads().successes(), source.loads().errors()), (3, 3));
    }

    #[tokio::test]
    async fn files_in_subfolders_are_read_and_watched() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path();
        for name in ["team/shop", ".hidden", "..2024"] {
            fs::create_dir_all(folder.join(name)).unwrap();
        }
        fs::write(folder.join("a.yaml"), config_text("a", "k")).unwrap();
        fs::write(folder.join("team/shop/b.yaml"), config_text("b", "k")).unwrap();
        fs::write(folder.join(".hidden/c.yaml"), config_text("c", "k")).unwrap();
        fs::write(folder.join("..2024/a.yaml"), config_text("a", "k")).unwrap();
        let mut source = DescriptorDirectory::new(folder).with_dotfiles(Dotfiles::Ignore);
        assert_eq!(load_limits(&mut source), Ok(vec!["a.k".to_owned(), "b.k".to_owned()]));

        fs::write(folder.join("team/shop/b.yaml"), config_text("b", "other")).unwrap();
        wait_for_change(&mut source).await;
        assert_eq!(load_limits(&mut source), Ok(vec!["a.k".to_owned(), "b.other".to_owned()]));
        fs::write(folder.join("team/d.yaml"), "domian: d").unwrap();
        wait_for_change(&mut source).await;
        let error = "team/d.yaml: config error, unknown key 'domian'";
        assert_eq!(load_limits(&mut source), Err(error.to_owned()));
        fs::write(folder.join("team/d.yaml"), config_text("d", "k")).unwrap();
        wait_for_change(&mut source).await;
        assert_eq!(load_limits(&mut source).unwrap().len(), 3);

        let mut with_dotfiles = DescriptorDirectory::new(folder);
        assert_eq!(load_limits(&mut with_dotfiles).unwrap().len(), 4, "dot folders are read by default");
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink("..", folder.join("team/back")).unwrap();
            assert!(load_limits(&mut source).unwrap_err().contains("remove symlink cycles"));
        }
    }

    #[tokio::test]
    async fn changes_in_the_folder_are_detected() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("config");
        let mut source = DescriptorDirectory::new(&folder);
        assert!(source.load().is_err());

        fs::create_dir(&folder).unwrap();
        wait_for_change(&mut source).await;
        assert_eq!(load_limits(&mut source), Ok(vec![]));

        // A new file, a changed file, an invalid file, a removed file.
        fs::write(folder.join("a"), config_text("a", "k")).unwrap();
        wait_for_change(&mut source).await;
        assert_eq!(load_limits(&mut source), Ok(vec!["a.k".to_owned()]));
        fs::write(folder.join("a"), config_text("a", "other")).unwrap();
        wait_for_change(&mut source).await;
        assert_eq!(load_limits(&mut source), Ok(vec!["a.other".to_owned()]));
        fs::write(folder.join("b"), "domian: b").unwrap();
        wait_for_change(&mut source).await;
        assert_eq!(load_limits(&mut source), Err("b: config error, unknown key 'domian'".to_owned()));
        fs::remove_file(folder.join("b")).unwrap();
        wait_for_change(&mut source).await;
        assert_eq!(load_limits(&mut source), Ok(vec!["a.other".to_owned()]));
    }

    /// Kubernetes swaps a symlink to a folder; the files are symlinks through it.
    #[cfg(unix)]
    #[tokio::test]
    async fn symlink_swap_is_detected() {
        use std::os::unix::fs::symlink;
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        for (folder, key) in [("..1", "one"), ("..2", "two")] {
            fs::create_dir(root.join(folder)).unwrap();
            fs::write(root.join(folder).join("a.yaml"), config_text("a", key)).unwrap();
        }
        symlink("..1", root.join("..data")).unwrap();
        symlink("..data/a.yaml", root.join("a.yaml")).unwrap();
        let mut source = DescriptorDirectory::new(root);
        assert_eq!(load_limits(&mut source), Ok(vec!["a.one".to_owned()]));
        symlink("..2", root.join("..next")).unwrap();
        fs::rename(root.join("..next"), root.join("..data")).unwrap();
        wait_for_change(&mut source).await;
        assert_eq!(load_limits(&mut source), Ok(vec!["a.two".to_owned()]));
    }
}

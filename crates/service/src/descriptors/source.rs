//! A folder of files as where descriptors come from.
//!
//! Every file in the folder and the folders below it is read, whatever its name ends with, in the order of their names. Folders
//! whose names start with two dots are not: those that Kubernetes keeps beside its links say everything once more.

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

/// More files are a mistake.
const MOST_FILES: usize = 10_000;

/// Folders in folders.
const DEEPEST: usize = 16;

/// What all of them may take.
const MOST_BYTES: usize = 64 * 1024 * 1024;

/// A folder of files of descriptors, which is read again when something in it changes.
///
/// ```no_run
/// # async fn story() -> Result<(), tidegate_service::descriptors::SourceError> {
/// use tidegate_service::descriptors::DescriptorSource;
///
/// let mut source = DescriptorSource::new("/data/ratelimit/config");
/// let mut set = source.load()?;
/// loop {
///     source.changed().await;
///     // LimitKind is wrong is told and counted, and the old set stays.
///     if let Ok(next) = source.load() {
///         set = next;
///     }
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct DescriptorSource {
    folder: PathBuf,
    dotfiles: Dotfiles,
    merge: DomainMerge,
    loads: Arc<LoadCounts>,
    watch: Option<FileWatch>,
}

/// What becomes of files whose names start with a dot (`RUNTIME_IGNOREDOTFILES`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dotfiles {
    /// They are read.
    #[default]
    Read,
    /// They are not looked at.
    Ignore,
}

/// How often descriptors were loaded: `config_load_success` and `config_load_error`.
#[derive(Debug, Default)]
pub struct LoadCounts {
    successes: AtomicU64,
    errors: AtomicU64,
}

/// Why descriptors could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// A file or the folder cannot be read.
    #[error("{path} cannot be read: {source}")]
    Unread {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// They are wrong.
    #[error("{0}")]
    Descriptors(#[source] DescriptorError),
}

impl DescriptorSource {
    /// All files in a folder.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            dotfiles: Dotfiles::default(),
            merge: DomainMerge::default(),
            loads: Arc::default(),
            watch: None,
        }
    }

    /// Whether files with a dot count.
    #[must_use]
    pub fn dotfiles(self, dotfiles: Dotfiles) -> Self {
        Self { dotfiles, ..self }
    }

    /// Whether several files may speak of a domain.
    #[must_use]
    pub fn merge(self, merge: DomainMerge) -> Self {
        Self { merge, ..self }
    }

    /// What is counted of loads, by this source and by whoever else is given it.
    pub fn loads(&self) -> Arc<LoadCounts> {
        self.loads.clone()
    }

    /// Reads all files: all that they say, or the first error, which is counted. Blocks as a disk does.
    pub fn load(&mut self) -> Result<DescriptorSet, SourceError> {
        let files = ReadFiles::default();
        let loaded = self.read(&files);
        match &mut self.watch {
            Some(watch) => watch.follow(&files),
            None => self.watch = Some(FileWatch::of(&files)),
        }
        match &loaded {
            Ok(_) => self.loads.count_success(),
            Err(_) => self.loads.count_error(),
        }
        loaded
    }

    /// Waits until files say something else than was loaded, come or go. What was never loaded has changed. To be used in a
    /// runtime of tokio; nothing is lost if this is given up and called again.
    pub async fn changed(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.changed().await;
        }
    }

    fn read(&self, files: &ReadFiles) -> Result<DescriptorSet, SourceError> {
        let unread = |path: &Path| {
            let path = path.to_owned();
            move |source| SourceError::Unread { path, source }
        };
        let mut names = Vec::new();
        self.list(files, Path::new(""), &mut names)?;
        let (mut read, mut bytes) = (Vec::new(), 0);
        for name in names {
            let path = self.folder.join(&name);
            let text = files.read(&path).map_err(unread(&path))?;
            bytes += text.len();
            if bytes > MOST_BYTES || read.len() >= MOST_FILES {
                let problem = "there are more than 10,000 files or 64 MiB of them; use fewer";
                return Err(unread(&self.folder)(io::Error::other(problem)));
            }
            let text = String::from_utf8(text)
                .map_err(|_| unread(&path)(io::Error::other("it is not UTF-8; save it as UTF-8")))?;
            read.push(DescriptorFile { name: name.to_string_lossy().into_owned(), text });
        }
        DescriptorSet::read(&read, self.merge).map_err(SourceError::Descriptors)
    }

    /// Adds the names of all files in a folder and below it, as they are in the whole folder.
    fn list(&self, files: &ReadFiles, below: &Path, names: &mut Vec<PathBuf>) -> Result<(), SourceError> {
        let folder = if below.as_os_str().is_empty() { self.folder.clone() } else { self.folder.join(below) };
        let unread = |source| SourceError::Unread { path: folder.clone(), source };
        if below.components().count() > DEEPEST {
            let problem = format!("folders are more than {DEEPEST} levels deep; does a link lead back?");
            return Err(unread(io::Error::other(problem)));
        }
        for name in files.list(&folder).map_err(unread)? {
            let text = name.to_string_lossy();
            if text.starts_with('.') && self.dotfiles == Dotfiles::Ignore {
                continue;
            }
            let path = below.join(&name);
            match self.folder.join(&path).is_dir() {
                true if text.starts_with("..") => {}
                true => self.list(files, &path, names)?,
                false => names.push(path),
            }
        }
        Ok(())
    }
}

impl LoadCounts {
    /// How often everything was well.
    pub fn successes(&self) -> u64 {
        self.successes.load(Ordering::Relaxed)
    }

    /// How often something was wrong.
    pub fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// One more that was well.
    pub fn count_success(&self) {
        self.successes.fetch_add(1, Ordering::Relaxed);
    }

    /// One more that was not.
    pub fn count_error(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, time::Duration};

    fn limits(source: &mut DescriptorSource) -> Result<Vec<String>, String> {
        let set = source.load().map_err(|error| error.to_string())?;
        Ok(set.limits().map(|limit| limit.path.to_string()).collect())
    }

    fn file(domain: &str, key: &str) -> String {
        format!("domain: {domain}\ndescriptors: [{{ key: {key}, rate_limit: {{ unit: day }} }}]")
    }

    /// Waits without an end where nothing is told, so that the test is no slower where all is well.
    async fn changed(source: &mut DescriptorSource) {
        tokio::time::timeout(Duration::from_secs(20), source.changed()).await.expect("nothing was told");
    }

    #[test]
    fn every_file_of_a_folder_is_read() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("config");
        let mut source = DescriptorSource::new(&folder);
        let told = limits(&mut source).unwrap_err();
        assert!(told.starts_with(&format!("{} cannot be read: ", folder.display())), "{told}");

        fs::create_dir_all(&folder).unwrap();
        assert_eq!(limits(&mut source), Ok(vec![]));
        fs::write(folder.join("b"), file("b", "k")).unwrap();
        fs::write(folder.join("a.txt"), file("a", "k")).unwrap();
        assert_eq!(limits(&mut source), Ok(vec!["a.k".to_owned(), "b.k".to_owned()]));

        fs::write(folder.join(".b.swp"), file("b", "l")).unwrap();
        assert_eq!(limits(&mut source), Err("b: duplicate domain 'b' in config file".to_owned()));
        let mut joined = DescriptorSource::new(&folder).merge(DomainMerge::Combine);
        assert_eq!(limits(&mut joined).unwrap().len(), 3);
        let mut source = source.dotfiles(Dotfiles::Ignore);
        assert_eq!(limits(&mut source).unwrap().len(), 2);

        fs::write(folder.join("d"), b"domain: \xff").unwrap();
        assert!(
            limits(&mut source).unwrap_err().ends_with("d cannot be read: it is not UTF-8; save it as UTF-8")
        );
        assert_eq!((source.loads().successes(), source.loads().errors()), (3, 3));
    }

    #[tokio::test]
    async fn files_in_subfolders_are_read_and_watched() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path();
        for name in ["team/shop", ".hidden", "..2024"] {
            fs::create_dir_all(folder.join(name)).unwrap();
        }
        fs::write(folder.join("a.yaml"), file("a", "k")).unwrap();
        fs::write(folder.join("team/shop/b.yaml"), file("b", "k")).unwrap();
        fs::write(folder.join(".hidden/c.yaml"), file("c", "k")).unwrap();
        fs::write(folder.join("..2024/a.yaml"), file("a", "k")).unwrap();
        let mut source = DescriptorSource::new(folder).dotfiles(Dotfiles::Ignore);
        assert_eq!(limits(&mut source), Ok(vec!["a.k".to_owned(), "b.k".to_owned()]));

        fs::write(folder.join("team/shop/b.yaml"), file("b", "other")).unwrap();
        changed(&mut source).await;
        assert_eq!(limits(&mut source), Ok(vec!["a.k".to_owned(), "b.other".to_owned()]));
        fs::write(folder.join("team/d.yaml"), "domian: d").unwrap();
        changed(&mut source).await;
        let error = "team/d.yaml: config error, unknown key 'domian'";
        assert_eq!(limits(&mut source), Err(error.to_owned()));
        fs::write(folder.join("team/d.yaml"), file("d", "k")).unwrap();
        changed(&mut source).await;
        assert_eq!(limits(&mut source).unwrap().len(), 3);

        let mut every = DescriptorSource::new(folder);
        assert_eq!(limits(&mut every).unwrap().len(), 4, "dot folders are read unless they are ignored");
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink("..", folder.join("team/back")).unwrap();
            assert!(limits(&mut source).unwrap_err().contains("does a link lead back?"));
        }
    }

    #[tokio::test]
    async fn whatever_changes_in_the_folder_is_told_of() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("config");
        let mut source = DescriptorSource::new(&folder);
        assert!(source.load().is_err());

        fs::create_dir(&folder).unwrap();
        changed(&mut source).await;
        assert_eq!(limits(&mut source), Ok(vec![]));

        // One that comes, one that is written to, one that is wrong, one that goes.
        fs::write(folder.join("a"), file("a", "k")).unwrap();
        changed(&mut source).await;
        assert_eq!(limits(&mut source), Ok(vec!["a.k".to_owned()]));
        fs::write(folder.join("a"), file("a", "other")).unwrap();
        changed(&mut source).await;
        assert_eq!(limits(&mut source), Ok(vec!["a.other".to_owned()]));
        fs::write(folder.join("b"), "domian: b").unwrap();
        changed(&mut source).await;
        assert_eq!(limits(&mut source), Err("b: config error, unknown key 'domian'".to_owned()));
        fs::remove_file(folder.join("b")).unwrap();
        changed(&mut source).await;
        assert_eq!(limits(&mut source), Ok(vec!["a.other".to_owned()]));
    }

    /// As Kubernetes does it: a link to a folder is swapped, and the files are links through it.
    #[cfg(unix)]
    #[tokio::test]
    async fn a_swap_of_links_is_told_of() {
        use std::os::unix::fs::symlink;
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        for (folder, key) in [("..1", "one"), ("..2", "two")] {
            fs::create_dir(root.join(folder)).unwrap();
            fs::write(root.join(folder).join("a.yaml"), file("a", key)).unwrap();
        }
        symlink("..1", root.join("..data")).unwrap();
        symlink("..data/a.yaml", root.join("a.yaml")).unwrap();
        let mut source = DescriptorSource::new(root);
        assert_eq!(limits(&mut source), Ok(vec!["a.one".to_owned()]));
        symlink("..2", root.join("..next")).unwrap();
        fs::rename(root.join("..next"), root.join("..data")).unwrap();
        changed(&mut source).await;
        assert_eq!(limits(&mut source), Ok(vec!["a.two".to_owned()]));
    }
}

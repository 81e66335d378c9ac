//! Word from the system that something stirs where files are.
//!
//! Folders are watched, not files: the one that the file is in, and that of each link on the way to it. What stirs there is
//! not looked into. Where the system tells nothing, nobody ever hears of anything, and files are looked at now and then.

#[cfg(target_os = "linux")]
pub(super) use inotify::Folders;
#[cfg(not(target_os = "linux"))]
pub(super) use silent::Folders;

#[cfg(target_os = "linux")]
mod inotify {
    use rustix::{
        fs::inotify::{self, CreateFlags, WatchFlags},
        io::Errno,
    };
    use std::{
        collections::BTreeSet,
        ffi::OsString,
        fs, io, mem,
        os::fd::OwnedFd,
        path::{Component, Path, PathBuf},
        sync::{Mutex, PoisonError},
    };
    use tokio::io::unix::AsyncFd;

    /// Links on the way to one file; the kernel does not follow more either.
    const MOST_LINKS: usize = 40;

    /// Reads of what is told at one time: a folder in which nothing rests must not keep a thread.
    const MOST_READS: usize = 16;

    #[derive(Debug)]
    pub(in crate::files) struct Folders {
        /// None where the system has none to give.
        inotify: Option<AsyncFd<OwnedFd>>,
        watched: Mutex<Watched>,
    }

    #[derive(Debug, Default)]
    struct Watched {
        descriptors: BTreeSet<i32>,
        /// Whether it was said that a folder cannot be watched.
        told: Told,
    }

    #[derive(Debug, Default, PartialEq, Eq)]
    enum Told {
        #[default]
        No,
        Yes,
    }

    impl Folders {
        #[allow(
            deprecated,
            reason = "its successor is unsafe, for descriptors that come and go; an `OwnedFd` does not"
        )]
        pub(in crate::files) fn open() -> Self {
            let open = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).map_err(io::Error::from);
            let inotify = open.and_then(AsyncFd::new).inspect_err(|error| {
                tracing::warn!(%error, "the system tells of no changes; files are looked at every two seconds");
            });
            Self { inotify: inotify.ok(), watched: Mutex::default() }
        }

        /// Watches the folders of these files as they are now, and no others any more. Blocks as a disk does.
        pub(in crate::files) fn watch(&self, paths: &[PathBuf]) {
            let Some(inotify) = &self.inotify else { return };
            let folders: BTreeSet<_> = paths.iter().flat_map(|path| folders(path)).collect();
            let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
            let mut descriptors = BTreeSet::new();
            // Whatever has the name now: the folder may be another one, and for the same one the descriptor is the same.
            for folder in folders {
                let flags = WatchFlags::ATTRIB
                    | WatchFlags::CLOSE_WRITE
                    | WatchFlags::CREATE
                    | WatchFlags::DELETE
                    | WatchFlags::DELETE_SELF
                    | WatchFlags::MODIFY
                    | WatchFlags::MOVE
                    | WatchFlags::MOVE_SELF
                    | WatchFlags::ONLYDIR;
                match inotify::add_watch(inotify, &folder, flags) {
                    Ok(descriptor) => {
                        descriptors.insert(descriptor);
                    }
                    // It was there a moment ago, and will be looked for again.
                    Err(Errno::NOENT | Errno::NOTDIR) => {}
                    Err(error) if watched.told == Told::No => {
                        watched.told = Told::Yes;
                        let folder = folder.display();
                        tracing::warn!(%folder, %error, "cannot be watched; it is looked at every two seconds");
                    }
                    Err(_) => {}
                }
            }
            for gone in watched.descriptors.difference(&descriptors) {
                // The folder may be gone, and its watch with it.
                let _ = inotify::remove_watch(inotify, *gone);
            }
            watched.descriptors = descriptors;
        }

        /// Waits until something stirs.
        pub(in crate::files) async fn stirred(&self) {
            let Some(inotify) = &self.inotify else { return std::future::pending().await };
            match inotify.readable().await {
                Ok(mut ready) => {
                    if let Drained::All = drain(inotify) {
                        ready.clear_ready();
                    }
                }
                // The runtime is going down.
                Err(_) => std::future::pending().await,
            }
        }
    }

    enum Drained {
        All,
        Some,
    }

    fn drain(inotify: &AsyncFd<OwnedFd>) -> Drained {
        let mut buffer = [mem::MaybeUninit::uninit(); 4096];
        for _ in 0..MOST_READS {
            if rustix::io::read(inotify, &mut buffer).is_err() {
                return Drained::All;
            }
        }
        Drained::Some
    }

    /// The folders in which a path, or a link on its way, has a name. Where it ends early, the last that is there.
    fn folders(path: &Path) -> BTreeSet<PathBuf> {
        let mut folders = BTreeSet::new();
        let Ok(path) = std::path::absolute(path) else { return folders };
        let mut links = 0;
        let mut here = PathBuf::new();
        let mut ahead: Vec<Part> = parts(&path);
        while let Some(part) = ahead.pop() {
            let name = match part {
                Part::Root => {
                    here = PathBuf::from("/");
                    continue;
                }
                Part::Up => {
                    here.pop();
                    continue;
                }
                Part::Name(name) => name,
            };
            let next = here.join(name);
            match fs::read_link(&next) {
                Ok(target) => {
                    folders.insert(here.clone());
                    links += 1;
                    if links > MOST_LINKS {
                        return folders;
                    }
                    ahead.extend(parts(&target));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound || ahead.is_empty() => {
                    folders.insert(here);
                    return folders;
                }
                Err(_) => here = next,
            }
        }
        folders
    }

    enum Part {
        Root,
        Up,
        Name(OsString),
    }

    /// The parts of a path, the first one last.
    fn parts(path: &Path) -> Vec<Part> {
        let part = |component| match component {
            Component::Prefix(_) | Component::CurDir => None,
            Component::RootDir => Some(Part::Root),
            Component::ParentDir => Some(Part::Up),
            Component::Normal(name) => Some(Part::Name(name.to_owned())),
        };
        path.components().rev().filter_map(part).collect()
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use std::os::unix::fs::symlink;

        /// Waits without an end where the system says nothing, so that the test is no slower where all is well.
        async fn heard(folders: &Folders) {
            let stirred = folders.stirred();
            tokio::time::timeout(std::time::Duration::from_secs(20), stirred)
                .await
                .expect("nothing was told");
        }

        #[tokio::test]
        async fn the_system_tells_when_something_stirs() {
            let root = tempfile::tempdir().unwrap();
            let path = root.path().join("policy.yaml");
            let other = root.path().join("other.yaml");
            let folders = Folders::open();
            folders.watch(&[path.clone(), root.path().join("no/such/list.txt")]);

            fs::write(&path, "one").unwrap();
            heard(&folders).await;
            fs::write(&path, "two").unwrap();
            heard(&folders).await;
            fs::write(&other, "three").unwrap();
            heard(&folders).await;
            fs::rename(&other, &path).unwrap();
            heard(&folders).await;
            fs::remove_file(&path).unwrap();
            heard(&folders).await;

            // A folder that comes is watched from the next look on.
            fs::create_dir_all(root.path().join("no/such")).unwrap();
            heard(&folders).await;
            folders.watch(&[root.path().join("no/such/list.txt")]);
            while tokio::time::timeout(std::time::Duration::ZERO, folders.stirred()).await.is_ok() {}
            fs::write(root.path().join("no/such/list.txt"), "192.0.2.0/24").unwrap();
            heard(&folders).await;
        }

        #[test]
        fn every_folder_on_the_way_to_a_file_is_watched() {
            let root = tempfile::tempdir().unwrap();
            let root = fs::canonicalize(root.path()).unwrap();
            for folder in ["mount/..1", "elsewhere", "plain"] {
                fs::create_dir_all(root.join(folder)).unwrap();
            }
            for file in ["mount/..1/policy.yaml", "plain/policy.yaml"] {
                fs::write(root.join(file), "").unwrap();
            }
            symlink("..1", root.join("mount/..data")).unwrap();
            symlink("..data/policy.yaml", root.join("mount/policy.yaml")).unwrap();
            symlink(root.join("mount/policy.yaml"), root.join("elsewhere/link.yaml")).unwrap();
            symlink("loop", root.join("plain/loop")).unwrap();

            let table: [(&str, &[&str]); 7] = [
                ("plain/policy.yaml", &["plain"]),
                ("plain/../plain/policy.yaml", &["plain"]),
                ("plain/missing.yaml", &["plain"]),
                ("plain/no/such/folder.yaml", &["plain"]),
                ("mount/policy.yaml", &["mount", "mount/..1"]),
                ("elsewhere/link.yaml", &["elsewhere", "mount", "mount/..1"]),
                ("plain/loop", &["plain"]),
            ];
            for (path, expected) in table {
                let expected = expected.iter().map(|folder| root.join(folder)).collect();
                assert_eq!(folders(&root.join(path)), expected, "{path}");
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod silent {
    use std::path::PathBuf;

    #[derive(Debug)]
    pub(in crate::files) struct Folders;

    impl Folders {
        pub(in crate::files) fn open() -> Self {
            Self
        }

        #[allow(clippy::unused_self, reason = "as where the system tells of changes")]
        pub(in crate::files) fn watch(&self, _: &[PathBuf]) {}

        pub(in crate::files) async fn stirred(&self) {
            std::future::pending().await
        }
    }
}

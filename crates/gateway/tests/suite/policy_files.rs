//! The file watch, with every way to replace a file.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};
use tempfile::TempDir;
use tidegate_http_server::{FileWatch, ReadFiles};
use tidegate_policy::FileSource as _;
use tokio::time;

/// A directory with a policy file, and its watch.
struct WatchedFile {
    folder: TempDir,
    path: PathBuf,
    watch: FileWatch,
}

impl WatchedFile {
    fn new(prepare: impl FnOnce(&Path)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        prepare(folder.path());
        let path = folder.path().join("policy.yaml");
        let watch = FileWatch::new(&read(&[&path]));
        Self { folder, path, watch }
    }

    fn with_file() -> Self {
        Self::new(|folder| fs::write(folder.join("policy.yaml"), "old").unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn wait_changed(&mut self) {
        time::timeout(Duration::from_secs(30), self.watch.changed())
            .await
            .expect("the change was not reported");
    }

    /// Waits for the change, and checks the content of the file.
    async fn assert_becomes(&mut self, text: &str) {
        self.wait_changed().await;
        assert_eq!(fs::read_to_string(&self.path).unwrap(), text);
        self.watch.watch(&read(&[&self.path]));
    }
}

fn read(paths: &[&Path]) -> ReadFiles {
    let files = ReadFiles::default();
    for path in paths {
        // The file may not exist yet.
        let _ = files.read(path);
    }
    files
}

#[tokio::test]
async fn file_written_in_place_is_detected() {
    let mut watched = WatchedFile::with_file();
    fs::write(&watched.path, "new").unwrap();
    watched.assert_becomes("new").await;
    fs::File::options().append(true).open(&watched.path).unwrap().write_all(b"er").unwrap();
    watched.assert_becomes("newer").await;
}

#[tokio::test]
async fn replaced_file_is_detected() {
    let mut watched = WatchedFile::with_file();
    for text in ["new", "newer", "newest"] {
        fs::write(watched.path(".policy.yaml.tmp"), text).unwrap();
        fs::rename(watched.path(".policy.yaml.tmp"), &watched.path).unwrap();
        watched.assert_becomes(text).await;
    }
}

#[tokio::test]
async fn vim_style_save_is_detected() {
    let mut watched = WatchedFile::with_file();
    for text in ["new", "newer"] {
        fs::rename(&watched.path, watched.path("policy.yaml~")).unwrap();
        fs::write(&watched.path, text).unwrap();
        fs::remove_file(watched.path("policy.yaml~")).unwrap();
        watched.assert_becomes(text).await;
    }
}

#[tokio::test]
async fn removed_and_recreated_file_is_detected() {
    let mut watched = WatchedFile::with_file();
    fs::remove_file(&watched.path).unwrap();
    fs::write(&watched.path, "new").unwrap();
    watched.assert_becomes("new").await;

    fs::remove_file(&watched.path).unwrap();
    watched.wait_changed().await;
    assert!(!watched.path.exists());
    fs::write(&watched.path, "newer").unwrap();
    watched.assert_becomes("newer").await;
}

#[tokio::test]
async fn created_file_is_detected() {
    let mut watched = WatchedFile::new(|_| {});
    fs::write(&watched.path, "first").unwrap();
    watched.assert_becomes("first").await;

    let path = watched.path("conf/d/lists/bots.txt");
    watched.path = path;
    watched.watch.watch(&read(&[&watched.path]));
    fs::create_dir_all(watched.path.parent().unwrap()).unwrap();
    fs::write(&watched.path, "192.0.2.0/24").unwrap();
    watched.assert_becomes("192.0.2.0/24").await;
}

#[tokio::test]
async fn replaced_folder_is_detected() {
    let mut watched = WatchedFile::new(|folder| fs::create_dir(folder.join("conf")).unwrap());
    watched.path = watched.path("conf/policy.yaml");
    fs::write(&watched.path, "old").unwrap();
    watched.watch.watch(&read(&[&watched.path]));
    for text in ["new", "newer"] {
        fs::create_dir(watched.path("next")).unwrap();
        fs::write(watched.path("next/policy.yaml"), text).unwrap();
        fs::rename(watched.path("conf"), watched.path(text)).unwrap();
        fs::rename(watched.path("next"), watched.path("conf")).unwrap();
        watched.assert_becomes(text).await;
    }
}

/// `policy.yaml -> ..data/policy.yaml`, `..data -> ..2026_01`: a new directory is written, and one link is swapped.
#[cfg(unix)]
#[tokio::test]
async fn kubernetes_symlink_swap_is_detected() {
    use std::os::unix::fs::symlink;
    fn write_version(folder: &Path, name: &str, text: &str) {
        fs::create_dir(folder.join(name)).unwrap();
        fs::write(folder.join(name).join("policy.yaml"), text).unwrap();
        symlink(name, folder.join("..data_tmp")).unwrap();
        fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
    }
    let mut watched = WatchedFile::new(|folder| {
        write_version(folder, "..2026_01", "january");
        symlink("..data/policy.yaml", folder.join("policy.yaml")).unwrap();
    });
    for (name, text, old) in [("..2026_02", "february", "..2026_01"), ("..2026_03", "march", "..2026_02")] {
        write_version(watched.folder.path(), name, text);
        fs::remove_dir_all(watched.path(old)).unwrap();
        watched.assert_becomes(text).await;
    }
}

#[tokio::test]
async fn change_of_one_of_many_files_is_detected() {
    let mut watched = WatchedFile::with_file();
    let list = watched.path("bots.txt");
    fs::write(&list, "192.0.2.1").unwrap();
    watched.watch.watch(&read(&[&watched.path, &list]));
    fs::write(&list, "192.0.2.2").unwrap();
    watched.wait_changed().await;

    // The list is no longer watched, so only the policy counts as a change.
    watched.watch.watch(&read(&[&watched.path]));
    fs::write(&list, "192.0.2.3").unwrap();
    fs::write(&watched.path, "new").unwrap();
    watched.assert_becomes("new").await;
}

#[tokio::test]
async fn cancelled_wait_loses_no_change() {
    let mut watched = WatchedFile::with_file();
    fs::write(&watched.path, "new").unwrap();
    let mut given_up = 0;
    let patience = Duration::from_millis(20);
    while time::timeout(patience, watched.watch.changed()).await.is_err() {
        given_up += 1;
        assert!(given_up < 1_500, "the change was not reported");
    }
    assert!(given_up > 0, "it settled before the wait was canceled");
}

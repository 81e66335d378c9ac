//! Files of a policy that are replaced in every way in which files are replaced.

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

/// A folder with a file of a policy, and whoever watches it.
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
            .expect("nobody told of the change");
    }

    /// Waits for the change, and sees that the file says this.
    async fn assert_becomes(&mut self, text: &str) {
        self.wait_changed().await;
        assert_eq!(fs::read_to_string(&self.path).unwrap(), text);
        self.watch.watch(&read(&[&self.path]));
    }
}

fn read(paths: &[&Path]) -> ReadFiles {
    let files = ReadFiles::default();
    for path in paths {
        // It may be that there is none yet.
        let _ = files.read(path);
    }
    files
}

#[tokio::test]
async fn file_written_in_place_is_detected() {
    let mut story = WatchedFile::with_file();
    fs::write(&story.path, "new").unwrap();
    story.assert_becomes("new").await;
    fs::File::options().append(true).open(&story.path).unwrap().write_all(b"er").unwrap();
    story.assert_becomes("newer").await;
}

#[tokio::test]
async fn replaced_file_is_detected() {
    let mut story = WatchedFile::with_file();
    for text in ["new", "newer", "newest"] {
        fs::write(story.path(".policy.yaml.tmp"), text).unwrap();
        fs::rename(story.path(".policy.yaml.tmp"), &story.path).unwrap();
        story.assert_becomes(text).await;
    }
}

#[tokio::test]
async fn vim_style_save_is_detected() {
    let mut story = WatchedFile::with_file();
    for text in ["new", "newer"] {
        fs::rename(&story.path, story.path("policy.yaml~")).unwrap();
        fs::write(&story.path, text).unwrap();
        fs::remove_file(story.path("policy.yaml~")).unwrap();
        story.assert_becomes(text).await;
    }
}

#[tokio::test]
async fn removed_and_recreated_file_is_detected() {
    let mut story = WatchedFile::with_file();
    fs::remove_file(&story.path).unwrap();
    fs::write(&story.path, "new").unwrap();
    story.assert_becomes("new").await;

    fs::remove_file(&story.path).unwrap();
    story.wait_changed().await;
    assert!(!story.path.exists());
    fs::write(&story.path, "newer").unwrap();
    story.assert_becomes("newer").await;
}

#[tokio::test]
async fn created_file_is_detected() {
    let mut story = WatchedFile::new(|_| {});
    fs::write(&story.path, "first").unwrap();
    story.assert_becomes("first").await;

    let path = story.path("conf/d/lists/bots.txt");
    story.path = path;
    story.watch.watch(&read(&[&story.path]));
    fs::create_dir_all(story.path.parent().unwrap()).unwrap();
    fs::write(&story.path, "192.0.2.0/24").unwrap();
    story.assert_becomes("192.0.2.0/24").await;
}

#[tokio::test]
async fn replaced_folder_is_detected() {
    let mut story = WatchedFile::new(|folder| fs::create_dir(folder.join("conf")).unwrap());
    story.path = story.path("conf/policy.yaml");
    fs::write(&story.path, "old").unwrap();
    story.watch.watch(&read(&[&story.path]));
    for text in ["new", "newer"] {
        fs::create_dir(story.path("next")).unwrap();
        fs::write(story.path("next/policy.yaml"), text).unwrap();
        fs::rename(story.path("conf"), story.path(text)).unwrap();
        fs::rename(story.path("next"), story.path("conf")).unwrap();
        story.assert_becomes(text).await;
    }
}

/// `policy.yaml -> ..data/policy.yaml`, `..data -> ..2026_01`: a new folder is written, and one link swapped.
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
    let mut story = WatchedFile::new(|folder| {
        write_version(folder, "..2026_01", "january");
        symlink("..data/policy.yaml", folder.join("policy.yaml")).unwrap();
    });
    for (name, text, old) in [("..2026_02", "february", "..2026_01"), ("..2026_03", "march", "..2026_02")] {
        write_version(story.folder.path(), name, text);
        fs::remove_dir_all(story.path(old)).unwrap();
        story.assert_becomes(text).await;
    }
}

#[tokio::test]
async fn change_of_one_of_many_files_is_detected() {
    let mut story = WatchedFile::with_file();
    let list = story.path("bots.txt");
    fs::write(&list, "192.0.2.1").unwrap();
    story.watch.watch(&read(&[&story.path, &list]));
    fs::write(&list, "192.0.2.2").unwrap();
    story.wait_changed().await;

    // The list is no longer part of the policy, so the only change is that of the policy.
    story.watch.watch(&read(&[&story.path]));
    fs::write(&list, "192.0.2.3").unwrap();
    fs::write(&story.path, "new").unwrap();
    story.assert_becomes("new").await;
}

#[tokio::test]
async fn cancelled_wait_loses_no_change() {
    let mut story = WatchedFile::with_file();
    fs::write(&story.path, "new").unwrap();
    let mut given_up = 0;
    let patience = Duration::from_millis(20);
    while time::timeout(patience, story.watch.changed()).await.is_err() {
        given_up += 1;
        assert!(given_up < 1_500, "nobody told of the change");
    }
    assert!(given_up > 0, "it settled before anybody could give up");
}

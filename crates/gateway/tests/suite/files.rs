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
struct Story {
    folder: TempDir,
    path: PathBuf,
    watch: FileWatch,
}

impl Story {
    fn of(prepare: impl FnOnce(&Path)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        prepare(folder.path());
        let path = folder.path().join("policy.yaml");
        let watch = FileWatch::of(&read(&[&path]));
        Self { folder, path, watch }
    }

    fn with_file() -> Self {
        Self::of(|folder| fs::write(folder.join("policy.yaml"), "old").unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn changed(&mut self) {
        time::timeout(Duration::from_secs(30), self.watch.changed())
            .await
            .expect("nobody told of the change");
    }

    /// Waits for the change, and sees that the file says this.
    async fn becomes(&mut self, text: &str) {
        self.changed().await;
        assert_eq!(fs::read_to_string(&self.path).unwrap(), text);
        self.watch.follow(&read(&[&self.path]));
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
async fn written_in_place() {
    let mut story = Story::with_file();
    fs::write(&story.path, "new").unwrap();
    story.becomes("new").await;
    fs::File::options().append(true).open(&story.path).unwrap().write_all(b"er").unwrap();
    story.becomes("newer").await;
}

#[tokio::test]
async fn replaced_by_another() {
    let mut story = Story::with_file();
    for text in ["new", "newer", "newest"] {
        fs::write(story.at(".policy.yaml.tmp"), text).unwrap();
        fs::rename(story.at(".policy.yaml.tmp"), &story.path).unwrap();
        story.becomes(text).await;
    }
}

#[tokio::test]
async fn moved_aside_and_written_anew_as_vim_does() {
    let mut story = Story::with_file();
    for text in ["new", "newer"] {
        fs::rename(&story.path, story.at("policy.yaml~")).unwrap();
        fs::write(&story.path, text).unwrap();
        fs::remove_file(story.at("policy.yaml~")).unwrap();
        story.becomes(text).await;
    }
}

#[tokio::test]
async fn removed_and_made_anew() {
    let mut story = Story::with_file();
    fs::remove_file(&story.path).unwrap();
    fs::write(&story.path, "new").unwrap();
    story.becomes("new").await;

    fs::remove_file(&story.path).unwrap();
    story.changed().await;
    assert!(!story.path.exists());
    fs::write(&story.path, "newer").unwrap();
    story.becomes("newer").await;
}

#[tokio::test]
async fn not_there_yet() {
    let mut story = Story::of(|_| {});
    fs::write(&story.path, "first").unwrap();
    story.becomes("first").await;

    let path = story.at("conf/d/lists/bots.txt");
    story.path = path;
    story.watch.follow(&read(&[&story.path]));
    fs::create_dir_all(story.path.parent().unwrap()).unwrap();
    fs::write(&story.path, "192.0.2.0/24").unwrap();
    story.becomes("192.0.2.0/24").await;
}

#[tokio::test]
async fn its_folder_replaced_by_another() {
    let mut story = Story::of(|folder| fs::create_dir(folder.join("conf")).unwrap());
    story.path = story.at("conf/policy.yaml");
    fs::write(&story.path, "old").unwrap();
    story.watch.follow(&read(&[&story.path]));
    for text in ["new", "newer"] {
        fs::create_dir(story.at("next")).unwrap();
        fs::write(story.at("next/policy.yaml"), text).unwrap();
        fs::rename(story.at("conf"), story.at(text)).unwrap();
        fs::rename(story.at("next"), story.at("conf")).unwrap();
        story.becomes(text).await;
    }
}

/// `policy.yaml -> ..data/policy.yaml`, `..data -> ..2026_01`: a new folder is written, and one link swapped.
#[cfg(unix)]
#[tokio::test]
async fn swapped_by_kubernetes() {
    use std::os::unix::fs::symlink;
    fn version(folder: &Path, name: &str, text: &str) {
        fs::create_dir(folder.join(name)).unwrap();
        fs::write(folder.join(name).join("policy.yaml"), text).unwrap();
        symlink(name, folder.join("..data_tmp")).unwrap();
        fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
    }
    let mut story = Story::of(|folder| {
        version(folder, "..2026_01", "january");
        symlink("..data/policy.yaml", folder.join("policy.yaml")).unwrap();
    });
    for (name, text, old) in [("..2026_02", "february", "..2026_01"), ("..2026_03", "march", "..2026_02")] {
        version(story.folder.path(), name, text);
        fs::remove_dir_all(story.at(old)).unwrap();
        story.becomes(text).await;
    }
}

#[tokio::test]
async fn one_of_many_and_those_that_come_and_go() {
    let mut story = Story::with_file();
    let list = story.at("bots.txt");
    fs::write(&list, "192.0.2.1").unwrap();
    story.watch.follow(&read(&[&story.path, &list]));
    fs::write(&list, "192.0.2.2").unwrap();
    story.changed().await;

    // The list is no longer part of the policy, so the only change is that of the policy.
    story.watch.follow(&read(&[&story.path]));
    fs::write(&list, "192.0.2.3").unwrap();
    fs::write(&story.path, "new").unwrap();
    story.becomes("new").await;
}

#[tokio::test]
async fn given_up_and_asked_again_nothing_is_lost() {
    let mut story = Story::with_file();
    fs::write(&story.path, "new").unwrap();
    let mut given_up = 0;
    let patience = Duration::from_millis(20);
    while time::timeout(patience, story.watch.changed()).await.is_err() {
        given_up += 1;
        assert!(given_up < 1_500, "nobody told of the change");
    }
    assert!(given_up > 0, "it settled before anybody could give up");
}

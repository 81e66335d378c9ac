//! Where the limits of this process are written: its cgroup and those around it.
//!
//! ```text
//!   version 2        /sys/fs/cgroup/app/worker
//!   version 1        /sys/fs/cgroup/memory/app/worker, /sys/fs/cgroup/cpu,cpuacct/app/worker
//!   both             version 1, and version 2 at /sys/fs/cgroup/unified
//! ```
//!
//! A container often sees its own cgroup as the root of the mount while the path names it as the host does; a folder
//! that is not there is left out, and the root always is.

use super::host::{Host, text};
use std::path::{Component, Path, PathBuf};

/// A cgroup of this process: its own, or one around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Folder {
    pub(super) path: PathBuf,
    /// Below the mount.
    pub(super) within: PathBuf,
    pub(super) version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    One,
    Two,
}

/// The folders that a controller of this process has, the innermost first: those of version 1 where it is in use there,
/// else those of version 2.
pub(super) fn folders(host: &Host, controller: &str) -> Vec<Folder> {
    let Some(memberships) = text(host.proc("self/cgroup")) else { return Vec::new() };
    let first = memberships.lines().find_map(|line| {
        let (_, names, path) = split(line)?;
        let mount =
            names.split(',').any(|name| name == controller).then(|| mount_of(host, names, controller))?;
        Some(ancestors(&mount?, path, Version::One))
    });
    first.unwrap_or_else(|| of_version_two(host, &memberships))
}

/// The folders of version 2, the innermost first.
pub(super) fn unified(host: &Host) -> Vec<Folder> {
    text(host.proc("self/cgroup")).map_or_else(Vec::new, |memberships| of_version_two(host, &memberships))
}

/// The folder of another controller of version 1 that mirrors this one.
pub(super) fn beside(host: &Host, folder: &Folder, controller: &str) -> Option<PathBuf> {
    let mount = mount_of(host, "cpu,cpuacct", controller)?;
    Some(mount.join(&folder.within)).filter(|path| path.is_dir())
}

fn of_version_two(host: &Host, memberships: &str) -> Vec<Folder> {
    let path = memberships.lines().find_map(|line| match split(line)? {
        ("0", "", path) => Some(path),
        _ => None,
    });
    let mounts = [host.cgroup().to_path_buf(), host.cgroup().join("unified")];
    let mount = mounts.into_iter().find(|mount| mount.join("cgroup.controllers").is_file());
    match (path, mount) {
        (Some(path), Some(mount)) => ancestors(&mount, path, Version::Two),
        _ => Vec::new(),
    }
}

/// `4:memory:/app/worker`; a path may hold colons.
fn split(line: &str) -> Option<(&str, &str, &str)> {
    let mut parts = line.splitn(3, ':');
    Some((parts.next()?, parts.next()?, parts.next()?))
}

/// Controllers of version 1 that are mounted together have one folder with all their names.
fn mount_of(host: &Host, names: &str, controller: &str) -> Option<PathBuf> {
    let swapped = names.split(',').rev().collect::<Vec<_>>().join(",");
    let mounts = [controller, names, &swapped].map(|name| host.cgroup().join(name));
    mounts.into_iter().find(|mount| mount.is_dir())
}

fn ancestors(mount: &Path, path: &str, version: Version) -> Vec<Folder> {
    let parts = Path::new(path).components().filter(|part| *part != Component::RootDir);
    let parts: Vec<_> = parts.collect();
    // A path that leads out of what is mounted here: only the root can be seen.
    let depth = if parts.iter().all(|part| matches!(part, Component::Normal(_))) { parts.len() } else { 0 };
    let folders = (0..=depth).rev().map(|depth| {
        let within: PathBuf = parts.iter().take(depth).collect();
        let path = if depth == 0 { mount.to_path_buf() } else { mount.join(&within) };
        Folder { path, within, version }
    });
    folders.filter(|folder| folder.path.is_dir()).collect()
}

//! Finds the cgroup of this process and its ancestors, which contain its limits.
//!
//! ```text
//!   version 2        /sys/fs/cgroup/app/worker
//!   version 1        /sys/fs/cgroup/memory/app/worker, /sys/fs/cgroup/cpu,cpuacct/app/worker
//!   both             version 1, and version 2 at /sys/fs/cgroup/unified
//! ```
//!
//! A container often sees its own cgroup as the root of the mount, while the path is that of the host.
//! Directories that do not exist are skipped; the root always exists.

use super::host::{HostPaths, read_text};
use std::path::{Component, Path, PathBuf};

/// A cgroup of this process, or an ancestor of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CgroupDir {
    pub(super) path: PathBuf,
    /// Relative to the mount.
    pub(super) relative_path: PathBuf,
    pub(super) version: CgroupVersion,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CgroupVersion {
    V1,
    V2,
}

/// The directories of a controller of this process, innermost first: those of version 1 if the controller is
/// mounted there, otherwise those of version 2.
pub(super) fn find_dirs(host: &HostPaths, controller: &str) -> Vec<CgroupDir> {
    let Some(memberships) = read_text(host.proc("self/cgroup")) else { return Vec::new() };
    let first = memberships.lines().find_map(|line| {
        let (_, names, path) = parse_membership(line)?;
        let mount =
            names.split(',').any(|name| name == controller).then(|| find_mount(host, names, controller))?;
        Some(ancestors(&mount?, path, CgroupVersion::V1))
    });
    first.unwrap_or_else(|| find_v2_dirs(host, &memberships))
}

/// The directories of version 2, innermost first.
pub(super) fn find_unified_dirs(host: &HostPaths) -> Vec<CgroupDir> {
    read_text(host.proc("self/cgroup")).map_or_else(Vec::new, |memberships| find_v2_dirs(host, &memberships))
}

/// The directory of another version 1 controller for the same cgroup.
pub(super) fn find_sibling_dir(host: &HostPaths, folder: &CgroupDir, controller: &str) -> Option<PathBuf> {
    let mount = find_mount(host, "cpu,cpuacct", controller)?;
    Some(mount.join(&folder.relative_path)).filter(|path| path.is_dir())
}

fn find_v2_dirs(host: &HostPaths, memberships: &str) -> Vec<CgroupDir> {
    let path = memberships.lines().find_map(|line| match parse_membership(line)? {
        ("0", "", path) => Some(path),
        _ => None,
    });
    let mounts = [host.cgroup().to_path_buf(), host.cgroup().join("unified")];
    let mount = mounts.into_iter().find(|mount| mount.join("cgroup.controllers").is_file());
    match (path, mount) {
        (Some(path), Some(mount)) => ancestors(&mount, path, CgroupVersion::V2),
        _ => Vec::new(),
    }
}

/// Parses `4:memory:/app/worker`; the path may contain colons.
fn parse_membership(line: &str) -> Option<(&str, &str, &str)> {
    let mut parts = line.splitn(3, ':');
    Some((parts.next()?, parts.next()?, parts.next()?))
}

/// Version 1 controllers that are mounted together share a directory named after all of them.
fn find_mount(host: &HostPaths, names: &str, controller: &str) -> Option<PathBuf> {
    let swapped = names.split(',').rev().collect::<Vec<_>>().join(",");
    let mounts = [controller, names, &swapped].map(|name| host.cgroup().join(name));
    mounts.into_iter().find(|mount| mount.is_dir())
}

fn ancestors(mount: &Path, path: &str, version: CgroupVersion) -> Vec<CgroupDir> {
    let parts = Path::new(path).components().filter(|part| *part != Component::RootDir);
    let parts: Vec<_> = parts.collect();
    // The path leads out of the mount: only the root is visible.
    let depth = if parts.iter().all(|part| matches!(part, Component::Normal(_))) { parts.len() } else { 0 };
    let folders = (0..=depth).rev().map(|depth| {
        let within: PathBuf = parts.iter().take(depth).collect();
        let path = if depth == 0 { mount.to_path_buf() } else { mount.join(&within) };
        CgroupDir { path, relative_path: within, version }
    });
    folders.filter(|folder| folder.path.is_dir()).collect()
}

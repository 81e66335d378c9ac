//! A process that cannot outlive the test.

use super::wait::wait_until;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::{
    io,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
};

/// A running server, killed when this is dropped.
///
/// Where nothing is dropped (the test is killed or aborts, or the server is in a `static`), a guard does the same: a
/// shell that reads from a pipe until the test's process is gone.
#[derive(Debug)]
pub(super) struct ServerProcess {
    child: Child,
    guard: Child,
    pid: Pid,
}

/// Kills only who works in the server's directory: its number may have gone to another.
const GUARD_SCRIPT: &str = r#"read -r _; [ "/proc/$1/cwd" -ef "$2" ] && kill -9 "$1"; rm -rf "$2""#;

impl ServerProcess {
    /// Starts a process that works in `directory`, which is its own.
    pub(super) fn start(command: &mut Command, directory: &Path) -> io::Result<Self> {
        let mut child = command.current_dir(directory).stdin(Stdio::null()).spawn()?;
        let pid = Pid::from_child(&child);
        // In a group of its own it outlives a signal to the whole group, such as that of a time limit.
        let guard = Command::new("sh")
            .process_group(0)
            .args(["-c", GUARD_SCRIPT, "guard", &child.id().to_string()])
            .arg(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match guard {
            Ok(guard) => Ok(Self { child, guard, pid }),
            Err(error) => {
                child.kill().and_then(|()| child.wait())?;
                Err(error)
            }
        }
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it did by itself.
    pub(super) fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Stops it in its tracks, its connections still open; returns when it stands still.
    pub(super) fn pause(&self) -> io::Result<()> {
        kill_process(self.pid, Signal::STOP)?;
        let stood = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(self.pid), stood)?;
        Ok(())
    }

    /// Lets it go on.
    pub(super) fn resume(&self) -> io::Result<()> {
        Ok(kill_process(self.pid, Signal::CONT)?)
    }

    /// Asks it to end until it does: a server that writes its first file to disk says no.
    pub(super) fn terminate(mut self) -> Result<(), String> {
        self.resume().map_err(|error| error.to_string())?;
        wait_until("the server ends", || {
            kill_process(self.pid, Signal::TERM).map_err(|error| error.to_string())?;
            self.exit_status().map(drop).ok_or("it goes on".into())
        })
    }
}

/// The guard goes before the child is waited for: until then nobody else can have the child's number.
impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.guard.kill().and_then(|()| self.guard.wait());
        let _ = self.child.wait();
    }
}

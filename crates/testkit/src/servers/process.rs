//! A child process that does not outlive the test.

use super::wait::wait_until;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::{
    io,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
};

/// A running server, killed on drop.
///
/// If nothing is dropped (the test is killed or aborts, or the server is in a `static`), a guard kills it: a shell that
/// reads from a pipe until the test process has exited.
#[derive(Debug)]
pub(super) struct ServerProcess {
    child: Child,
    guard: Child,
    pid: Pid,
}

/// Kills the process only if it works in the server's directory, because its pid may have been reused.
const GUARD_SCRIPT: &str = r#"read -r _; [ "/proc/$1/cwd" -ef "$2" ] && kill -9 "$1"; rm -rf "$2""#;

impl ServerProcess {
    /// Starts a process in `directory`, which the guard deletes.
    pub(super) fn start(command: &mut Command, directory: &Path) -> io::Result<Self> {
        let mut child = command.current_dir(directory).stdin(Stdio::null()).spawn()?;
        let pid = Pid::from_child(&child);
        // Its own process group, so that a signal to the test's group, for example of a timeout, does not kill it.
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

    /// The exit status, if it has exited.
    pub(super) fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Stops it with `SIGSTOP`, with its connections open; returns when it has stopped.
    pub(super) fn pause(&self) -> io::Result<()> {
        kill_process(self.pid, Signal::STOP)?;
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(self.pid), stopped)?;
        Ok(())
    }

    /// Continues it with `SIGCONT`.
    pub(super) fn resume(&self) -> io::Result<()> {
        Ok(kill_process(self.pid, Signal::CONT)?)
    }

    /// Sends `SIGTERM` until it exits: a server ignores it while it writes its first file to disk.
    pub(super) fn terminate(mut self) -> Result<(), String> {
        self.resume().map_err(|error| error.to_string())?;
        wait_until("the server exits", || {
            kill_process(self.pid, Signal::TERM).map_err(|error| error.to_string())?;
            self.exit_status().map(drop).ok_or("still running".into())
        })
    }
}

/// Ends the guard before it reaps the child, because until then the child's pid cannot be reused.
impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.guard.kill().and_then(|()| self.guard.wait());
        let _ = self.child.wait();
    }
}

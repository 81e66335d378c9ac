//! Test helpers: the binary as a rate limit service, and curl.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
};
use tidegate_testkit::servers::wait_until;

/// The rate limit service on free ports. Dropping it kills the process.
pub(crate) struct ServiceProcess {
    child: Child,
    pub(crate) grpc: String,
    pub(crate) json: String,
    pub(crate) debug: String,
}

impl ServiceProcess {
    pub(crate) fn start(folder: &Path, more: &[(&str, &str)]) -> Self {
        let mut child =
            serve_command(folder, more).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut address = |name: &str| {
            let line = lines.next().unwrap().unwrap();
            line.strip_prefix(name).unwrap_or_else(|| panic!("{line}")).trim().to_owned()
        };
        let (grpc, json, debug) = (address("gRPC"), address("JSON"), address("pages"));
        Self { child, grpc, json, debug }
    }

    /// Sends a request over JSON. Returns the status.
    pub(crate) fn check(&self, entries: &[(&str, &str)]) -> String {
        let entry = |(key, value): &(&str, &str)| format!(r#"{{"key":"{key}","value":"{value}"}}"#);
        let entries: Vec<_> = entries.iter().map(entry).collect();
        let body = format!(r#"{{"domain":"shop","descriptors":[{{"entries":[{}]}}]}}"#, entries.join(","));
        run_curl(&["-d", &body, "-o", "/dev/null", "-w", "%{http_code}", &self.json])
    }

    /// Waits until the store is reachable.
    pub(crate) fn wait_until_healthy(&self) {
        let url = self.json.replace("/json", "/healthcheck");
        wait_until("the service is healthy", || {
            match &*run_curl(&["-o", "/dev/null", "-w", "%{http_code}", &url]) {
                "200" => Ok(()),
                status => Err(status.to_owned()),
            }
        })
        .unwrap();
    }

    /// Gets a debug page.
    pub(crate) fn get_page(&self, path: &str) -> String {
        run_curl(&[&format!("{}{path}", self.debug)])
    }

    /// Sends SIGTERM and waits for the exit.
    pub(crate) fn stop(mut self) -> ExitStatus {
        Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        self.child.wait().unwrap()
    }
}

impl Drop for ServiceProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The binary with a policy that has `decisions` or `envoy`. Dropping it kills the process.
pub(crate) struct DecisionApiProcess {
    child: Child,
    pub(crate) url: String,
    _folder: tempfile::TempDir,
}

impl DecisionApiProcess {
    pub(crate) fn start(policy: &str) -> Self {
        Self::start_for(policy, "decide")
    }

    /// Starts it with a policy whose first listener has this purpose.
    pub(crate) fn start_for(policy: &str, purpose: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("policy.yaml");
        fs::write(&file, policy).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.arg("serve").arg(file).stdin(Stdio::null()).stderr(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.strip_prefix(purpose).unwrap_or_else(|| panic!("{line}")).trim().to_owned();
        Self { child, url, _folder: folder }
    }
}

impl Drop for DecisionApiProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn serve_command(folder: &Path, more: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["serve", "--envoy-config"]).arg(folder);
    command.env_clear().envs([("PORT", "0"), ("GRPC_PORT", "0"), ("DEBUG_PORT", "0")]);
    // A busy machine must not cause timeouts in these tests.
    command.env("TIDEGATE_DEADLINE", "5s");
    command.envs(more.iter().copied()).stdin(Stdio::null());
    command
}

/// Runs a service that fails to start. Returns its exit code and standard error.
pub(crate) fn run_until_exit(folder: &Path, more: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut child = serve_command(folder, more).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    (child.wait().unwrap().code(), stderr)
}

pub(crate) fn run_curl(args: &[&str]) -> String {
    let mut command = Command::new("curl");
    let output =
        command.args(["--silent", "--max-time", "60", "--noproxy", "*"]).args(args).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Reads a file of the examples.
pub(crate) fn read_example(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(path);
    fs::read_to_string(path).unwrap()
}

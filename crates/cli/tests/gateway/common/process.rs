//! A running gateway process.

use super::TEST_TIMEOUT;
use std::{
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
};
use tempfile::TempDir;
use tokio::{sync::watch, time::timeout};

/// A process that serves a policy. Dropping it kills the process.
pub(crate) struct GatewayProcess {
    pub(crate) address: SocketAddr,
    pub(crate) directory: TempDir,
    child: Child,
    /// The lines of its output so far.
    output: watch::Receiver<Vec<String>>,
}

impl GatewayProcess {
    /// Serves this policy, on a free port if the policy has port 0.
    pub(crate) async fn start(policy: &str) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), policy).await
    }

    /// Serves the policy in this directory, which may contain files that the policy references.
    pub(crate) async fn start_in(directory: TempDir, policy: &str) -> Self {
        let file = directory.path().join("policy.yaml");
        fs::write(&file, policy).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .arg("serve")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, mut output) = watch::channel(Vec::new());
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        collect_lines(BufReader::new(stdout), sender.clone());
        collect_lines(BufReader::new(stderr), sender);
        let address = {
            let lines = timeout(
                TEST_TIMEOUT,
                output.wait_for(|lines| lines.iter().any(|line| parse_address(line).is_some())),
            );
            let lines = lines.await.expect("startup timeout").expect("the process starts");
            lines.iter().find_map(|line| parse_address(line)).unwrap()
        };
        Self { address, directory, child, output }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn policy_path(&self) -> PathBuf {
        self.directory.path().join("policy.yaml")
    }

    /// Replaces the policy file atomically, as editors do.
    pub(crate) fn replace_policy(&self, policy: &str) {
        let new = self.directory.path().join("policy.yaml.new");
        fs::write(&new, policy).unwrap();
        fs::rename(new, self.policy_path()).unwrap();
    }

    /// Waits until `times` lines of the output contain `part`.
    pub(crate) async fn wait_for_output(&self, part: &str, times: usize) {
        let mut output = self.output.clone();
        let waited = timeout(TEST_TIMEOUT, output.wait_for(|lines| count_lines(lines, part) >= times)).await;
        if !matches!(waited, Ok(Ok(_))) {
            panic!("not {times} lines with {part:?}; only {:#?}", self.output.borrow());
        }
    }

    /// The number of lines of the output with `part` so far.
    pub(crate) fn count_output(&self, part: &str) -> usize {
        count_lines(&self.output.borrow(), part)
    }

    /// Waits for a line that starts with this word. Returns the rest of the line.
    pub(crate) async fn wait_for_line(&self, word: &str) -> String {
        let mut output = self.output.clone();
        let rest =
            |lines: &[String]| lines.iter().find_map(|line| Some(line.strip_prefix(word)?.trim().to_owned()));
        let lines = timeout(TEST_TIMEOUT, output.wait_for(|lines| rest(lines).is_some()))
            .await
            .expect("no such line");
        rest(&lines.expect("the process runs")).unwrap_or_default()
    }

    /// Sends a signal by name.
    pub(crate) fn send_signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// The peak memory in bytes.
    pub(crate) fn peak_memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1_024
    }

    /// Kills the process. Returns its directory.
    pub(crate) fn kill(mut self) -> TempDir {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        std::mem::replace(&mut self.directory, tempfile::tempdir().unwrap())
    }

    /// Waits until the process exits.
    pub(crate) async fn wait(mut self) -> ExitStatus {
        let mut child = std::mem::replace(&mut self.child, Command::new("true").spawn().unwrap());
        let waited = tokio::task::spawn_blocking(move || child.wait());
        timeout(TEST_TIMEOUT, waited).await.expect("exit timeout").unwrap().unwrap()
    }
}

impl Drop for GatewayProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn count_lines(lines: &[String], part: &str) -> usize {
    lines.iter().filter(|line| line.contains(part)).count()
}

fn parse_address(line: &str) -> Option<SocketAddr> {
    let url = line.strip_prefix("gateway")?.trim();
    url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"))?.parse().ok()
}

fn collect_lines(lines: impl BufRead + Send + 'static, output: watch::Sender<Vec<String>>) {
    thread::spawn(move || {
        for line in lines.lines().map_while(Result::ok) {
            output.send_modify(|lines| lines.push(line));
        }
    });
}

//! `tidegate serve` without a policy: the commands that it prints work.

#![allow(clippy::expect_used, clippy::panic, reason = "this is how a test fails")]

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
};

/// A gateway that ends with the test.
struct ServeProcess(Child);

impl Drop for ServeProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run_shell(command: &str) -> String {
    let output = Command::new("sh").args(["-c", command]).output().expect("there is a shell");
    assert!(output.status.success(), "`{command}` fails: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn example_commands_work_as_printed() {
    let program = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("serve")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut serving = ServeProcess(program.expect("the program runs"));
    let stdout = serving.0.stdout.take().expect("stdout is piped");
    let mut commands = Vec::new();
    for line in BufReader::new(stdout).lines() {
        let line = line.expect("output is text");
        if line.starts_with("  curl") || line.starts_with("  for") {
            commands.push(line.trim().to_owned());
        }
        if line.starts_with("The policy") {
            break;
        }
    }
    let [hello, login, reports] = &commands[..] else { panic!("three commands, not {commands:?}") };

    let hello = run_shell(hello);
    assert!(hello.starts_with("HTTP/1.1 200 OK\r\n"), "{hello}");
    assert!(hello.contains("ratelimit: \"everybody\";r=19"), "{hello}");
    assert!(hello.contains("GET /hello\n"), "{hello}");

    assert_eq!(run_shell(login), "200\n200\n200\n429\n429\n");
    assert_eq!(run_shell(reports).lines().count(), 5);

    run_shell(&format!("kill -TERM {}", serving.0.id()));
    let status = serving.0.wait().expect("the process exits");
    let mut stderr = String::new();
    let errors = serving.0.stderr.take().expect("stderr is piped");
    BufReader::new(errors).read_to_string(&mut stderr).expect("stderr is text");
    assert!(status.success(), "{status}: {stderr}");
}

//! Startup errors of the gateway: one line, an exit code, and no open listener.

use std::{
    fs,
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Command, Output},
};
use tidegate_testkit::servers::Certificates;

/// Runs the command until it exits by itself.
fn run_serve(directory: &Path, policy: &str) -> Output {
    fs::write(directory.join("policy.yaml"), policy).unwrap();
    Command::new("timeout")
        .args(["60", env!("CARGO_BIN_EXE_tidegate"), "serve", "policy.yaml"])
        .current_dir(directory)
        .output()
        .unwrap()
}

#[test]
fn invalid_policy_fails_startup_with_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let certificates = Certificates::create(path).unwrap();
    let (other, text) = (path.join("other"), path.join("text.pem"));
    fs::create_dir(&other).unwrap();
    Certificates::create(&other).unwrap();
    fs::write(&text, "no certificate").unwrap();
    fs::write(path.join("half.pem"), &fs::read(&certificates.certificate).unwrap()[..100]).unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap();
    // The gateway must not listen on it.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();

    let tls = |certificate: &str, key: &str| {
        format!("listen: {{ address: '{free}', tls: {{ certificate: {certificate}, key: {key} }} }}\n")
    };
    let plain = format!("listen: '{free}'\n");
    let app = "upstreams: { app: 'http://127.0.0.1:9' }\nroutes: app\n";
    let cases: Vec<(String, &str)> = vec![
        ("listen: [".to_owned(), "policy.yaml:"),
        ("- just\n- a list\n".to_owned(), "policy.yaml:1:1: "),
        (format!("{plain}{app}rulez: []\n"), "unknown key `rulez`"),
        (format!("{plain}{app}rules: [{{ name: a, key: ip, quota: fast }}]\n"), "policy.yaml:4:"),
        (format!("listen: '127.0.0.1'\n{app}"), "policy.yaml:1:"),
        (format!("{plain}routes: app\n"), "unknown upstream `app` in the policy"),
        (format!("include: missing.yaml\n{plain}{app}"), "missing.yaml"),
        (format!("{plain}{app}lists: {{ bad: {{ files: missing.txt }} }}\n"), "missing.txt"),
        (format!("{}{app}", tls("missing.crt", "server.key")), "missing.crt: no such file"),
        (format!("{}{app}", tls("server.crt", "missing.key")), "missing.key: no such file"),
        (format!("{}{app}", tls("text.pem", "server.key")), "text.pem: no certificate found"),
        (format!("{}{app}", tls("half.pem", "server.key")), "half.pem: "),
        (format!("{}{app}", tls("server.crt", "text.pem")), "text.pem: no private key found"),
        (format!("{}{app}", tls("server.crt", "other/server.key")), "key does not match"),
        (format!("listen: ['{free}', '{taken}']\n{app}"), &*format!("{taken} is in use").leak()),
        (format!("{plain}admin: '{taken}'\n{app}"), &*format!("{taken} is in use").leak()),
        (format!("listen: ['{free}', '192.0.2.1:80']\n{app}"), "cannot listen on 192.0.2.1:80"),
        (
            format!("{plain}upstreams: {{ app: 'http://no-such-name.invalid:80' }}\nroutes: app\n"),
            "upstream `app`, server `http://no-such-name.invalid:80`: cannot resolve the host name",
        ),
        (format!("{plain}{app}log: {{ format: json, file: /no/such/place/log }}\n"), "/no/such/place/log"),
    ];
    for (policy, part) in cases {
        let output = run_serve(path, &policy);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{policy}\n{stderr}");
        let lines: Vec<_> = stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        assert!(lines.len() == 1 && lines[0].contains(part), "{policy}\n{stderr}");
        assert!(!stderr.contains("panicked"), "{policy}\n{stderr}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{policy}");
        assert!(TcpStream::connect(free).is_err(), "{policy}");
    }
}

#[test]
fn unreadable_policy_file_is_named() {
    let directory = tempfile::tempdir().unwrap();
    for (file, part) in
        [("missing.yaml", "missing.yaml"), ("policy.txt", "policy.txt"), (".", "."), ("b.yaml", "b.yaml")]
    {
        fs::write(directory.path().join("policy.txt"), "rules: []\n").unwrap();
        fs::write(directory.path().join("b.yaml"), b"\xff\xfe\x00").unwrap();
        let output = Command::new("timeout")
            .args(["60", env!("CARGO_BIN_EXE_tidegate"), "serve", file])
            .current_dir(directory.path())
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{file}: {stderr}");
        assert!(stderr.contains(part) && !stderr.contains("panicked"), "{file}: {stderr}");
    }
}

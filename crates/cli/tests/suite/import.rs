//! `tidegate import nginx`, and what it writes beside the nginx that it was written from.

#![allow(clippy::expect_used, reason = "this is how a test fails")]

use crate::common::{run_tidegate, utf8_text, write_file};
use std::{path::Path, process::Command};

const CONFIG: &str = "\
http {
  limit_req_zone $binary_remote_addr zone=one:10m rate=10r/s;
  gzip on;
  server { limit_req zone=one burst=20 nodelay; location / { proxy_pass http://127.0.0.1:9000; proxy_set_header Host $host; } }
}
";

#[test]
fn imported_policy_is_usable_and_lists_losses() {
    let config = write_file("import.conf", CONFIG);
    let config = config.to_str().expect("a name in UTF-8");
    let output = run_tidegate(&["import", "nginx", config]);
    assert_eq!(output.status.code(), Some(0), "{}", utf8_text(&output.stderr));
    let told = format!("{config}:3: `gzip on`: answers are passed on as they are");
    assert!(
        utf8_text(&output.stdout).contains(&told) && utf8_text(&output.stderr).contains(&told),
        "{}",
        utf8_text(&output.stdout)
    );

    for name in ["imported.yaml", "imported.toml", "imported.json"] {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_file(&path);
        let path = path.to_str().expect("a name in UTF-8");
        let output = run_tidegate(&["import", "nginx", config, "--out", path]);
        assert_eq!((output.status.code(), utf8_text(&output.stdout)), (Some(0), String::new()), "{name}");
        let output = run_tidegate(&["check", "--strict", path]);
        assert_eq!(output.status.code(), Some(0), "{name}: {}", utf8_text(&output.stderr));
        assert!(
            utf8_text(&output.stdout).contains("1 rule, 1 upstream: nothing wrong"),
            "{}",
            utf8_text(&output.stdout)
        );
    }
}

const PROTECTED: &str = "\
http {
  server {
    auth_basic members;
    location / { proxy_pass http://127.0.0.1:9000; proxy_set_header Host $host; gzip on; }
    location /api/ { auth_request /check; proxy_pass http://127.0.0.1:9000; proxy_set_header Host $host; }
  }
}
";

#[test]
fn lost_protection_fails_import_until_accepted() {
    let config = write_file("protected.conf", PROTECTED);
    let config = config.to_str().expect("a name in UTF-8");
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("protected.yaml");
    let _ = std::fs::remove_file(&out);
    let out_name = out.to_str().expect("a name in UTF-8");
    let output = run_tidegate(&["import", "nginx", config, "--out", out_name]);
    let told = utf8_text(&output.stderr);
    assert_eq!((output.status.code(), utf8_text(&output.stdout)), (Some(2), String::new()), "{told}");
    assert!(!out.exists());
    for line in [
        format!("{config}:3: `auth_basic members`"),
        format!("{config}:5: `auth_request /check`"),
        "2 protections would be lost, so nothing was written".to_owned(),
        "add --accept-loss auth_basic --accept-loss auth_request".to_owned(),
    ] {
        assert!(told.contains(&line), "{told}");
    }
    assert!(!told.contains("gzip"), "{told}");

    let output = run_tidegate(&["import", "nginx", config, "--out", out_name, "--accept-loss", "auth_basic"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        !out.exists() && !utf8_text(&output.stderr).contains("auth_basic"),
        "{}",
        utf8_text(&output.stderr)
    );

    let output = run_tidegate(&["import", "nginx", config, "--json"]);
    assert_eq!(output.status.code(), Some(2));
    let report: serde_json::Value = serde_json::from_str(&utf8_text(&output.stdout)).expect("JSON");
    assert_eq!(report["policy"], serde_json::Value::Null);
    assert_eq!(report["losses"][0]["kind"], "protection");
    assert_eq!(report["losses"][0]["directive"], "auth_basic");

    let accepted = ["--accept-loss", "auth_basic", "--accept-loss", "auth_request"];
    let output = run_tidegate(&[&["import", "nginx", config, "--out", out_name][..], &accepted[..]].concat());
    let told = utf8_text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert!(
        told.contains("2 of protection lost, as accepted") && told.contains("1 not carried over"),
        "{told}"
    );
    let written = std::fs::read_to_string(&out).expect("a policy");
    assert!(written.contains("Protection that is lost:\n#   "), "{written}");
}

#[test]
fn import_overwrites_only_with_force() {
    let config = write_file("overwrites.conf", CONFIG);
    let out = write_file("kept.yaml", "rules: []\n");
    let (config, out_name) = (config.to_str().expect("UTF-8"), out.to_str().expect("UTF-8"));
    let output = run_tidegate(&["import", "nginx", config, "--out", out_name]);
    assert_eq!(output.status.code(), Some(2));
    assert!(utf8_text(&output.stderr).contains("kept.yaml exists; write to another file, or add --force"));
    assert_eq!(std::fs::read_to_string(&out).expect("a file"), "rules: []\n");
    let output = run_tidegate(&["import", "nginx", config, "--out", out_name, "--force"]);
    assert_eq!(output.status.code(), Some(0), "{}", utf8_text(&output.stderr));
    assert!(std::fs::read_to_string(&out).expect("a file").contains("name: one"));
}

#[test]
fn import_errors_are_one_line() {
    let wrong = write_file("wrong.conf", "http {\n  server {\n    limit_req zone=none;\n  }\n}\n");
    let fine = write_file("fine.conf", CONFIG);
    let (wrong, fine) = (wrong.to_str().expect("UTF-8"), fine.to_str().expect("UTF-8"));
    let cases: [(&[&str], i32, &str); 5] = [
        (
            &["import", "nginx", wrong],
            2,
            ":3:5: unknown zone `none`; say what it counts with `limit_req_zone`",
        ),
        (&["import", "nginx", "nowhere.conf"], 2, "`nowhere.conf` cannot be read"),
        (
            &["import", "nginx", fine, "--out", "policy.txt"],
            2,
            "policy.txt is neither YAML nor TOML nor JSON",
        ),
        (&["import", "nginx", fine, "--out", "no/such/folder.yaml"], 1, "cannot write no/such/folder.yaml"),
        (&["import", "apache", fine], 2, "unrecognized subcommand 'apache'"),
    ];
    for (args, code, expected) in cases {
        let output = run_tidegate(args);
        let told = utf8_text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {told}");
        assert!(told.contains(expected), "{args:?}: {told}");
    }
}

/// One configuration, run by nginx and served as a policy, before the same server. Only what does not depend on time is
/// compared: a rate of one in a minute stands still for that long.
#[cfg(target_os = "linux")]
mod nginx_comparison {
    use super::*;
    use std::{
        collections::BTreeMap,
        io::{BufRead as _, BufReader, Read as _, Write as _},
        net::{SocketAddr, TcpListener, TcpStream},
        process::{Child, Stdio},
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
            mpsc,
        },
        thread,
    };
    use tidegate_testkit::servers::{NginxServer, SentHttpRequest, wait_until};

    /// A server that keeps those who ask for `/held` until it is told to let them go.
    struct BlockingBackend {
        address: SocketAddr,
        blocked: Arc<AtomicUsize>,
        release: mpsc::Sender<()>,
    }

    impl BlockingBackend {
        fn start() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let address = listener.local_addr().expect("an address");
            let (held, (let_go, waits)) = (Arc::<AtomicUsize>::default(), mpsc::channel::<()>());
            let waits = Arc::new(std::sync::Mutex::new(waits));
            let count = held.clone();
            thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let (count, waits) = (count.clone(), waits.clone());
                    thread::spawn(move || serve_connection(stream, &count, &waits));
                }
            });
            Self { address, blocked: held, release: let_go }
        }
    }

    /// Connections are kept: whoever stands before it may send many requests on one.
    fn serve_connection(
        stream: TcpStream,
        blocked: &AtomicUsize,
        release: &std::sync::Mutex<mpsc::Receiver<()>>,
    ) {
        let mut writer = stream.try_clone().expect("a second handle");
        let mut lines = BufReader::new(stream).lines();
        while let Some(Ok(first)) = lines.next() {
            while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            if first.contains("/held") {
                blocked.fetch_add(1, Ordering::SeqCst);
                // Gone is as good as told.
                let _ = release.lock().map(|waits| waits.recv());
            }
            if writer.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err() {
                return;
            }
        }
    }

    /// `tidegate serve`, ended when it is dropped.
    struct ImportedGateway {
        child: Child,
        address: SocketAddr,
    }

    impl ImportedGateway {
        fn start(policy: &Path) -> Self {
            let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
                .args(["serve", "--workers", "1"])
                .arg(policy)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("the program runs");
            let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
            let address = lines.by_ref().map_while(Result::ok).find_map(|line| {
                let at = line.find("127.0.0.1:")?;
                line[at..].split(|c: char| !(c.is_ascii_digit() || ".:".contains(c))).next()?.parse().ok()
            });
            let Some(address) = address else {
                let mut told = String::new();
                let _ = child.stderr.take().expect("its errors").read_to_string(&mut told);
                panic!("it does not serve: {told}");
            };
            Self { child, address }
        }
    }

    impl Drop for ImportedGateway {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    const LIMITS: &str = "
        geo $limit { default 1; 127.0.0.0/8 0; }
        map $limit $key { 0 ''; 1 $binary_remote_addr; }
        limit_req_zone $binary_remote_addr zone=one:1m rate=1r/m;
        limit_req_zone $binary_remote_addr zone=dry:1m rate=1r/m;
        limit_req_zone $key zone=strangers:1m rate=1r/m;
        limit_conn_zone $binary_remote_addr zone=addr:1m;
        limit_req_status 429;
        limit_conn_status 509;
        server {
            listen 127.0.0.1:PORT;
            proxy_set_header Host $host;
            location /burst { limit_req zone=one burst=20 nodelay; proxy_pass http://BACKEND; }
            location /dry { limit_req zone=dry burst=2; limit_req_dry_run on; proxy_pass http://BACKEND; }
            location /listed { limit_req zone=strangers; proxy_pass http://BACKEND; }
            location /held { limit_conn addr 3; proxy_pass http://BACKEND; }
            location / { proxy_pass http://BACKEND; }
        }";

    /// How often each status was answered to so many requests at once.
    fn count_statuses(address: SocketAddr, path: &str, count: usize) -> BTreeMap<u16, usize> {
        let sent: Vec<SentHttpRequest> =
            (0..count).map(|_| SentHttpRequest::new(address, path).expect("it is sent")).collect();
        let mut statuses = BTreeMap::new();
        for sent in sent {
            *statuses.entry(sent.wait().expect("an answer")).or_default() += 1;
        }
        statuses
    }

    /// Three are held, and nobody else gets in until they are let go.
    fn check_connection_limit(backend: &BlockingBackend, address: SocketAddr) -> Vec<u16> {
        let before = backend.blocked.load(Ordering::SeqCst);
        let kept: Vec<SentHttpRequest> =
            (0..3).map(|_| SentHttpRequest::new(address, "/held").expect("it is sent")).collect();
        let all_held = || match backend.blocked.load(Ordering::SeqCst) - before {
            3 => Ok(()),
            count => Err(format!("{count} are held")),
        };
        wait_until("three are held", all_held).expect("three are held");
        let ask =
            |path: &str| SentHttpRequest::new(address, path).expect("it is sent").wait().expect("an answer");
        let mut found = vec![ask("/held"), ask("/held/too"), ask("/other")];
        (0..3).for_each(|_| backend.release.send(()).expect("it is told"));
        found.extend(kept.into_iter().map(|sent| sent.wait().expect("an answer")));
        found
    }

    #[test]
    fn nginx_and_gateway_admit_the_same_requests() {
        let backend = BlockingBackend::start();
        let http = LIMITS.replace("BACKEND", &backend.address.to_string());
        let nginx = NginxServer::start(&http).expect("nginx");
        // Without the port at which nginx is asked whether it runs.
        let port = nginx.address().port().to_string();
        let config = write_file("beside-nginx.conf", &http.replace("PORT", &port));
        let output = run_tidegate(&["import", "nginx", config.to_str().expect("UTF-8")]);
        // nginx has its ports; this one takes any other.
        let elsewhere = |line: &str| match line.starts_with("listen:") {
            true => "listen: 127.0.0.1:0\n".to_owned(),
            false => format!("{line}\n"),
        };
        let policy: String = utf8_text(&output.stdout).lines().map(elsewhere).collect();
        let gateway = ImportedGateway::start(&write_file("beside-nginx.yaml", &policy));
        for address in [nginx.address(), gateway.address] {
            let burst = BTreeMap::from([(200, 21), (429, 79)]);
            assert_eq!(count_statuses(address, "/burst", 100), burst, "{policy}");
            assert_eq!(count_statuses(address, "/dry", 20), BTreeMap::from([(200, 20)]));
            assert_eq!(count_statuses(address, "/listed", 20), BTreeMap::from([(200, 20)]));
            assert_eq!(check_connection_limit(&backend, address), [509, 509, 200, 200, 200, 200]);
        }
    }
}

//! `tidegate import nginx`, and a comparison of the imported policy with nginx itself.

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
    let loss = format!("{config}:3: `gzip on`: responses are forwarded unchanged");
    assert!(
        utf8_text(&output.stdout).contains(&loss) && utf8_text(&output.stderr).contains(&loss),
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
            utf8_text(&output.stdout).contains("1 rule, 1 upstream: valid"),
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
    let stderr = utf8_text(&output.stderr);
    assert_eq!((output.status.code(), utf8_text(&output.stdout)), (Some(2), String::new()), "{stderr}");
    assert!(!out.exists());
    for line in [
        format!("{config}:3: `auth_basic members`"),
        format!("{config}:5: `auth_request /check`"),
        "2 protections would be lost, so nothing was written".to_owned(),
        "add --accept-loss auth_basic --accept-loss auth_request".to_owned(),
    ] {
        assert!(stderr.contains(&line), "{stderr}");
    }
    assert!(!stderr.contains("gzip"), "{stderr}");

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
    let stderr = utf8_text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(
        stderr.contains("2 lost protections, as accepted") && stderr.contains("1 not imported"),
        "{stderr}"
    );
    let written = std::fs::read_to_string(&out).expect("a policy");
    assert!(written.contains("Lost protection:\n#   "), "{written}");
}

#[test]
fn import_overwrites_only_with_force() {
    let config = write_file("overwrites.conf", CONFIG);
    let out = write_file("existing.yaml", "rules: []\n");
    let (config, out_name) = (config.to_str().expect("UTF-8"), out.to_str().expect("UTF-8"));
    let output = run_tidegate(&["import", "nginx", config, "--out", out_name]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        utf8_text(&output.stderr).contains("existing.yaml already exists; use another name, or add --force")
    );
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
        (&["import", "nginx", wrong], 2, ":3:5: unknown zone `none`; define it with `limit_req_zone`"),
        (&["import", "nginx", "nowhere.conf"], 2, "cannot read `nowhere.conf`"),
        (&["import", "nginx", fine, "--out", "policy.txt"], 2, "policy.txt is not YAML, TOML or JSON"),
        (&["import", "nginx", fine, "--out", "no/such/folder.yaml"], 1, "cannot write no/such/folder.yaml"),
        (&["import", "apache", fine], 2, "unrecognized subcommand 'apache'"),
    ];
    for (args, code, expected) in cases {
        let output = run_tidegate(args);
        let stderr = utf8_text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(stderr.contains(expected), "{args:?}: {stderr}");
    }
}

/// One configuration, run by nginx and served as a policy, with the same upstream. Rates of one per minute make the results
/// independent of time.
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

    /// A server that blocks requests for `/blocked` until it receives a release.
    struct BlockingBackend {
        address: SocketAddr,
        blocked: Arc<AtomicUsize>,
        release: mpsc::Sender<()>,
    }

    impl BlockingBackend {
        fn start() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let address = listener.local_addr().expect("an address");
            let (blocked, (release, receiver)) = (Arc::<AtomicUsize>::default(), mpsc::channel::<()>());
            let receiver = Arc::new(std::sync::Mutex::new(receiver));
            let count = blocked.clone();
            thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let (count, receiver) = (count.clone(), receiver.clone());
                    thread::spawn(move || serve_connection(stream, &count, &receiver));
                }
            });
            Self { address, blocked, release }
        }
    }

    /// Serves several requests per connection, since proxies reuse connections.
    fn serve_connection(
        stream: TcpStream,
        blocked: &AtomicUsize,
        release: &std::sync::Mutex<mpsc::Receiver<()>>,
    ) {
        let mut writer = stream.try_clone().expect("a second handle");
        let mut lines = BufReader::new(stream).lines();
        while let Some(Ok(first)) = lines.next() {
            while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            if first.contains("/blocked") {
                blocked.fetch_add(1, Ordering::SeqCst);
                // A dropped sender releases the request too.
                let _ = release.lock().map(|receiver| receiver.recv());
            }
            if writer.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err() {
                return;
            }
        }
    }

    /// `tidegate serve`. Dropping it kills the process.
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
                let mut stderr = String::new();
                let _ = child.stderr.take().expect("its errors").read_to_string(&mut stderr);
                panic!("no address in the output: {stderr}");
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
        limit_req_zone $key zone=unlisted:1m rate=1r/m;
        limit_conn_zone $binary_remote_addr zone=addr:1m;
        limit_req_status 429;
        limit_conn_status 509;
        server {
            listen 127.0.0.1:PORT;
            proxy_set_header Host $host;
            location /burst { limit_req zone=one burst=20 nodelay; proxy_pass http://BACKEND; }
            location /dry { limit_req zone=dry burst=2; limit_req_dry_run on; proxy_pass http://BACKEND; }
            location /listed { limit_req zone=unlisted; proxy_pass http://BACKEND; }
            location /blocked { limit_conn addr 3; proxy_pass http://BACKEND; }
            location / { proxy_pass http://BACKEND; }
        }";

    /// The number of responses by status, for concurrent requests.
    fn count_statuses(address: SocketAddr, path: &str, count: usize) -> BTreeMap<u16, usize> {
        let sent: Vec<SentHttpRequest> =
            (0..count).map(|_| SentHttpRequest::new(address, path).expect("the request is sent")).collect();
        let mut statuses = BTreeMap::new();
        for sent in sent {
            *statuses.entry(sent.wait().expect("a response")).or_default() += 1;
        }
        statuses
    }

    /// Three requests are in flight, and further ones are denied until they complete.
    fn check_connection_limit(backend: &BlockingBackend, address: SocketAddr) -> Vec<u16> {
        let before = backend.blocked.load(Ordering::SeqCst);
        let in_flight: Vec<SentHttpRequest> =
            (0..3).map(|_| SentHttpRequest::new(address, "/blocked").expect("the request is sent")).collect();
        let all_blocked = || match backend.blocked.load(Ordering::SeqCst) - before {
            3 => Ok(()),
            count => Err(format!("{count} in flight")),
        };
        wait_until("three are in flight", all_blocked).expect("three are in flight");
        let send = |path: &str| {
            SentHttpRequest::new(address, path).expect("the request is sent").wait().expect("a response")
        };
        let mut statuses = vec![send("/blocked"), send("/blocked/too"), send("/other")];
        (0..3).for_each(|_| backend.release.send(()).expect("the backend runs"));
        statuses.extend(in_flight.into_iter().map(|sent| sent.wait().expect("a response")));
        statuses
    }

    #[test]
    fn nginx_and_gateway_admit_the_same_requests() {
        let backend = BlockingBackend::start();
        let http = LIMITS.replace("BACKEND", &backend.address.to_string());
        let nginx = NginxServer::start(&http).expect("nginx");
        // Without the health check that `NginxServer` adds.
        let port = nginx.address().port().to_string();
        let config = write_file("beside-nginx.conf", &http.replace("PORT", &port));
        let output = run_tidegate(&["import", "nginx", config.to_str().expect("UTF-8")]);
        // nginx uses its ports, so the gateway listens on a free one.
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

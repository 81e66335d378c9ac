//! nginx configurations, run by nginx and as imported policies in front of the same servers: both return the same status from
//! the same server.

#![cfg(target_os = "linux")]

use std::{
    collections::BTreeMap,
    fmt, fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};
use tempfile::TempDir;
use tidegate_gateway::{Gateway, PolicySource};
use tidegate_import::{ImportedPolicy, LossKind};
use tidegate_policy::{DiskFiles, PolicyFormat};
use tidegate_rule::Rules;
use tidegate_testkit::servers::NginxServer;
use tokio::sync::oneshot;

/// An nginx configuration, and the parts of random requests.
struct NginxCase {
    name: &'static str,
    /// `PORT` is the port of nginx at 127.0.0.1, 127.0.0.2 and so on; `@app@` is the address of the server `app`.
    http: &'static str,
    hosts: &'static [&'static str],
    paths: &'static [&'static str],
    methods: &'static [&'static str],
    /// Client addresses that a trusted proxy reports.
    clients: &'static [&'static str],
    /// Other headers, `|` between two.
    headers: &'static [&'static str],
    bodies: &'static [usize],
}

const DEFAULT_CASE: NginxCase = NginxCase {
    name: "",
    http: "",
    hosts: &["shop.test"],
    paths: &["/", "/a", "/a/b?c=d"],
    methods: &["GET", "GET", "HEAD", "POST"],
    clients: &["198.51.100.1"],
    headers: &[""],
    bodies: &[0],
};

const CASES: &[NginxCase] = &[
    NginxCase {
        name: "names at ports",
        http: "
            server { listen 127.0.0.1:PORT; server_name shop.test; location / { proxy_pass http://@shop@; } }
            server { listen 127.0.0.2:PORT; server_name internal.test; location / { proxy_pass http://@internal@; } }
            server { listen 127.0.0.2:PORT; server_name shop.test; location / { proxy_pass http://@other@; } }",
        hosts: &["shop.test", "internal.test", "other.test", "SHOP.test:8080"],
        paths: &["/", "/secret", "/a?b=c"],
        ..DEFAULT_CASE
    },
    NginxCase {
        name: "redirect to https",
        http: "
            server { listen 127.0.0.1:PORT default_server; server_name _; return 301 https://$host$request_uri; }
            server { listen 127.0.0.2:PORT; server_name shop.test www.shop.test; location / { proxy_pass http://@app@; } }",
        hosts: &["shop.test", "www.shop.test", "other.test"],
        paths: &["/", "/a/b?c=d&e=%20f", "/a%20b"],
        ..DEFAULT_CASE
    },
    NginxCase {
        name: "conditions as certbot writes them",
        http: "
            server { listen 127.0.0.2:PORT; server_name a.test www.a.test; location / { proxy_pass http://@app@; } }
            server {
                if ($host = www.a.test) { return 301 https://$host$request_uri; }
                if ($host = a.test) { return 302 https://$host$request_uri; }
                listen 127.0.0.1:PORT; server_name a.test www.a.test; return 404;
            }
            server { listen 127.0.0.1:PORT; server_name b.test; location / { proxy_pass http://@b@; } }",
        hosts: &["a.test", "www.a.test", "b.test", "c.test"],
        ..DEFAULT_CASE
    },
    NginxCase {
        name: "lists of addresses",
        http: "
            set_real_ip_from 127.0.0.1; real_ip_header X-Forwarded-For; real_ip_recursive on;
            server { listen 127.0.0.1:PORT; deny 192.0.2.7;
                location / { proxy_pass http://@app@; }
                location /admin/ { allow 10.0.0.0/8; allow 2001:db8::/32; deny all; proxy_pass http://@app@; }
                location /mixed/ { deny 10.0.0.1; allow 10.0.0.0/8; deny all; proxy_pass http://@app@; }
                location /partners/ { allow 192.0.2.7; deny 192.0.2.0/24; allow all; deny all; proxy_pass http://@app@; }
                location /closed/ { deny all; proxy_pass http://@app@; } }",
        paths: &["/", "/admin/", "/admin/x", "//admin//x", "/%61dmin/x", "/x/../admin/x", "/mixed/a", "/partners/a", "/closed/"],
        clients: &["10.0.0.1", "10.9.9.9", "192.0.2.7", "192.0.2.8", "2001:db8::1", "8.8.8.8"],
        ..DEFAULT_CASE
    },
    NginxCase {
        name: "names with stars and a default server",
        http: "
            server { listen 127.0.0.1:PORT; server_name a.test; location / { proxy_pass http://@a@; } }
            server { listen 127.0.0.1:PORT; server_name *.b.test; location / { proxy_pass http://@wild@; } }
            server { listen 127.0.0.1:PORT; server_name www.b.test; location / { proxy_pass http://@www@; } }
            server { listen 127.0.0.1:PORT; server_name .c.test; location /x/ { proxy_pass http://@c@; } }
            server { listen 127.0.0.1:PORT default_server; server_name _; location / { proxy_pass http://@rest@; } }",
        hosts: &["a.test", "b.test", "www.b.test", "x.b.test", "c.test", "y.c.test", "d.test"],
        paths: &["/", "/x/", "/x/y", "/xy"],
        ..DEFAULT_CASE
    },
    NginxCase {
        name: "a default server that closes",
        http: "
            server { listen 127.0.0.1:PORT default_server; return 444; }
            server { listen 127.0.0.1:PORT; server_name a.test;
                location / { proxy_pass http://@a@; }
                location ~ /\\.(git|env|ht) { return 444; }
                location ~* \\.(bak|sql|swp)$ { deny all; proxy_pass http://@a@; } }",
        hosts: &["a.test", "a.test", "b.test", "127.0.0.1"],
        paths: &["/", "/.git/config", "/a/.env", "/a.BAK", "/a.sql", "/a.sqlx", "/git/x"],
        ..DEFAULT_CASE
    },
    NginxCase {
        name: "locations of all kinds",
        http: "
            server { listen 127.0.0.1:PORT;
                location / { proxy_pass http://@root@; }
                location = /exact { proxy_pass http://@exact@; }
                location /api/ { proxy_pass http://@api@; location /api/v2/ { proxy_pass http://@v2@; } }
                location ^~ /static/ { proxy_pass http://@static@; }
                location ~ \\.php$ { proxy_pass http://@php@; }
                location ~ ^/(en|de)/shop/ { proxy_pass http://@shop@; }
                location /images { proxy_pass http://@images@; } }",
        paths: &[
            "/", "/exact", "/exact/x", "/api/", "/api/v1/x", "/api/v2/x", "/api/x.php", "/static/x.php", "/static/a",
            "/x.php", "/x.phps", "/en/shop/a", "/fr/shop/a", "/images/a", "/images2/b", "/imag",
        ],
        ..DEFAULT_CASE
    },
    NginxCase {
        name: "a limit for each client",
        http: "
            set_real_ip_from 127.0.0.1; real_ip_header X-Forwarded-For; real_ip_recursive on;
            limit_req_zone $binary_remote_addr zone=one:1m rate=1r/m; limit_req_status 429;
            server { listen 127.0.0.1:PORT; limit_req zone=one burst=9 nodelay;
                location / { proxy_pass http://@app@; }
                location /free/ { limit_req zone=two burst=30 nodelay; proxy_pass http://@app@; } }
            limit_req_zone $server_name zone=two:1m rate=1r/m;
            server { listen 127.0.0.2:PORT; location / { proxy_pass http://@other@; } }",
        paths: &["/", "/a", "/free/a"],
        clients: &["198.51.100.1", "198.51.100.2", "203.0.113.9"],
        ..DEFAULT_CASE
    },
    NginxCase {
        name: "a limit that closes, and who is exempt",
        http: "
            set_real_ip_from 127.0.0.1; real_ip_header X-Forwarded-For; real_ip_recursive on;
            geo $limited { default 1; 10.0.0.0/8 0; }
            map $limited $key { 0 ''; 1 $binary_remote_addr; }
            map $request_method $writer { default ''; POST $binary_remote_addr; }
            limit_req_zone $key zone=one:1m rate=1r/m; limit_req_zone $writer zone=write:1m rate=1r/m;
            server { listen 127.0.0.1:PORT; limit_req_status 444;
                location / { limit_req zone=one burst=5 nodelay; proxy_pass http://@app@; }
                location /write { limit_req zone=write burst=3 nodelay; limit_req_status 503; proxy_pass http://@app@; } }",
        paths: &["/", "/write", "/write"],
        clients: &["10.1.1.1", "198.51.100.2", "203.0.113.9"],
        ..DEFAULT_CASE
    },
    NginxCase {
        name: "answers of its own",
        http: "
            server { listen 127.0.0.1:PORT;
                location = /healthz { return 200 'ok'; }
                location /old/ { return 301 https://new.test$uri; }
                location /gone { return 410; }
                location /closed/ { return 503 'Later.'; }
                location /moved { rewrite ^(.*)$ https://new.test$1 permanent; }
                location /limited/ { deny all; return 307 https://new.test/; }
                location / { proxy_pass http://@app@; } }
            server { listen 127.0.0.2:PORT; rewrite ^ https://$host$request_uri? permanent; }",
        paths: &["/", "/healthz", "/old/a", "/gone", "/closed/x", "/moved?a=b", "/moved/x", "/limited/x"],
        hosts: &["shop.test", "b.test"],
        ..DEFAULT_CASE
    },
    NginxCase {
        name: "methods and what is internal",
        http: "
            set_real_ip_from 127.0.0.1; real_ip_header X-Forwarded-For; real_ip_recursive on;
            server { listen 127.0.0.1:PORT; deny 192.0.2.7;
                location / { proxy_pass http://@app@; }
                location /read/ { limit_except GET { deny all; } proxy_pass http://@app@; }
                location /write/ { limit_except GET POST { allow 10.0.0.0/8; deny all; } proxy_pass http://@app@; }
                location /internal/ { internal; proxy_pass http://@app@; } }",
        paths: &["/", "/read/a", "/write/a", "/internal/a"],
        methods: &["GET", "HEAD", "POST", "PUT", "DELETE"],
        clients: &["10.0.0.1", "192.0.2.7", "8.8.8.8"],
        ..DEFAULT_CASE
    },
    NginxCase {
        name: "conditions that deny",
        http: "
            set_real_ip_from 127.0.0.1; real_ip_header X-Forwarded-For; real_ip_recursive on;
            geo $blocked { default 0; 192.0.2.0/24 1; 192.0.2.7 0; }
            server { listen 127.0.0.1:PORT;
                if ($request_method !~ ^(GET|HEAD|POST)$) { return 405; }
                if ($blocked) { return 403; }
                location / { proxy_pass http://@app@; }
                location /api/ {
                    if ($http_user_agent ~* (curl|wget)) { return 403; }
                    if ($http_x_token != s3cret) { return 401; }
                    proxy_pass http://@api@; } }",
        paths: &["/", "/api/a"],
        methods: &["GET", "HEAD", "POST", "PUT"],
        clients: &["192.0.2.1", "192.0.2.7", "8.8.8.8"],
        headers: &["", "user-agent: Curl/8", "user-agent: a|x-token: s3cret", "x-token: S3CRET"],
        ..DEFAULT_CASE
    },
    NginxCase {
        name: "sizes of bodies",
        http: "
            client_max_body_size 100;
            server { listen 127.0.0.1:PORT;
                location / { proxy_pass http://@app@; }
                location /upload/ { client_max_body_size 2k; proxy_pass http://@app@; }
                location /small/ { client_max_body_size 10; proxy_pass http://@app@; } }",
        paths: &["/", "/upload/a", "/small/a"],
        methods: &["POST", "PUT", "GET"],
        bodies: &[0, 10, 11, 100, 101, 2_000, 2_049],
        ..DEFAULT_CASE
    },
    NginxCase {
        name: "a server that is down",
        http: "
            upstream app { server 127.0.0.3:1 max_fails=2 fail_timeout=30s; server @app@; }
            server { listen 127.0.0.1:PORT; location / { proxy_pass http://app; } }",
        methods: &["GET", "HEAD"],
        ..DEFAULT_CASE
    },
];

const REQUESTS_PER_CASE: usize = 200;

/// The result of a request: the status, or 0 for a closed connection; the server that responded; and the redirect target.
#[derive(Debug, Default, PartialEq, Eq)]
struct ObservedResponse {
    status: u16,
    upstream: Option<String>,
    location: Option<String>,
}

/// The bytes of a request.
struct RawRequest {
    listener: usize,
    head: String,
    body: Vec<u8>,
}

impl RawRequest {
    fn send(&self, address: SocketAddr) -> ObservedResponse {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut response = Vec::new();
        // A rejected connection may be closed before everything is written.
        let _ = stream.write_all(self.head.as_bytes()).and_then(|()| stream.write_all(&self.body));
        let _ = stream.read_to_end(&mut response);
        let text = String::from_utf8_lossy(&response);
        let mut lines = text.split("\r\n\r\n").next().unwrap_or_default().split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).unwrap_or(0);
        let mut observed = ObservedResponse { status, ..ObservedResponse::default() };
        for line in lines {
            match line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned())) {
                Some((name, value)) if name == "x-upstream" => observed.upstream = Some(value),
                Some((name, value)) if name == "location" => observed.location = Some(value),
                _ => {}
            }
        }
        observed
    }
}

impl fmt::Display for RawRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "listener {}: {:?}, a body of {}", self.listener, self.head, self.body.len())
    }
}

/// A pseudo-random sequence, the same in every run.
struct RequestSequence(u64);

impl RequestSequence {
    fn next_below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((self.0 >> 33) % u64::try_from(count).unwrap()).unwrap()
    }

    fn choose<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.next_below(items.len())]
    }

    fn next_request(&mut self, case: &NginxCase, listeners: usize) -> RawRequest {
        let (method, path, host) =
            (self.choose(case.methods), self.choose(case.paths), self.choose(case.hosts));
        let (client, headers) = (self.choose(case.clients), self.choose(case.headers));
        let size = self.choose(case.bodies);
        let body = if method == "GET" || method == "HEAD" { 0 } else { size };
        let headers: String =
            headers.split('|').filter(|it| !it.is_empty()).map(|it| format!("{it}\r\n")).collect();
        let length = if body > 0 { format!("content-length: {body}\r\n") } else { String::new() };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\nx-forwarded-for: {client}\r\n{headers}{length}connection: close\r\n\r\n"
        );
        RawRequest { listener: self.next_below(listeners), head, body: vec![b'x'; body] }
    }
}

/// Starts a server that responds with its name.
fn start_backend(name: &str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let response = format!("HTTP/1.1 200 OK\r\nx-upstream: {name}\r\ncontent-length: 0\r\n\r\n");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let response = response.clone();
            thread::spawn(move || serve_connection(stream, &response));
        }
    });
    address
}

fn serve_connection(stream: TcpStream, response: &str) {
    let mut writer = stream.try_clone().unwrap();
    let mut reader = BufReader::new(stream);
    loop {
        let (mut length, mut line, mut is_first) = (0, String::new(), true);
        loop {
            line.clear();
            match reader.read_line(&mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) if line == "\r\n" && !is_first => break,
                Ok(_) => is_first = false,
            }
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        if reader.read_exact(&mut body).is_err() || writer.write_all(response.as_bytes()).is_err() {
            return;
        }
    }
}

/// Replaces the names of servers in the text by their addresses.
fn with_backends(http: &str) -> String {
    let mut backends: BTreeMap<&str, SocketAddr> = BTreeMap::new();
    let mut text = String::new();
    for (place, part) in http.split('@').enumerate() {
        match place % 2 {
            0 => text.push_str(part),
            _ => text.push_str(&backends.entry(part).or_insert_with(|| start_backend(part)).to_string()),
        }
    }
    text
}

/// Checks that nginx and the gateway respond alike.
async fn compare(case: &NginxCase) {
    let http = format!("proxy_set_header Host $host;\n{}", with_backends(case.http));
    let nginx = NginxServer::start(&http).unwrap();
    // nginx needs more than the imported part: its own files, and a port for the readiness check.
    let folder = TempDir::new().unwrap();
    let config = folder.path().join("nginx.conf");
    let port = nginx.address().port().to_string();
    fs::write(&config, http.replace("PORT", &port)).unwrap();
    let mut imported = ImportedPolicy::nginx(&config, &DiskFiles).unwrap();
    assert_eq!(imported.losses_of(LossKind::Protection).count(), 0, "{}: {:?}", case.name, imported.losses);
    let theirs: Vec<SocketAddr> = imported.policy.listen.iter().map(|listener| listener.address).collect();
    for listener in &mut imported.policy.listen {
        listener.address.set_port(0);
    }
    let policy = folder.path().join("policy.yaml");
    let text = imported.print(PolicyFormat::Yaml);
    fs::write(&policy, &text).unwrap();
    let gateway = Gateway::open(PolicySource::file(policy), Rules::new()).unwrap();
    let ours = gateway.addresses();
    let (stop, stopped) = oneshot::channel::<()>();
    let end = tokio::spawn(gateway.run(async {
        let _ = stopped.await;
    }));
    let mut series = RequestSequence(case.name.len() as u64);
    let mut statuses: BTreeMap<u16, usize> = BTreeMap::new();
    for number in 0..REQUESTS_PER_CASE {
        let request = series.next_request(case, theirs.len());
        let (nginx, gateway) = (request.send(theirs[request.listener]), request.send(ours[request.listener]));
        *statuses.entry(nginx.status).or_default() += 1;
        assert_eq!(gateway, nginx, "{}: request {number}, {request}\n{text}", case.name);
    }
    println!("{}: {statuses:?}", case.name);
    // If all requests had the same result, the comparison would prove nothing.
    assert!(
        statuses.len() > 1 || case.hosts.len() > 1 || case.paths.len() > 2,
        "{}: {statuses:?}",
        case.name
    );
    drop(stop);
    end.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn imported_gateway_answers_as_nginx_does() {
    assert!(CASES.len() >= 12);
    for case in CASES {
        compare(case).await;
    }
}

//! Imports of nginx configurations.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::requests::PolicyTestRequest;
use proptest::prelude::*;
use std::{
    collections::BTreeMap,
    env, fs, io,
    path::{Path, PathBuf},
};
use tidegate_import::{FileTree, ImportedPolicy};
use tidegate_limiter::Clock;
use tidegate_policy::{
    FileSource, Policy, PolicyFormat, Problems,
    compile::{self, Compiler, PolicyGate, PolicyResult},
};
use tidegate_rule::{Evaluation, Rules, request::RequestHead};

fn compile_gate(policy: &Policy) -> PolicyGate {
    let (clock, _manual_clock) = Clock::manual();
    Compiler::new(Rules::new()).clock(clock).compile(policy, None).unwrap()
}

/// Returns how many of ten requests are admitted.
fn count_admitted(gate: &PolicyGate, request: &dyn RequestHead) -> usize {
    let is_admitted = |_: &i32| matches!(gate.check(request), Evaluation::Ready(PolicyResult::Admitted(_)));
    (0..10).filter(is_admitted).count()
}

/// Files in memory.
pub(crate) struct MemoryFiles(BTreeMap<PathBuf, Vec<u8>>);

impl MemoryFiles {
    pub(crate) fn new(files: &[(&str, &str)]) -> Self {
        Self(files.iter().map(|(name, text)| (PathBuf::from(name), text.as_bytes().to_vec())).collect())
    }
}

impl FileSource for MemoryFiles {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.0.get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl FileTree for MemoryFiles {
    fn list_names(&self, folder: &Path) -> io::Result<Vec<String>> {
        let inside = self.0.keys().filter(|path| path.parent() == Some(folder));
        Ok(inside.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect())
    }
}

pub(crate) fn import_text(text: &str) -> Result<ImportedPolicy, Problems> {
    ImportedPolicy::nginx("nginx.conf", &MemoryFiles::new(&[("nginx.conf", text)]))
}

/// Asserts that each configuration of a document is imported as the policy beside it; `TIDEGATE_BLESS=1` rewrites them.
fn compare_document(
    path: &str,
    pieces: impl Fn(&str) -> Vec<(String, String)>,
    write: impl Fn(&str, &[String]) -> String,
) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let text = fs::read_to_string(&path).unwrap();
    let found: Vec<(String, String, String)> = pieces(&text)
        .into_iter()
        .map(|(nginx, expected)| {
            let imported = import_text(&nginx).unwrap_or_else(|problems| panic!("{nginx}\n{problems}"));
            let printed = imported.print(PolicyFormat::Yaml);
            assert_eq!(printed.parse::<Policy>().unwrap(), imported.policy, "{nginx}");
            (nginx, expected, printed)
        })
        .collect();
    if env::var_os("TIDEGATE_BLESS").is_some() {
        let printed: Vec<String> = found.iter().map(|(_, _, printed)| printed.clone()).collect();
        return fs::write(&path, write(&text, &printed)).unwrap();
    }
    for (nginx, expected, printed) in found {
        assert_eq!(printed, expected, "{nginx}");
    }
}

/// The examples in `docs/from-nginx.md` show the real output.
#[test]
fn guide_matches_output() {
    const YAML: &str = "```\n```yaml\n";
    let pieces = |text: &str| {
        let blocks = text.split("```nginx\n").skip(1);
        let piece = |block: &str| {
            let (nginx, rest) = block.split_once(YAML).unwrap();
            (nginx.to_owned(), rest.split_once("```").unwrap().0.to_owned())
        };
        blocks.map(piece).collect()
    };
    let write = |text: &str, printed: &[String]| {
        let mut blocks = text.split("```nginx\n");
        let mut written = blocks.next().unwrap().to_owned();
        for (block, policy) in blocks.zip(printed) {
            let (nginx, rest) = block.split_once(YAML).unwrap();
            written += &format!("```nginx\n{nginx}{YAML}{policy}```{}", rest.split_once("```").unwrap().1);
        }
        written
    };
    compare_document("../../docs/from-nginx.md", pieces, write);
}

/// `tests/imports.txt`: a configuration, `=>`, the policy, and a line of dashes.
#[test]
fn configurations_become_policies() {
    const SEPARATOR: &str = "--------\n";
    let pieces = |text: &str| {
        let cases = text.split(SEPARATOR).filter(|case| !case.trim().is_empty());
        let piece = |case: &str| {
            let (nginx, policy) = case.split_once("=>\n").unwrap();
            (nginx.to_owned(), policy.to_owned())
        };
        cases.map(piece).collect()
    };
    let write = |text: &str, printed: &[String]| {
        let cases: Vec<_> = pieces(text);
        let case = |((nginx, _), policy): (&(String, String), &String)| format!("{nginx}=>\n{policy}");
        cases.iter().zip(printed).map(case).collect::<Vec<_>>().join(SEPARATOR)
    };
    compare_document("tests/imports.txt", pieces, write);
}

#[test]
fn invalid_configuration_is_reported_with_position() {
    let zone = "limit_req_zone $host zone=one:1m rate=1r/s;";
    let cases = [
        ("http {", "nginx.conf:1:1: the block `http` is not closed; add a `}` at its end"),
        (
            "http { } }",
            "nginx.conf:1:10: unexpected `}` without an open block; remove it, or add the missing `{` before it",
        ),
        (
            "http { sendfile on }",
            "nginx.conf:1:8: the directive `sendfile` is not terminated; add a `;` after it",
        ),
        ("user 'a", "nginx.conf:1:6: unterminated quoted string; add the closing '"),
        (
            "user 'a'b;",
            "nginx.conf:1:8: unexpected character after a closing quote; add a space after the quote, or quote the whole word",
        ),
        (
            "http { ; }",
            "nginx.conf:1:8: unexpected `;` without a directive; write a directive before it, or remove it",
        ),
        (
            "limit_req_zone $host zone=one:1m rate=fast;",
            "nginx.conf:1:34: `fast` is not a valid rate; write a whole number and a unit, for example `10r/s` or `30r/m`",
        ),
        (
            "limit_req_zone zone=one:1m;",
            "nginx.conf:1:1: `limit_req_zone` takes a key and a zone; write for example `limit_req_zone $binary_remote_addr zone=one:10m …;`",
        ),
        (&format!("{zone} {zone}"), "nginx.conf:1:45: duplicate zone name `one`; rename one of them"),
        (
            &format!("{zone} server {{ limit_req zone=two; }}"),
            "nginx.conf:1:54: unknown zone `two`; define it with `limit_req_zone`; known zones: one",
        ),
        (
            &format!("{zone} server {{ limit_req zone=one burst=many; }}"),
            "nginx.conf:1:73: `burst=many` is not a valid number of requests; write `burst=` and a whole number of at least 1",
        ),
        (
            &format!("{zone} server {{ limit_req zone=one brst=5; }}"),
            "nginx.conf:1:73: unknown parameter `brst=5`; write for example `limit_req zone=one burst=5 nodelay;`",
        ),
        (
            &format!("{zone} server {{ limit_req zone=one; limit_req zone=one; }}"),
            "nginx.conf:1:74: duplicate zone `one` on one level; remove one of them",
        ),
        (
            "server { limit_conn one; }",
            "nginx.conf:1:10: `limit_conn` takes a zone and a number of connections; write for example `limit_conn one 10;`; the maximum is 65535",
        ),
        (
            "server { limit_conn one 3; }",
            "nginx.conf:1:10: unknown zone `one`; define it with `limit_conn_zone`",
        ),
        (
            "server { limit_req_status 200; }",
            "nginx.conf:1:10: `limit_req_status` takes a status from 400 to 599; write `limit_req_status 429;`",
        ),
        (
            "server { limit_conn_dry_run yes; }",
            "nginx.conf:1:10: `limit_conn_dry_run` takes `on` or `off`; write `limit_conn_dry_run on;` or `limit_conn_dry_run off;`",
        ),
        (
            "server { limit_rate fast; }",
            "nginx.conf:1:10: `limit_rate` takes a number of bytes; write for example `limit_rate 100k;`",
        ),
        ("http { } server { }", "nginx.conf:1:10: `server` outside of `http`; move it into `http { … }`"),
        ("include a b;", "nginx.conf:1:1: `include` takes one file name; write `include FILE;`"),
        ("include nginx.conf;", "nginx.conf:1:9: `nginx.conf` includes itself; remove the `include`"),
    ];
    for (text, expected) in cases {
        let Err(problems) = import_text(text) else { panic!("{text}") };
        let message = problems.to_string();
        assert_eq!(message.lines().next(), Some(expected), "{text}");
    }
    let deep = "a {".repeat(70) + &"}".repeat(70);
    assert!(import_text(&deep).unwrap_err().to_string().contains("more than 64 levels deep"));
    assert!(import_text("\u{feff}user a;").is_ok());
    let invalid = MemoryFiles(BTreeMap::from([(PathBuf::from("nginx.conf"), b"user \xff;".to_vec())]));
    assert!(ImportedPolicy::nginx("nginx.conf", &invalid).unwrap_err().to_string().contains("invalid UTF-8"));
}

#[test]
fn includes_are_expanded_in_place() {
    let files = MemoryFiles::new(&[
        ("etc/nginx.conf", "http { include zones.conf; include sites/*.conf; include none/*; }"),
        ("etc/zones.conf", "limit_req_zone $binary_remote_addr zone=one:1m rate=1r/s;"),
        ("etc/sites/b.conf", "server { server_name b; include ./limit.inc; }"),
        ("etc/sites/a.conf", "server { server_name a; gzip on; include limit.inc; }"),
        ("etc/sites/.a.conf", "server { server_name hidden; }"),
        ("etc/sites/a.conf.bak", "server {"),
        ("etc/limit.inc", "limit_req zone=one burst=3;"),
    ]);
    let imported = ImportedPolicy::nginx("etc/nginx.conf", &files).unwrap();
    assert_eq!(imported.policy.rules.len(), 1);
    let losses: Vec<String> = imported.losses.iter().map(ToString::to_string).collect();
    assert_eq!(losses, ["etc/sites/a.conf:1: `gzip on`: responses are forwarded unchanged"]);

    let error = ImportedPolicy::nginx("a", &MemoryFiles::new(&[])).unwrap_err().to_string();
    assert!(error.contains("cannot read `a`: "), "{error}");
    assert!(error.contains("; name a file that exists and is readable"), "{error}");
    let ring = MemoryFiles::new(&[("a", "include b;"), ("b", "include c;"), ("c", "include a;")]);
    let message = ImportedPolicy::nginx("a", &ring).unwrap_err().to_string();
    assert!(message.starts_with("c:1:9: `a` includes itself"), "{message}");
    let includes: String = (0..40).map(|_| "include b;").collect();
    let many = MemoryFiles::new(&[("a", &includes), ("b", &includes.replace('b', "c")), ("c", "user a;")]);
    let message = ImportedPolicy::nginx("a", &many).unwrap_err().to_string();
    assert!(
        message.contains("more than 1000 included files, or 16777216 bytes; include fewer files"),
        "{message}"
    );
    let chain: Vec<(String, String)> =
        (0..70).map(|at| (at.to_string(), format!("include {};", at + 1))).collect();
    let chain: Vec<_> = chain.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let message = ImportedPolicy::nginx("0", &MemoryFiles::new(&chain)).unwrap_err().to_string();
    assert!(
        message.starts_with("65:1:1: more than 64 levels of blocks and files; use fewer levels"),
        "{message}"
    );
}

/// The imported policy limits the same requests as the configuration.
#[test]
fn imported_policy_limits_same_requests() {
    let text = "geo $limit { default 1; 10.0.0.0/8 0; 10.9.0.0/16 1; }
        map $limit $key { 0 ''; 1 $binary_remote_addr; }
        limit_req_zone $key zone=one:1m rate=1r/m;
        limit_req_zone $binary_remote_addr zone=two:1m rate=1r/m;
        server { server_name a.test; limit_req zone=one burst=1 nodelay;
            location /free/ { limit_req zone=two burst=7 nodelay; }
            location ~ \\.gif$ { limit_req zone=two burst=4 nodelay; } }
        server { server_name b.test *.b.test; location = /x { limit_req zone=one burst=1 nodelay; } }";
    let policy = import_text(text).unwrap().policy;
    let cases = [
        ("GET a.test/", "192.0.2.1", 2),
        ("GET unknown.test/", "192.0.2.1", 2),
        ("GET a.test/", "10.1.2.3", 10),
        ("GET a.test/", "10.9.2.3", 2),
        ("GET a.test/free/x", "192.0.2.1", 8),
        ("GET a.test/freely", "192.0.2.1", 2),
        ("GET a.test/free/x.gif", "192.0.2.1", 5),
        ("GET b.test/", "192.0.2.1", 10),
        ("GET b.test/x", "192.0.2.1", 2),
        ("GET www.b.test/x", "192.0.2.1", 2),
        ("GET www.b.test/x/y", "192.0.2.1", 10),
    ];
    for (request, client, count) in cases {
        assert_eq!(
            count_admitted(&compile_gate(&policy), &PolicyTestRequest::new(request).with_peer(client)),
            count,
            "{request} {client}"
        );
    }
}

/// Returns the upstream of a request at a listener.
fn upstream_of(policy: &Policy, request: &str, listener: &str) -> Option<String> {
    let request =
        PolicyTestRequest { listener: Some(listener.to_owned()), ..PolicyTestRequest::new(request) };
    compile_gate(policy).find_route(&request).and_then(|route| route.upstream().map(str::to_owned))
}

#[test]
fn name_at_one_port_is_unreachable_at_another() {
    let text = "server { listen 8086; server_name shop.test; location / { proxy_pass http://127.0.0.1:1; } }
        server { listen 8087; server_name internal.test; location / { proxy_pass http://127.0.0.1:2; } }
        server { listen 80; server_name shop.test; return 301 https://$host$request_uri; }";
    let policy = import_text(text).unwrap().policy;
    for host in ["shop.test", "internal.test", "other.test"] {
        let request = format!("GET {host}/secret");
        assert_eq!(upstream_of(&policy, &request, "port-8086").as_deref(), Some("127.0.0.1:1"), "{host}");
        assert_eq!(upstream_of(&policy, &request, "port-8087").as_deref(), Some("127.0.0.1:2"), "{host}");
        assert_eq!(upstream_of(&policy, &request, "port-80"), None, "{host}");
        assert_eq!(upstream_of(&policy, &request, "elsewhere"), None, "{host}");
    }
}

/// Generates lists of `allow` and `deny`, each for a network or for all.
fn access_entries() -> impl Strategy<Value = Vec<(bool, Option<&'static str>)>> {
    let networks =
        vec!["10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "192.0.2.0/24", "192.0.2.7", "2001:db8::/32"];
    let network = prop_oneof![6 => proptest::sample::select(networks).prop_map(Some), 1 => Just(None)];
    proptest::collection::vec((any::<bool>(), network), 0..8)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn first_entry_of_a_list_decides(entries in access_entries()) {
        let write = |(is_deny, network): &(bool, Option<&str>)| {
            format!("{} {};", if *is_deny { "deny" } else { "allow" }, network.unwrap_or("all"))
        };
        let list: String = entries.iter().map(write).collect();
        let policy = import_text(&format!("server {{ {list} location / {{ proxy_pass http://127.0.0.1:1; }} }}")).unwrap().policy;
        let gate = compile_gate(&policy);
        for client in ["10.0.0.1", "10.1.0.1", "10.1.2.3", "192.0.2.7", "192.0.2.8", "2001:db8::1", "8.8.8.8", "::1"] {
            let holds = |network: &Option<&str>| network.is_none_or(|network| {
                network.parse::<tidegate_access::Prefix>().unwrap().contains(client.parse().unwrap())
            });
            let is_denied = entries.iter().find(|(_, network)| holds(network)).is_some_and(|(is_deny, _)| *is_deny);
            let count = count_admitted(&gate, &PolicyTestRequest::new("GET a.test/").with_peer(client));
            prop_assert_eq!(count == 0, is_denied, "{} {}", list, client);
        }
    }
}

/// The default configuration of Debian, which has no limits.
#[test]
fn debian_configuration_is_imported() {
    let files = MemoryFiles::new(&[
        ("/etc/nginx/nginx.conf", include_str!("../nginx/nginx.conf")),
        ("/etc/nginx/mime.types", "types { text/html html htm shtml; image/gif gif; }"),
        ("/etc/nginx/sites-enabled/default", include_str!("../nginx/default")),
    ]);
    let imported = ImportedPolicy::nginx("/etc/nginx/nginx.conf", &files).unwrap();
    let policy = "listen: [0.0.0.0:80, \"[::]:80\"]\n";
    assert_eq!(imported.policy.print(PolicyFormat::Yaml), policy);
    let losses: Vec<&str> = imported.losses.iter().map(|loss| loss.text.as_str()).collect();
    assert_eq!(losses.len(), 7, "{losses:?}");
}

const CONFIG_WORDS: &[&str] = &[
    "http",
    "server",
    "location",
    "{",
    "}",
    ";",
    "/",
    "/a",
    "/a/",
    "=",
    "^~",
    "~",
    "~*",
    "\\.php$",
    "^/(a|b)/",
    "limit_req",
    "zone=one",
    "zone=two",
    "burst=5",
    "nodelay",
    "delay=2",
    "limit_req_zone",
    "$binary_remote_addr",
    "$key",
    "$server_name",
    "$http_x$uri",
    "zone=one:1m",
    "zone=two:1m",
    "rate=5r/s",
    "rate=7r/m",
    "limit_conn_zone",
    "limit_conn",
    "one",
    "two",
    "3",
    "limit_rate",
    "limit_rate_after",
    "10k",
    "geo",
    "map",
    "$limit",
    "default",
    "1",
    "0",
    "10.0.0.0/8",
    "10.1.0.0/16",
    "::1",
    "''",
    "\"",
    "\\",
    "#\n",
    "upstream",
    "app",
    "proxy_pass",
    "http://app",
    "http://127.0.0.1:9/x",
    "https://[::1]",
    "127.0.0.1:9",
    "weight=2",
    "backup",
    "listen",
    "80",
    "443",
    "ssl",
    "server_name",
    "a.b",
    "*.b",
    ".c",
    "_",
    "limit_req_dry_run",
    "on",
    "limit_req_status",
    "429",
    "include",
    "nginx.conf",
    "set_real_ip_from",
    "real_ip_header",
    "X-Forwarded-For",
    "$request_method",
    "POST",
    "é",
    "\u{0}",
];

/// A valid configuration for mutation.
const WHOLE_CONFIG: &str = include_str!("../nginx/whole.conf");

/// Asserts that the printed policy parses to the same policy and compiles.
fn check_round_trip(text: &str) -> Result<(), TestCaseError> {
    if let Ok(imported) = import_text(text) {
        for format in PolicyFormat::ALL {
            let printed = imported.print(format);
            prop_assert_eq!(&Policy::parse(&printed, format).unwrap(), &imported.policy, "{}", printed);
        }
        prop_assert!(compile::check(&imported.policy).is_ok());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_text_round_trips_or_fails(text in any::<String>()) {
        check_round_trip(&text)?;
    }

    #[test]
    fn arbitrary_words_round_trip_or_fail(words in proptest::collection::vec(proptest::sample::select(CONFIG_WORDS), 0..60)) {
        check_round_trip(&words.join(" "))?;
    }

    /// Changes, removes and repeats words of a valid configuration.
    #[test]
    fn mutated_configuration_round_trips_or_fails(changes in proptest::collection::vec((any::<prop::sample::Index>(), 0_usize..4, proptest::sample::select(CONFIG_WORDS)), 1..12)) {
        let mut words: Vec<String> = WHOLE_CONFIG.split_inclusive([' ', ';', '\n']).map(str::to_owned).collect();
        for (at, how, piece) in changes {
            let at = at.index(words.len());
            match how {
                0 => words[at] = format!("{piece} "),
                1 => words[at].clear(),
                2 => { let twice = words[at].clone(); words.insert(at, twice); }
                _ => words[at].extend(piece.chars().rev()),
            }
        }
        check_round_trip(&words.concat())?;
    }
}

/// The output for large, generated configurations must not grow with the square of the input.
#[test]
fn large_configurations_are_bounded() {
    let networks: String =
        (0..20_000).map(|n| format!("10.{}.{}.0/24 {};", n / 256, n % 256, n % 2)).collect();
    let geo = format!("geo $limit {{ default 1; {networks} }} map $limit $key {{ 0 ''; 1 $host; }}");
    let zones: String = (0..300).map(|n| format!("limit_req_zone $key zone=z{n}:1m;")).collect();
    let locations: String =
        (0..3_000).map(|n| format!("location /{n}/ {{ limit_req zone=z{}; }}", n % 300)).collect();
    let servers: String = (0..6_000).map(|n| format!("server {{ server_name n{n}.test; }}")).collect();
    let texts = [
        format!("{geo}{zones}server {{ {locations} }}"),
        format!("limit_req_zone $host zone=one:1m; {servers} server {{ limit_req zone=one; }}"),
        "location /a/ {".to_owned(),
        format!("server {{ {} }}", "location ~ ^/a/ { }".repeat(2_000)),
        format!(
            "limit_req_zone $host zone=a:1m; server {{ {} }}",
            (1..3_000)
                .map(|n| format!("location /{n} {{ limit_req zone=a burst={n}; }}"))
                .collect::<String>()
        ),
    ];
    for text in texts {
        if let Ok(imported) = import_text(&text) {
            assert!(imported.policy.rules.len() <= 1_000);
        }
    }
}

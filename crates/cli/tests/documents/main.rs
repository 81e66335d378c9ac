//! Runs the code blocks of `README.md`, of the pages in `docs` and of the page about Kubernetes. `scripts/words translations` compares the pages in Chinese with them.
//!
//! | block | test |
//! |---|---|
//! | `sh` | each page is one shell: all its commands succeed, in order; `curl` fails on a status of 400 or more |
//! | `console` | the commands after `$ ` run in the same shell, and print the lines that follow; see `compare.rs` |
//! | `yaml` | a policy: saved as `policy.yaml`, and valid for `tidegate check` |
//! | `yaml,limits` | a file of envoyproxy/ratelimit, which `tidegate serve --envoy-config` serves |
//! | `yaml,prometheus`, `yaml,prometheus-rules` | Prometheus starts with it |
//! | `toml,manifest` | a part of a `Cargo.toml`, which Cargo reads |
//! | `json` | parses |
//! | `text` | the output of the comment `<!-- run: COMMANDS -->` before it |
//! | `text,format` | the form of a log, an event or an option; not compared |
//! | `rust` | a doc test of `crates/tidegate`, which includes the page |
//!
//! A comment `<!-- run: COMMANDS -->` before another block prepares it: it runs in the same shell. A command that serves runs
//! in the background, until the page starts the same program again or ends. The documented ports are replaced by free ones.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

mod compare;
mod page;
mod shell;

use page::{Block, MarkdownPage, Part};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::Mutex,
    thread,
};

/// Blocks that do not run here: page, language, how the block starts (all blocks of the language if empty), and why, with the
/// test or the script that runs it instead.
const NOT_RUN: &[(&str, &str, &str, &str)] = &[
    ("README.md", "sh", "cargo install ", "compiles for minutes; `scripts/package` installs the program"),
    (
        "docs/tutorial.md",
        "sh",
        "cargo build ",
        "compiles for minutes; `scripts/package` installs the program",
    ),
    ("docs/architecture.md", "mermaid", "", "a diagram; GitHub draws it"),
    ("docs/decisions-over-http.md", "sh", "curl ", "crates/gateway/tests/suite/decisions/openapi.rs"),
    ("docs/from-governor.md", "rust,ignore", "", "the code for governor that a user has"),
    ("docs/from-nginx.md", "nginx", "", "crates/import/tests/suite/import.rs: guide_matches_output"),
    ("docs/from-spring.md", "java", "", "the code for Spring that a user has"),
    (
        "docs/http-api.md",
        "sh",
        "",
        "crates/cli/tests/service/schemathesis.rs sends the examples of openapi.json",
    ),
    (
        "docs/identity.md",
        "console",
        "$ tidegate apikey",
        "prints random keys; crates/cli/tests/suite/apikey.rs",
    ),
    ("docs/install.md", "sh", "", "builds and installs packages; `scripts/package` tries each"),
    ("docs/library.md", "sh", "tidegate verify ", "thousands of quotas; crates/cli/tests/suite/verify.rs"),
    (
        "docs/library.md",
        "text",
        "HTTP/1.1 429",
        "crates/tower/tests/suite/axum.rs: documented_rejection_is_sent",
    ),
    ("docs/operating.md", "text", "$ tidegate top", "needs traffic; crates/cli/tests/gateway/top.rs"),
    ("docs/operating.md", "text", "$ tidegate why", "needs traffic; docs/tutorial.md runs it"),
    ("docs/operating.md", "text", "$ tidegate shadow", "needs traffic; docs/tutorial.md runs it"),
    ("docs/operating.md", "text", "$ tidegate bench", "measures speed; crates/cli/tests/gateway/bench.rs"),
    (
        "docs/overload.md",
        "text",
        "tidegate simulate",
        "minutes; crates/cli/tests/suite/closed_loop.rs and images.rs",
    ),
    (
        "docs/overload.md",
        "text",
        "",
        "crates/cli/tests/suite/closed_loop.rs: document_matches_command_output",
    ),
    ("docs/releasing.md", "sh", "", "publishes a release"),
    (
        "docs/replay.md",
        "text",
        "access.log",
        "crates/replay/tests/suite/docs.rs: replay_document_matches_output",
    ),
    (KUBERNETES, "sh", "docker build ", "compiles for minutes; `scripts/package` builds the image"),
    (KUBERNETES, "sh", "kubectl ", "needs a cluster; packaging/kubernetes/check validates the manifests"),
    (KUBERNETES, "sh", ". ./secrets.env", "needs a cluster"),
    (KUBERNETES, "yaml", "images:", "a part of kustomization.yaml"),
    (KUBERNETES, "yaml", "apiVersion:", "the configuration of Envoy Gateway"),
    (KUBERNETES, "yaml", "name: tidegate\n", "a part of the configuration of Envoy"),
];

const KUBERNETES: &str = "packaging/kubernetes/README.md";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn pages() -> Vec<MarkdownPage> {
    let mut names = vec!["README.md".to_owned(), KUBERNETES.to_owned()];
    for entry in fs::read_dir(root().join("docs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".md") {
            names.push(format!("docs/{name}"));
        }
    }
    names.sort();
    names
        .into_iter()
        .map(|name| MarkdownPage::parse(&name, &fs::read_to_string(root().join(&name)).unwrap()))
        .collect()
}

/// The entry of `NOT_RUN` for a block.
fn not_run(page: &MarkdownPage, block: &Block) -> Option<usize> {
    NOT_RUN.iter().position(|(name, language, start, _)| {
        *name == page.name && *language == block.language && block.text.starts_with(start)
    })
}

#[test]
fn documented_code_runs() {
    let pages = pages();
    let mut used = BTreeSet::new();
    for page in &pages {
        used.extend(page.blocks().filter_map(|block| not_run(page, block)));
    }
    let mut problems: Vec<String> = (0..NOT_RUN.len())
        .filter(|entry| !used.contains(entry))
        .map(|entry| format!("NOT_RUN: no block matches {:?}; remove the entry", NOT_RUN[entry]))
        .collect();

    let queue = Mutex::new(pages.into_iter());
    let found = Mutex::new(Vec::new());
    // Twice the processors, because pages also wait for servers.
    let threads = 2 * thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let Some(page) = queue.lock().unwrap().next() else { return };
                    let result = check(&page);
                    found
                        .lock()
                        .unwrap()
                        .extend(result.err().map(|problem| format!("{}:{problem}", page.name)));
                }
            });
        }
    });
    problems.extend(found.into_inner().unwrap());
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n\n"));
}

/// Checks all blocks of a page. An error starts with the line.
fn check(page: &MarkdownPage) -> Result<(), String> {
    let mut script = shell::Script::default();
    let mut prepared: Option<&Block> = None;
    for part in &page.parts {
        let block = match part {
            Part::Comment(comment) => {
                if let Some(comment) = prepared.replace(comment) {
                    script.run(comment);
                }
                continue;
            }
            Part::Block(block) => block,
        };
        let comment = prepared.take();
        if not_run(page, block).is_some() {
            continue;
        }
        if let (Some(comment), true) = (comment, block.language != "text") {
            script.run(comment);
        }
        match block.language.as_str() {
            "sh" => script.run(block),
            "console" => script.run_console(block)?,
            "text" => match comment {
                Some(comment) => script.run_comment(comment, block),
                None => {
                    return Err(format!("{}: no comment `<!-- run: ... -->` prints this text", block.line));
                }
            },
            "text,format" => {}
            "yaml" => script.check("check_policy", block),
            "yaml,limits" => script.check("check_limits", block),
            "yaml,prometheus" => script.check("check_prometheus", block),
            "yaml,prometheus-rules" => script.check("check_prometheus_rules", block),
            "toml,manifest" => script.check("check_manifest", block),
            "json" => {
                let parsed = serde_json::from_str::<serde_json::Value>(&block.text);
                parsed.map(drop).map_err(|error| format!("{}: {error}", block.line))?;
            }
            "rust" | "rust,no_run" => check_doc_test(page, block)?,
            other => return Err(format!("{}: unknown language `{other}` of a code block", block.line)),
        }
    }
    script.execute(&root())
}

/// Whether the page is part of the documentation of `crates/tidegate`, so that its Rust code runs as a doc test.
fn check_doc_test(page: &MarkdownPage, block: &Block) -> Result<(), String> {
    let library = fs::read_to_string(root().join("crates/tidegate/src/lib.rs")).unwrap();
    match library.contains(&format!("include_str!(\"../../../{}\")", page.name)) {
        true => Ok(()),
        false => Err(format!(
            "{}: not a doc test: crates/tidegate/src/lib.rs does not include the page",
            block.line
        )),
    }
}

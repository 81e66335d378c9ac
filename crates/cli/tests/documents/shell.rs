//! Runs the commands of a page in one shell.

use crate::{compare::compare, page::Block};
use std::{env, fs, os::unix::fs::symlink, path::Path, process::Command};
use tidegate_testkit::servers::{Certificates, RedisServer, ReservedPort, skip_without};

/// The ports in the pages and in `examples`. Each is replaced by a free one.
const PORTS: &[u16] = &[
    4318, 6070, 6379, 8080, 8081, 8082, 8090, 8443, 8888, 9000, 9001, 9090, 9091, 9100, 9901, 16070, 18080,
    18081,
];

/// Printed between the outputs of two steps.
const SEPARATOR: &str = "--- end of output, next step: ";

/// Seconds after which a page fails.
const PAGE_TIMEOUT: &str = "100";

const PRELUDE: &str = r#"
set -e
trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT
declare -A servers

# Waits until the log of a server in the background has its addresses.
wait_for_log() {
    until grep -qE '^[A-Za-z]+ +(http://)?127[.]0[.]0[.]1:' "$2"; do
        kill -0 "$1" 2>/dev/null || { echo "the server does not start: $(cat "$2")"; return 1; }
        command sleep 0.05
    done
}

# Runs a server in the background. It ends when the page starts the same program again.
start_server() {
    if [ -n "${servers[$1]}" ]; then
        kill "${servers[$1]}"
        wait "${servers[$1]}" || true
    fi
    # The addresses of the server before it must not be found.
    : > "$logs/$1.log"
    command "$@" > "$logs/$1.log" 2>&1 &
    servers[$1]=$!
    [ "$1" = envoy ] || wait_for_log $! "$logs/$1.log"
}

tidegate() {
    if [ "$1" != serve ]; then
        command tidegate "$@"
    elif [ $BASHPID != $$ ]; then
        # Started with `&`: the page has the process id.
        exec tidegate "$@"
    elif [[ " $* " == *.yaml* || " $* " == *--envoy-config* ]]; then
        start_server tidegate "$@"
    else
        # The demo selects its ports. Its policy, which it prints, is served on those of the page.
        start_server tidegate "$@"
        until grep -q '^rules:' "$logs/tidegate.log"; do command sleep 0.05; done
        sed -e '1,/^This is the policy/d' -e 's/^listen:.*/listen: 127.0.0.1:8080/' -e 's/^admin:.*/admin: 127.0.0.1:9091/' \
            "$logs/tidegate.log" > "$logs/demo.yaml"
        start_server tidegate serve "$logs/demo.yaml"
    fi
}

envoy() {
    command envoy --mode validate "$@" > /dev/null 2>&1 || command envoy --mode validate "$@"
    start_server envoy "$@" --disable-hot-restart --concurrency 1
    until command curl -sf http://127.0.0.1:9901/ready > /dev/null; do
        kill -0 ${servers[envoy]}
        command sleep 0.05
    done
}

cargo() {
    case "$*" in
        "run --release -- "*) tidegate "${@:4}" ;;
        "add "*) command cargo "$@" --offline 2>&1 ;;
        *) echo "cargo $1 does not run here"; return 1 ;;
    esac
}

# In the pages, this waits until the server in the background has redirected its output and started.
sleep() {
    while [ /proc/$!/fd/1 -ef /proc/$$/fd/1 ]; do command sleep 0.05; done
    wait_for_log $! /proc/$!/fd/1
}

curl() { command curl --noproxy '*' $curl_options "$@"; }

# The page of the manual exists.
man() { test -s ~/.local/share/man/man1/"$1".1; }

check_policy() {
    cp "$1" policy.yaml
    command tidegate check policy.yaml
}

check_limits() {
    mkdir -p "$1.d"
    cp "$1" "$1.d/limits.yaml"
    start_server tidegate serve --envoy-config "$1.d"
    # An invalid file does not stop the service.
    command curl -sf http://127.0.0.1:6070/rlconfig | grep . || { cat "$logs/tidegate.log"; return 1; }
}

# Prometheus reads its rules after it has started to listen, and exits if they are invalid.
check_prometheus() {
    command prometheus --config.file="$1" --storage.tsdb.path="$1.data" --web.listen-address=127.0.0.1:9090 > "$1.log" 2>&1 &
    until grep -q 'Server is ready to receive web requests' "$1.log"; do
        kill -0 $! 2>/dev/null || { cat "$1.log"; return 1; }
        command sleep 0.05
    done
    kill $!
    wait $! || true
}

check_prometheus_rules() {
    echo "rule_files: ['$1']" > "$1.config"
    check_prometheus "$1.config"
}

check_manifest() {
    cat Cargo.toml "$1" > "$1.toml"
    mkdir "$1.d"
    mv "$1.toml" "$1.d/Cargo.toml"
    cp -r src "$1.d"
    (cd "$1.d" && command cargo metadata --no-deps --offline --format-version 1 > /dev/null)
}
"#;

/// The commands of a page, with the documented outputs.
#[derive(Debug, Default)]
pub(crate) struct Script {
    text: String,
    steps: Vec<Step>,
    /// Files that the commands use: name and content.
    files: Vec<(String, String)>,
}

#[derive(Debug)]
struct Step {
    line: usize,
    /// The documented output, if there is one.
    output: Option<String>,
}

impl Script {
    /// Runs commands whose output is not documented.
    pub(crate) fn run(&mut self, block: &Block) {
        self.add(block.line, &format!("curl_options=--fail-with-body\n{}", block.text), None);
    }

    /// Runs the commands of a comment that print this block. They may fail, as those of a console.
    pub(crate) fn run_comment(&mut self, comment: &Block, block: &Block) {
        let commands = format!("curl_options=\nset +e\n{}set -e\n", comment.text);
        self.add(block.line, &commands, Some(block.text.clone()));
    }

    /// Runs the commands after `$ `, each with the output up to the next one. A command may fail, if it prints the documented error.
    pub(crate) fn run_console(&mut self, block: &Block) -> Result<(), String> {
        let mut commands: Vec<(usize, &str, String)> = Vec::new();
        for (line, number) in block.text.lines().zip(block.line..) {
            match (line.strip_prefix("$ "), commands.last_mut()) {
                (Some(command), _) => commands.push((number, command, String::new())),
                (None, Some((_, _, output))) => *output += &format!("{line}\n"),
                (None, None) => return Err(format!("{number}: a console block starts with `$ `")),
            }
        }
        for (line, command, output) in commands {
            self.add(line, &format!("curl_options=\nset +e\n{command}\nset -e\n"), Some(output));
        }
        Ok(())
    }

    /// Runs a function of the prelude on a file with the text of this block.
    pub(crate) fn check(&mut self, function: &str, block: &Block) {
        let name = format!("block-{}", block.line);
        self.files.push((name.clone(), block.text.clone()));
        self.add(block.line, &format!("{function} \"$logs/{name}\"\n"), None);
    }

    fn add(&mut self, line: usize, commands: &str, output: Option<String>) {
        self.text += &format!("printf '\\n%s\\n' '{SEPARATOR}{}'\n{commands}", self.steps.len());
        self.steps.push(Step { line, output });
    }

    fn uses(&self, program: &str) -> bool {
        self.text.contains(program)
    }

    pub(crate) fn execute(self, root: &Path) -> Result<(), String> {
        for (word, program) in [("envoy -c", "envoy"), ("check_prometheus", "prometheus")] {
            if self.uses(word) && Command::new(program).arg("--version").output().is_err() {
                skip_without(program);
                return Ok(());
            }
        }
        if self.steps.is_empty() {
            return Ok(());
        }
        let redis = self.uses("6379").then(RedisServer::start).transpose()?;
        let ports = Ports::reserve(redis.as_ref())?;
        let directory = tempfile::tempdir().unwrap();
        let (folder, logs) = (directory.path().join("checkout"), directory.path().join("logs"));
        prepare(root, &folder, &ports);
        fs::create_dir(&logs).unwrap();
        for (name, text) in &self.files {
            fs::write(logs.join(name), ports.replace(text)).unwrap();
        }
        let mut prelude = format!("logs='{}'\n{PRELUDE}", logs.display());
        if self.uses("on 127.0.0.1:9000") {
            fs::write(logs.join("backend.yaml"), ports.replace(BACKEND)).unwrap();
            prelude += "command tidegate serve \"$logs/backend.yaml\" > \"$logs/backend.log\" 2>&1 &\nwait_for_log $! \"$logs/backend.log\"\n";
        }
        // The files of the user stay in the directory of the page.
        let script = (prelude + &self.text).replace("~/", &format!("{}/", directory.path().display()));
        fs::write(logs.join("page.sh"), ports.replace(&script)).unwrap();
        let output = self.bash(&folder, &logs, &ports)?;
        self.compare_outputs(&output)
    }

    fn bash(&self, folder: &Path, logs: &Path, ports: &Ports) -> Result<String, String> {
        let program = Path::new(env!("CARGO_BIN_EXE_tidegate")).parent().unwrap().to_owned();
        let old_path = env::var_os("PATH").unwrap_or_default();
        let path = env::join_paths([program].into_iter().chain(env::split_paths(&old_path))).unwrap();
        let file = fs::File::create(logs.join("output")).unwrap();
        let mut bash = Command::new("timeout");
        bash.args(["--kill-after=5", PAGE_TIMEOUT, "bash"]).arg(logs.join("page.sh"));
        bash.current_dir(folder).stdout(file.try_clone().unwrap()).stderr(file);
        let port = |documented| ports.free(documented).to_string();
        bash.env("PATH", path).env("LC_ALL", "C.UTF-8");
        bash.env("TIDEGATE_ADMIN", format!("http://127.0.0.1:{}", port(9091)));
        // The defaults of the rate limit service.
        bash.env("PORT", port(8080)).env("GRPC_PORT", port(8081)).env("DEBUG_PORT", port(6070));
        bash.envs(["HOST", "GRPC_HOST", "DEBUG_HOST"].map(|name| (name, "127.0.0.1")))
            .env("USE_STATSD", "false");
        let secrets = [
            "ADMIN_TOKEN",
            "ANN_TOKEN",
            "GRAFANA_TOKEN",
            "ROOT_TOKEN",
            "TIDEGATE_ADMIN_TOKEN",
            "WEB_TOKEN",
            "PASSWORD",
            "REDIS_PASSWORD",
        ];
        bash.envs(secrets.map(|name| (name, "the-secret-of-the-pages")));
        let status = bash.status().map_err(|error| format!("cannot start bash: {error}"))?;
        let output = String::from_utf8_lossy(&fs::read(logs.join("output")).unwrap()).into_owned();
        let output = ports.restore(&output);
        match status.success() {
            true => Ok(output),
            false => {
                let (step, printed) = outputs(&output).pop().unwrap_or((0, &output));
                Err(format!("{}: {status}; the last command prints\n{printed}", self.steps[step].line))
            }
        }
    }

    fn compare_outputs(&self, output: &str) -> Result<(), String> {
        for (number, printed) in outputs(output) {
            let step = &self.steps[number];
            if let Some(documented) = &step.output {
                compare(documented, printed).map_err(|problem| format!("{}: {problem}", step.line))?;
            }
        }
        Ok(())
    }
}

/// The number of each step, and its output.
fn outputs(text: &str) -> Vec<(usize, &str)> {
    let separator = format!("\n{SEPARATOR}");
    let steps = text.split(&separator).skip(1);
    steps
        .filter_map(|step| step.split_once('\n'))
        .map(|(number, output)| (number.parse().unwrap(), output))
        .collect()
}

/// The server behind the examples.
const BACKEND: &str = "listen: 127.0.0.1:9000\nupstreams: { app: echo }\nroutes: app\n";

/// Creates what the pages expect: a checkout, which is also the crate of a user beside a checkout, and the files of policies.
fn prepare(root: &Path, folder: &Path, ports: &Ports) {
    fs::create_dir_all(folder.join("target")).unwrap();
    fs::create_dir_all(folder.join("src")).unwrap();
    fs::write(folder.join("src/lib.rs"), "").unwrap();
    fs::write(folder.join("Cargo.toml"), "[package]\nname = \"shop\"\nedition = \"2024\"\n").unwrap();
    symlink(root, folder.parent().unwrap().join("tidegate")).unwrap();
    for part in ["examples", "packaging/kubernetes"] {
        copy(&root.join(part), &folder.join(part), &|name, text| {
            if name.ends_with(".log") { text } else { ports.replace(&text) }
        });
    }
    copy(&root.join("docs/algorithms"), &folder.join("docs/algorithms"), &|_, text| text);
    fs::write(folder.join("bad.txt"), "192.0.2.0/24\n").unwrap();
    fs::write(folder.join("api-keys.json"), "{\"api-keys\": []}").unwrap();
    let secret = "c2VjcmV0".repeat(8);
    fs::write(folder.join("jwks.json"), format!("{{\"keys\": [{{\"kty\": \"oct\", \"k\": \"{secret}\"}}]}}"))
        .unwrap();
    let directory = folder.parent().unwrap();
    let certificates = Certificates::create(directory).unwrap();
    for name in ["a", "server", "site"] {
        fs::copy(&certificates.certificate, folder.join(format!("{name}.pem"))).unwrap();
        fs::copy(&certificates.key, folder.join(format!("{name}.key"))).unwrap();
    }
    for name in ["ca.pem", "clients.pem"] {
        fs::copy(&certificates.authority, folder.join(name)).unwrap();
    }
}

/// Copies a folder of text files.
fn copy(from: &Path, to: &Path, change: &dyn Fn(&str, String) -> String) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target, change);
        } else {
            // The copy has the permissions, too.
            fs::copy(entry.path(), &target).unwrap();
            let text = fs::read_to_string(&target).unwrap();
            fs::write(&target, change(&entry.file_name().to_string_lossy(), text)).unwrap();
        }
    }
}

/// The free port for each documented one.
struct Ports(Vec<(u16, u16)>, Vec<ReservedPort>);

impl Ports {
    fn reserve(redis: Option<&RedisServer>) -> Result<Self, String> {
        let mut ports = Self(Vec::new(), Vec::new());
        for &documented in PORTS {
            let reserved = ReservedPort::reserve()?;
            let free = match redis {
                Some(redis) if documented == 6379 => redis.address().port(),
                _ => reserved.address().port(),
            };
            ports.0.push((documented, free));
            ports.1.push(reserved);
        }
        Ok(ports)
    }

    fn free(&self, documented: u16) -> u16 {
        self.0.iter().find(|(port, _)| *port == documented).unwrap().1
    }

    /// Replaces the documented ports: numbers after `:`, `=` or a space.
    fn replace(&self, text: &str) -> String {
        let text = text.replace("REDIS_URL=redis:", "REDIS_URL=127.0.0.1:");
        let number = regex::Regex::new(r"([:= ])(\d{4,5})\b").unwrap();
        let replace = |found: &regex::Captures<'_>| {
            let port = self.0.iter().find(|(documented, _)| documented.to_string() == found[2]);
            format!("{}{}", &found[1], port.map_or(found[2].to_owned(), |(_, free)| free.to_string()))
        };
        // Files of the machine: those of the kernel, which a container mounts elsewhere, and the configuration of nginx.
        number
            .replace_all(&text, replace)
            .replace("/host/proc", "/proc")
            .replace("/host/cgroup", "/sys/fs/cgroup")
            .replace("/etc/nginx/", "")
    }

    /// The documented ports in an output.
    fn restore(&self, text: &str) -> String {
        let number = regex::Regex::new(r"\b\d{4,5}\b").unwrap();
        let restore = |found: &regex::Captures<'_>| {
            let port = self.0.iter().find(|(_, free)| free.to_string() == found[0]);
            port.map_or(found[0].to_owned(), |(documented, _)| documented.to_string())
        };
        number.replace_all(text, restore).into_owned()
    }
}

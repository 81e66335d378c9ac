//! The demo that `tidegate serve` runs without a policy file.

use super::report;
use crate::{
    admin,
    terminal::{Paint, Tone},
};
use std::{
    env,
    fmt::Write as _,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
};
use tidegate_gateway::Gateway;
use tidegate_http_server::BoundListener;
use tidegate_policy::{Policy, model::ListenerSpec};

const DEMO_POLICY: &str = include_str!("demo.yaml");

/// Returns the policy. An address that is in use gets a free port instead.
pub(crate) fn policy() -> Policy {
    let mut policy: Policy = DEMO_POLICY.parse().unwrap_or_default();
    let use_free_port = |address: &mut SocketAddr| {
        let listener = ListenerSpec { name: None, address: *address, tls: None };
        if BoundListener::bind(&listener).is_err() {
            *address = (Ipv4Addr::LOCALHOST, 0).into();
        }
    };
    policy.listen.iter_mut().map(|listener| &mut listener.address).for_each(use_free_port);
    policy.admin.listen.iter_mut().for_each(use_free_port);
    policy
}

/// Describes the running demo: the addresses, commands to try, and the policy with the actual addresses.
pub(crate) fn report(gateway: &Gateway, paint: Paint) -> String {
    let addresses = report::addresses(gateway);
    let url_of = |purpose| {
        let found = addresses.iter().find(|(name, _)| *name == purpose);
        found.map(|(_, url)| url.as_str()).unwrap_or_default()
    };
    let (url, admin_url) = (url_of("gateway"), url_of("admin"));
    let program = program();
    let admin = match admin_url == admin::DEFAULT_URL {
        true => String::new(),
        false => format!(" --admin {admin_url}"),
    };
    let commands = [
        (format!("curl -i {url}/hello"), "returns 200 and the remaining quota"),
        (
            format!(
                "for i in 1 2 3 4 5; do curl -s -o /dev/null -w '%{{http_code}}\\n' -X POST {url}/login; done"
            ),
            "three per minute are allowed, the others get 429",
        ),
        (format!("{program} why{admin}"), "explains the last denial"),
        (format!("{program} top{admin}"), "shows live statistics; q quits"),
    ];
    let mut text = format!("dashboard {}\n", paint.tone(Tone::Strong, format!("{admin_url}/")));
    // Writing to a string does not fail.
    let _ = writeln!(text, "gateway   {}, in front of a built-in server\n", paint.tone(Tone::Strong, url));
    let _ = writeln!(text, "Try, in another terminal:\n");
    for (command, effect) in commands {
        let _ = writeln!(text, "  {}\n      {effect}\n", paint.tone(Tone::Strong, command));
    }
    let _ = writeln!(
        text,
        "This is the policy. To change it, save it as policy.yaml, stop this command, and run `{program} serve policy.yaml`.\n"
    );
    let policy = DEMO_POLICY.replace("127.0.0.1:8080", url.trim_start_matches("http://"));
    let policy = policy.replace("127.0.0.1:9091", admin_url.trim_start_matches("http://"));
    for line in policy.lines().skip(1) {
        let _ = writeln!(text, "{}", paint.tone(Tone::Faint, line));
    }
    text
}

/// The command that runs this program in a shell: its name if the shell finds it, or its path.
fn program() -> String {
    let name = env!("CARGO_BIN_NAME");
    let Ok(path) = env::current_exe() else { return name.to_owned() };
    let canonical = |path: &Path| path.canonicalize().ok();
    let folders = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&folders).map(|folder| folder.join(name)).find(|file| file.is_file());
    if found.is_some_and(|found| canonical(&found) == canonical(&path)) {
        return name.to_owned();
    }
    match path.to_str().filter(|path| !path.contains(|c: char| c.is_whitespace() || "'\"\\$".contains(c))) {
        Some(path) => path.to_owned(),
        None => format!("'{}'", path.display().to_string().replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demo_policy_has_no_warnings() {
        let policy: Policy = DEMO_POLICY.parse().unwrap();
        assert!(tidegate_policy::compile::check(&policy).is_ok());
        assert_eq!(tidegate_policy::lint(&policy), []);
    }
}

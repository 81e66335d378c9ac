//! The example that `tidegate serve` runs without a policy, in front of a server that echoes requests.

use super::report;
use crate::{
    events,
    terminal::{Paint, Tone},
};
use bytes::Bytes;
use http::{HeaderValue, Response, header, request};
use std::{
    fmt::Write as _,
    future::pending,
    net::{Ipv4Addr, SocketAddr},
    num::NonZeroUsize,
    sync::Arc,
};
use tidegate_gateway::{Action, Config, Gateway, run};
use tidegate_http_server::{BoundListener, StartupError};
use tidegate_policy::{
    Policy,
    model::{ListenerSpec, Upstream, UpstreamServer},
};

const EXAMPLE_POLICY: &str = include_str!("example.yaml");
/// The addresses in the example policy.
const LISTEN_ADDRESS: &str = "127.0.0.1:8080";
const SERVER_ADDRESS: &str = "127.0.0.1:9000";

/// The example policy and its upstream server.
pub(crate) struct ExampleGateway {
    policy: Policy,
    server: SocketAddr,
}

impl ExampleGateway {
    /// Starts the upstream server.
    pub(crate) fn start() -> Result<Self, StartupError> {
        let server = BoundListener::bind(&loopback_listener(0))?;
        let address = server.address();
        let config = Config { workers: NonZeroUsize::MIN, ..Config::from_policy(&Policy::default()) };
        let filter = Arc::new(|head: &request::Parts| Action::Respond(echo_response(head)));
        tokio::spawn(async move {
            if let Err(error) = run(config, vec![server], filter, pending()).await {
                events::ExampleServerFailed { error: &error }.emit();
            }
        });
        let mut policy: Policy = EXAMPLE_POLICY.parse().unwrap_or_default();
        let echo = UpstreamServer { url: format!("http://{address}"), weight: 1 };
        policy.upstreams.insert("echo".to_owned(), Upstream::new(vec![echo]));
        // If the default port is in use, fall back to any free port.
        let is_free = |listener: &ListenerSpec| BoundListener::bind(listener).is_ok();
        if !policy.listen.iter().all(is_free) {
            policy.listen = vec![loopback_listener(0)];
        }
        Ok(Self { policy, server: address })
    }

    pub(crate) fn policy(&self) -> Policy {
        self.policy.clone()
    }

    /// The addresses, and commands to try.
    pub(crate) fn report(&self, gateway: &Gateway, paint: Paint) -> String {
        let addresses = report::address_lines(&report::addresses(gateway), paint);
        let mut text = format!("No policy file given; serving an example:\n\n{addresses}");
        let url = gateway.addresses().first().map(|address| format!("http://{address}")).unwrap_or_default();
        let commands = [
            (format!("curl -i {url}/hello"), "returns 200 and the remaining quota"),
            (
                format!(
                    "for i in 1 2 3 4 5; do curl -s -o /dev/null -w '%{{http_code}}\\n' -X POST {url}/login; done"
                ),
                "three per minute are admitted, the others get 429",
            ),
            (
                format!(
                    "for i in 1 2 3 4 5; do curl -s -o /dev/null -w '%{{time_total}}\\n' {url}/reports/a & done; wait"
                ),
                "the requests are queued, two per second",
            ),
        ];
        // Writing to a string does not fail.
        let _ = writeln!(text, "server   http://{} (built in: echoes requests)\n", self.server);
        let _ = writeln!(text, "Try, in another terminal:\n");
        for (command, effect) in commands {
            let _ = writeln!(text, "  {}\n      {effect}\n", paint.tone(Tone::Strong, command));
        }
        let _ = writeln!(text, "The policy:\n");
        // Show the actual addresses.
        let listen = gateway.addresses().first().map_or_else(String::new, ToString::to_string);
        let policy =
            EXAMPLE_POLICY.replace(LISTEN_ADDRESS, &listen).replace(SERVER_ADDRESS, &self.server.to_string());
        for line in policy.lines().skip(1) {
            let _ = writeln!(text, "  {}", paint.tone(Tone::Faint, line));
        }
        text
    }
}

fn loopback_listener(port: u16) -> ListenerSpec {
    ListenerSpec { name: None, address: (Ipv4Addr::LOCALHOST, port).into(), tls: None }
}

/// Echoes the request.
fn echo_response(head: &request::Parts) -> Response<Bytes> {
    let mut text = format!("{} {}\n", head.method, head.uri);
    for (name, value) in &head.headers {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name}: {}", String::from_utf8_lossy(value.as_bytes()));
    }
    let mut response = Response::new(text.into());
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn example_policy_has_no_warnings() {
        let policy: Policy = EXAMPLE_POLICY.parse().unwrap();
        assert!(tidegate_policy::compile::check(&policy).is_ok());
        assert_eq!(tidegate_policy::lint(&policy), []);
    }
}

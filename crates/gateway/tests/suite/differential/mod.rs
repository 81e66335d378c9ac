//! Differential test of the HTTP/1.1 relay with generated exchanges, valid ones and broken ones.
//!
//! ```text
//!              ┌─▶ gateway ─▶ backend     the expected requests, and never more
//!   exchange ──┼─▶ hyper                  a request that the gateway accepts is accepted in the same way,
//!              └─▶ nginx ───▶ backend     or EXPLAINED has a row
//! ```
//!
//! `TIDEGATE_DIFFERENTIAL` sets the number of exchanges; the exchanges are the same in every run.

mod exchange;
mod explained;
mod grammar;
mod responses;

use crate::{
    fuzz::messages::{RequestMessage, read_requests_with_hyper},
    harness::{InProcessGateway, TestBackend, test_config},
};
use exchange::{
    BackendRequest, ExpectedExchange, Record, RequestOutcome, ResponseOutcome, expected_exchange,
    join_outcomes, send_exchange, start_recording_backend, take, within_timeout,
};
use explained::{Difference, DifferentPart, EXPLAINED, Reference};
use futures_util::future::join_all;
use grammar::Generator;
use std::{collections::BTreeMap, env, fmt::Write as _, fs, net::SocketAddr};
use tidegate_gateway::Action;
use tidegate_policy::{
    head::{ParsedRequest, is_forwarded_header, is_hop_by_hop},
    matching::normalize_path,
    model::{EscapedSlashes, ForwardedHeaders},
};
use tidegate_testkit::servers::{NginxServer, ReservedPort, skip_without};
use tokio::runtime::Builder;

/// The number of exchanges in a run of all tests.
const DEFAULT_EXCHANGES: u64 = 2_000;
/// The number of exchanges at a time, each with a gateway and backends of its own.
const LANES: u64 = 6;
/// The number of findings in a message.
const MAX_FINDINGS: usize = 20;

/// The servers of one lane.
struct Lane {
    gateway: InProcessGateway,
    /// The requests that the filter admitted.
    admitted: Record<(String, String)>,
    backend: (TestBackend, Record<BackendRequest>),
    nginx: Option<SocketAddr>,
    nginx_backend: (TestBackend, Record<BackendRequest>),
}

/// What a run found.
#[derive(Default)]
struct Report {
    accepted: u64,
    rejected: u64,
    /// The number of requests per row of `EXPLAINED`.
    explained: BTreeMap<usize, u64>,
    stricter: BTreeMap<Reference, u64>,
    findings: Vec<String>,
}

#[test]
fn gateway_is_as_strict_as_hyper_and_nginx_and_never_desynchronized() {
    let count = exchange_count();
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let report = runtime.block_on(async {
        let (lanes, _servers) = start_lanes().await;
        let reports = join_all(lanes.into_iter().zip(0..).map(|(lane, first)| {
            tokio::spawn(async move {
                let mut report = Report::default();
                for number in (first..count).step_by(LANES as usize) {
                    lane.compare(number, &mut report).await;
                }
                report
            })
        }));
        reports.await.into_iter().fold(Report::default(), |all, report| all.merge(report.unwrap()))
    });
    println!("{report}");
    assert!(report.findings.is_empty(), "{report}");
    assert!(report.accepted > count / 2 && report.rejected > count / 8, "{report}");
}

#[test]
fn document_lists_explained_differences() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/http1.md");
    let document = fs::read_to_string(path).unwrap();
    let documented: Vec<_> =
        document.lines().filter(|line| line.ends_with(" hyper |") || line.ends_with(" nginx |")).collect();
    let rows: Vec<_> = EXPLAINED
        .iter()
        .map(|row| format!("| {} | {} | {} |", row.input, row.behavior, row.reference.name()))
        .collect();
    assert_eq!(documented, rows, "write these rows into docs/http1.md:\n{}", rows.join("\n"));
}

/// `TIDEGATE_DIFFERENTIAL`, or the default.
pub(super) fn exchange_count() -> u64 {
    env::var("TIDEGATE_DIFFERENTIAL").map_or(DEFAULT_EXCHANGES, |count| count.parse().unwrap())
}

/// Starts the servers. The last two must live as long as the lanes.
async fn start_lanes() -> (Vec<Lane>, (Option<NginxServer>, Vec<ReservedPort>)) {
    let (mut lanes, mut servers, mut ports) = (Vec::new(), String::new(), Vec::new());
    for _ in 0..LANES {
        let (backend, nginx_backend) = (start_recording_backend().await, start_recording_backend().await);
        let port = ReservedPort::reserve().unwrap();
        write!(
            servers,
            "upstream app{0} {{ server {2}; keepalive 4; keepalive_requests 1000000; }}
             server {{ listen {1}; location / {{ proxy_pass http://app{0}; }} }}",
            port.address().port(),
            port.address(),
            nginx_backend.0.address
        )
        .unwrap();
        let config = test_config(&[&backend.0]);
        let app = config.upstream_id("app").unwrap();
        let admitted = Record::default();
        let record: Record<(String, String)> = admitted.clone();
        let filter = move |request: &ParsedRequest| {
            record.lock().unwrap().push((request.method().to_owned(), request.target().to_owned()));
            Action::Forward(app)
        };
        let config = tidegate_gateway::Config { forwarded_headers: ForwardedHeaders::None, ..config };
        let gateway = InProcessGateway::start_with_filter(config, filter).await;
        let nginx = Some(port.address());
        ports.push(port);
        lanes.push(Lane { gateway, admitted, backend, nginx, nginx_backend });
    }
    let http = format!(
        "server {{ listen 127.0.0.1:PORT; }}
         proxy_http_version 1.1; proxy_set_header Connection ''; proxy_set_header Host $host;
         proxy_next_upstream off; proxy_ignore_client_abort on; lingering_close off; keepalive_requests 1000;
         client_max_body_size 1m; client_body_buffer_size 64k;
         {servers}"
    );
    let nginx = NginxServer::start(&http);
    if let Err(error) = &nginx {
        skip_without(&format!("nginx: {error}"));
        lanes.iter_mut().for_each(|lane| lane.nginx = None);
    }
    (lanes, (nginx.ok(), ports))
}

impl Lane {
    async fn compare(&self, number: u64, report: &mut Report) {
        let bytes = Generator::new(number).requests();
        let expected = expected_exchange(&bytes);
        let result = within_timeout(self.send_to_gateway(&bytes, &expected)).await;
        if let Err(error) = result {
            return report.add_finding(number, &bytes, &error);
        }
        let (by_hyper, _) = read_requests_with_hyper(&bytes).await;
        let by_hyper: Vec<_> = by_hyper.into_iter().map(RequestOutcome::Accepted).collect();
        report.compare(number, &bytes, &expected, &by_hyper, Reference::Hyper);
        let Some(nginx) = self.nginx else { return };
        let responses = match within_timeout(send_exchange(nginx, &bytes, None)).await {
            Ok(responses) => responses,
            Err(error) => return report.add_finding(number, &bytes, &format!("nginx: {error}")),
        };
        let mut requests = take(&self.nginx_backend.1);
        // nginx forwards control characters in values, and the backend rejects them.
        requests.retain(|request| matches!(request, BackendRequest::Complete(_)));
        // A request without a version is HTTP/0.9, and its response has no head.
        requests.truncate(responses.iter().filter(|response| **response == ResponseOutcome::Backend).count());
        match join_outcomes(&responses, requests) {
            Ok(by_nginx) => report.compare(number, &bytes, &expected, &by_nginx, Reference::Nginx),
            Err(error) => report.add_finding(number, &bytes, &format!("nginx: {error}")),
        }
    }

    /// Compares what the client, the filter and the backend see with what the parser alone decides.
    async fn send_to_gateway(&self, bytes: &[u8], expected: &ExpectedExchange) -> Result<(), String> {
        let responses =
            send_exchange(self.gateway.address, bytes, Some(expected.responses_before_close)).await?;
        let (requests, admitted) = (take(&self.backend.1), take(&self.admitted));
        let expected_responses: Vec<_> = expected
            .outcomes
            .iter()
            .map(|outcome| match outcome {
                RequestOutcome::Accepted(_) => ResponseOutcome::Backend,
                RequestOutcome::Rejected(status) => ResponseOutcome::Own(*status),
            })
            .collect();
        if responses != expected_responses {
            return Err(format!("gateway: responses {responses:?}, but expected {expected_responses:?}"));
        }
        if requests.contains(&BackendRequest::Garbage) {
            return Err(format!("gateway: bytes that are not HTTP after {requests:?}"));
        }
        let incomplete = requests.iter().filter(|request| **request == BackendRequest::Incomplete).count();
        let outcomes = join_outcomes(&responses, requests).map_err(|error| format!("gateway: {error}"))?;
        let received: Vec<_> = outcomes.iter().filter_map(accepted).cloned().collect();
        let forwarded: Vec<_> = expected.outcomes.iter().filter_map(accepted).map(forwarded).collect();
        if received.iter().map(without_added).ne(forwarded.iter().cloned()) {
            return Err(format!("gateway: the backend received {received:?}, but expected {forwarded:?}"));
        }
        // A request whose body is invalid is admitted, and reaches the backend incomplete or not at all.
        let lines: Vec<_> =
            forwarded.iter().map(|message| (message.method.clone(), message.target.clone())).collect();
        let is_last_incomplete = matches!(expected.outcomes.last(), Some(RequestOutcome::Rejected(_)));
        let extra = admitted.len().checked_sub(lines.len());
        if !admitted.starts_with(&lines)
            || extra.is_none_or(|extra| extra > usize::from(is_last_incomplete))
            || incomplete > 1
        {
            return Err(format!(
                "gateway: admitted {admitted:?}, forwarded {lines:?} and {incomplete} incomplete"
            ));
        }
        Ok(())
    }
}

fn accepted(outcome: &RequestOutcome) -> Option<&RequestMessage> {
    match outcome {
        RequestOutcome::Accepted(message) => Some(message),
        RequestOutcome::Rejected(_) => None,
    }
}

/// The message as the gateway forwards it.
fn forwarded(message: &RequestMessage) -> RequestMessage {
    let mut message = message.clone();
    message.trailers.retain(|(name, _)| is_allowed_trailer(name));
    message
}

/// The message without the host that the gateway adds to a request without one.
fn without_added(message: &RequestMessage) -> RequestMessage {
    let mut message = message.clone();
    message.fields.retain(|(name, value)| name != "host" || !value.starts_with(b"127.0.0.1:"));
    message
}

/// Trailers that only a head may contain are not forwarded.
fn is_allowed_trailer(name: &str) -> bool {
    !matches!(name, "host" | "content-length" | "expect" | "authorization" | "cookie" | "range")
        && !is_hop_by_hop(name.as_bytes())
        && !is_forwarded_header(name.as_bytes())
        && !name.contains('_')
}

/// The message of another server in the form in which the gateway forwards it: a normalized path, and no fields that
/// are removed.
fn canonical(message: &RequestMessage) -> RequestMessage {
    let mut message = message.clone();
    let mut request = ParsedRequest::default();
    request.set_request_line("GET", &message.target, http::Version::HTTP_11);
    if let Ok(path) = normalize_path(request.path(), EscapedSlashes::Reject) {
        message.target = request.query().map_or_else(|| path.to_string(), |query| format!("{path}?{query}"));
    }
    message
}

/// The fields that are compared: the others depend on the server.
fn compared_fields(message: &RequestMessage, head: &[u8]) -> Vec<(String, Vec<u8>)> {
    // Fields that `Connection` names are removed. The messages do not contain it.
    let text = head.to_ascii_lowercase();
    let is_named = memchr::memmem::find(&text, b"connection: x-a").is_some();
    let is_compared = |name: &str| {
        name.starts_with("x-")
            && !name.contains('_')
            && !is_forwarded_header(name.as_bytes())
            && (name != "x-a" || !is_named)
    };
    message.fields.iter().filter(|(name, _)| is_compared(name)).cloned().collect()
}

impl Report {
    /// Compares the requests that the gateway accepts with those of another server.
    fn compare(
        &mut self,
        number: u64,
        bytes: &[u8],
        expected: &ExpectedExchange,
        others: &[RequestOutcome],
        reference: Reference,
    ) {
        let gateway = &expected.outcomes;
        for (index, outcome) in gateway.iter().enumerate() {
            let RequestOutcome::Accepted(message) = outcome else {
                self.rejected += u64::from(reference == Reference::Hyper);
                *self.stricter.entry(reference).or_default() +=
                    u64::from(others.get(index).and_then(accepted).is_some());
                continue;
            };
            self.accepted += u64::from(reference == Reference::Hyper);
            let head = expected.head(bytes, index);
            let other = others.get(index).and_then(accepted).map(canonical);
            let part = match &other {
                None => DifferentPart::Rejected,
                Some(other) if other.method != message.method => DifferentPart::Method,
                Some(other) if other.target != message.target => DifferentPart::Target,
                Some(other) if other.body != message.body => DifferentPart::Body,
                Some(other) if compared_fields(other, head) != compared_fields(message, head) => {
                    DifferentPart::Fields
                }
                // nginx forwards no trailers.
                Some(other) if reference == Reference::Hyper && other.trailers != message.trailers => {
                    DifferentPart::Trailers
                }
                Some(_) => continue,
            };
            let difference = Difference { part, head, gateway: message, other: other.as_ref() };
            let is_after_rejection = gateway[..index].iter().any(|outcome| accepted(outcome).is_none());
            if other.is_none() && is_after_rejection && reference == Reference::Nginx {
                // The other server rejected the same request, and closed the connection.
                return;
            }
            let row =
                EXPLAINED.iter().position(|row| row.reference == reference && (row.applies)(&difference));
            match row {
                Some(row) => *self.explained.entry(row).or_default() += 1,
                None => {
                    let text = format!(
                        "{reference:?} {part:?}, request {index}: {message:?}\n  other: {:?}",
                        others.get(index)
                    );
                    self.add_finding(number, bytes, &text);
                }
            }
            // The connection of the other server may be at another position.
            return;
        }
    }

    fn add_finding(&mut self, number: u64, bytes: &[u8], text: &str) {
        self.findings.push(format!("exchange {number}: {}\n  {text}", bytes.escape_ascii()));
    }

    fn merge(mut self, other: Self) -> Self {
        self.accepted += other.accepted;
        self.rejected += other.rejected;
        self.findings.extend(other.findings);
        other.explained.into_iter().for_each(|(row, count)| *self.explained.entry(row).or_default() += count);
        other.stricter.into_iter().for_each(|(of, count)| *self.stricter.entry(of).or_default() += count);
        self
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "{} requests accepted, {} rejected, {} findings",
            self.accepted,
            self.rejected,
            self.findings.len()
        )?;
        for (reference, count) in &self.stricter {
            writeln!(f, "rejected, but accepted by {reference:?}: {count}")?;
        }
        for (row, count) in &self.explained {
            writeln!(f, "{:?}: {}: {count}", EXPLAINED[*row].reference, EXPLAINED[*row].input)?;
        }
        self.findings.iter().take(MAX_FINDINGS).try_for_each(|finding| writeln!(f, "{finding}"))
    }
}

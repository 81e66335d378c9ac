//! Traces: who is whose parent, who is left out, and what happens while the collector is not well.

use crate::stage::{Gateway, Server, config};
use tidegate_core::Percent;
use tidegate_gateway::{Config, Tracing};
use tidegate_policy::model::Traces;

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn traced(config: Config, endpoint: String, sample: Percent) -> (Config, Tracing) {
    let tracing = Tracing::new(Traces { endpoint, sample, service: "shop".to_owned() });
    (Config { traces: Some(tracing.clone()), ..config }, tracing)
}

fn asking(path: &str, headers: &[(&str, &str)]) -> String {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("GET {path} HTTP/1.1\r\nhost: example.org:8080\r\n{headers}\r\n")
}

#[tokio::test]
async fn without_traces_what_clients_say_of_theirs_is_handed_on() {
    let server = Server::mirror().await;
    let gateway = Gateway::before(&[&server]).await;
    let mut client = gateway.client().await;
    let answer = client.ask(&asking("/", &[("traceparent", PARENT), ("tracestate", "a=1")])).await;
    assert_eq!((answer.seen("traceparent"), answer.seen("tracestate")), (vec![PARENT], vec!["a=1"]));
    assert!(client.get("/").await.seen("traceparent").is_empty());
}

#[cfg(not(feature = "otel"))]
#[tokio::test]
async fn a_build_without_traces_does_not_start_with_them() {
    let server = Server::mirror().await;
    let (config, _) = traced(config(&[&server]), "http://127.0.0.1:4318".to_owned(), Percent::ALL);
    let fault = Gateway::with(config).await.fault().await;
    assert_eq!(
        fault,
        "traces to `http://127.0.0.1:4318`: this build of the gateway sends no traces: build it with the feature \
         `otel`, or leave `traces` out"
    );
}

#[cfg(feature = "otel")]
mod sent {
    use super::*;
    use crate::stage::{Body, text, upstream};
    use bytes::Bytes;
    use http::{Request, Response, StatusCode, request};
    use http_body_util::BodyExt as _;
    use hyper::body::Incoming;
    use opentelemetry_proto::tonic::{
        collector::trace::v1::{
            ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
        },
        common::v1::any_value::Value,
        trace::v1::{Span, span::SpanKind, status::StatusCode as Code},
    };
    use prost::Message as _;
    use std::{
        collections::BTreeMap,
        sync::{Arc, Mutex},
    };
    use tidegate_gateway::{Action, LogNote};

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    /// A collector, and what it was sent.
    struct Collector {
        server: Server,
        came: Arc<Mutex<Vec<Came>>>,
    }

    /// A span, with what its resource says.
    #[derive(Clone, Debug)]
    struct Came {
        span: Span,
        service: String,
    }

    impl Collector {
        /// Answers with these one after the other, and then that all is well. What it refuses it forgets.
        async fn answering(answers: Vec<(StatusCode, ExportTraceServiceResponse)>) -> Self {
            let came: Arc<Mutex<Vec<Came>>> = Arc::default();
            let (noted, answers) = (came.clone(), Arc::new(Mutex::new(answers.into_iter())));
            let server = Server::start(move |request: Request<Incoming>| {
                let noted = noted.clone();
                let answer = answers.lock().unwrap().next();
                take(request, noted, answer)
            })
            .await;
            Self { server, came }
        }

        async fn well() -> Self {
            Self::answering(Vec::new()).await
        }

        fn endpoint(&self) -> String {
            format!("http://{}", self.server.address)
        }

        /// Of one kind, in the order in which they began.
        fn spans(&self, kind: SpanKind) -> Vec<Came> {
            let mut came = self.came.lock().unwrap().clone();
            came.retain(|came| came.span.kind() == kind);
            came.sort_by_key(|came| came.span.start_time_unix_nano);
            came
        }
    }

    async fn take(
        request: Request<Incoming>,
        noted: Arc<Mutex<Vec<Came>>>,
        answer: Option<(StatusCode, ExportTraceServiceResponse)>,
    ) -> Response<Body> {
        assert_eq!((request.method().as_str(), request.uri().path()), ("POST", "/v1/traces"));
        assert_eq!(request.headers()["content-type"], "application/x-protobuf");
        let message = request.into_body().collect().await.unwrap().to_bytes();
        let message = ExportTraceServiceRequest::decode(message).unwrap();
        let (status, said) = answer.unwrap_or_default();
        for resource in message.resource_spans.into_iter().filter(|_| status.is_success()) {
            let about = resource.resource.unwrap_or_default().attributes;
            let service = about.into_iter().find(|said| said.key == "service.name");
            let service = shown(service.and_then(|said| said.value?.value).unwrap());
            let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            noted.lock().unwrap().extend(spans.map(|span| Came { span, service: service.clone() }));
        }
        let mut answer = Response::new(text(Bytes::from(said.encode_to_vec())));
        *answer.status_mut() = status;
        answer
    }

    fn shown(value: Value) -> String {
        match value {
            Value::StringValue(text) => text,
            Value::IntValue(number) => number.to_string(),
            other => panic!("{other:?}"),
        }
    }

    impl Came {
        fn attributes(&self) -> BTreeMap<String, String> {
            let said = self.span.attributes.iter();
            said.map(|said| (said.key.clone(), shown(said.value.clone().unwrap().value.unwrap()))).collect()
        }

        fn says(&self, key: &str) -> Option<String> {
            self.attributes().remove(key)
        }

        fn is_error(&self) -> bool {
            self.span.status.as_ref().is_some_and(|status| status.code() == Code::Error)
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    async fn ended(mut gateway: Gateway) {
        gateway.stop();
        gateway.ended().await;
    }

    #[tokio::test]
    async fn a_request_is_a_child_of_its_client_and_the_parent_of_what_servers_see() {
        let (server, collector) = (Server::mirror().await, Collector::well().await);
        let (config, tracing) = traced(config(&[&server]), collector.endpoint(), Percent::ZERO);
        let gateway = Gateway::with(config).await;
        let mut client = gateway.client().await;
        let headers = [("traceparent", PARENT), ("tracestate", "a=1,b=2"), ("user-agent", "story")];
        let answer = client.ask(&asking("/cart?secret=1", &headers)).await;
        ended(gateway).await;

        let ([asked], [sent]) =
            (&collector.spans(SpanKind::Server)[..], &collector.spans(SpanKind::Client)[..])
        else {
            panic!("{:?}", collector.came)
        };
        assert_eq!(
            (hex(&asked.span.trace_id), hex(&asked.span.parent_span_id)),
            (TRACE.into(), "00f067aa0ba902b7".into())
        );
        assert_eq!(
            (hex(&sent.span.trace_id), &sent.span.parent_span_id),
            (TRACE.into(), &asked.span.span_id)
        );
        let seen = format!("00-{TRACE}-{}-01", hex(&sent.span.span_id));
        assert_eq!(
            (answer.seen("traceparent"), answer.seen("tracestate")),
            (vec![seen.as_str()], vec!["a=1,b=2"])
        );
        assert_eq!((asked.span.trace_state.as_str(), asked.service.as_str()), ("a=1,b=2", "shop"));
        assert!(asked.span.start_time_unix_nano <= sent.span.start_time_unix_nano);
        assert!(sent.span.end_time_unix_nano <= asked.span.end_time_unix_nano);
        assert_eq!((asked.is_error(), sent.is_error(), asked.span.name.as_str()), (false, false, "GET"));

        let id = answer.header("x-request-id").unwrap();
        let expected = [
            ("client.address", "127.0.0.1"),
            ("http.request.method", "GET"),
            ("http.response.status_code", "200"),
            ("network.peer.address", "127.0.0.1"),
            ("network.protocol.version", "1.1"),
            ("server.address", "example.org"),
            ("server.port", "8080"),
            ("tidegate.request.id", id),
            ("url.path", "/cart"),
            ("url.scheme", "http"),
            ("user_agent.original", "story"),
        ];
        assert_eq!(asked.attributes(), expected.map(|(key, value)| (key.into(), value.into())).into());
        let (url, port) = (format!("http://{}/cart", server.address), server.address.port().to_string());
        let expected = [
            ("http.request.method", "GET"),
            ("http.response.status_code", "200"),
            ("server.address", "127.0.0.1"),
            ("server.port", &port),
            ("url.full", &url),
        ];
        assert_eq!(sent.attributes(), expected.map(|(key, value)| (key.into(), value.into())).into());
        assert_eq!((tracing.sent(), tracing.lost()), (2, 0));
    }

    #[tokio::test]
    async fn trace_names_the_client_behind_a_trusted_proxy() {
        let (server, collector) = (Server::mirror().await, Collector::well().await);
        let (mut config, _) = traced(config(&[&server]), collector.endpoint(), Percent::ZERO);
        config.trusted = vec!["127.0.0.0/8".parse().unwrap()];
        let gateway = Gateway::with(config).await;
        let headers = [("traceparent", PARENT), ("x-forwarded-for", "198.51.100.9, 203.0.113.7")];
        gateway.client().await.ask(&asking("/", &headers)).await;
        ended(gateway).await;
        let asked = &collector.spans(SpanKind::Server)[0];
        assert_eq!(asked.says("client.address").as_deref(), Some("203.0.113.7"));
        assert_eq!(asked.says("network.peer.address").as_deref(), Some("127.0.0.1"));
    }

    #[tokio::test]
    async fn who_begins_a_trace_and_who_is_left_out_of_it() {
        let (server, collector) = (Server::mirror().await, Collector::well().await);
        let (all, _) = traced(config(&[&server]), collector.endpoint(), Percent::FULL);
        let (none, _) = traced(config(&[&server]), collector.endpoint(), Percent::ZERO);
        let (all, none) = (Gateway::with(all).await, Gateway::with(none).await);
        let unsampled = PARENT.replace("-01", "-00");
        let nonsense = [("traceparent", "00-0-0-01"), ("tracestate", "a=1")];

        let answer = all.client().await.ask(&asking("/new", &[("tracestate", "a=1")])).await;
        assert!(answer.seen("traceparent")[0].ends_with("-01") && answer.seen("tracestate").is_empty());
        let answer = all.client().await.ask(&asking("/nonsense", &nonsense)).await;
        assert!(answer.seen("traceparent")[0].len() == 55 && answer.seen("tracestate").is_empty());
        let said = [("traceparent", unsampled.as_str()), ("tracestate", "a=1")];
        let answer = all.client().await.ask(&asking("/unsampled", &said)).await;
        assert_eq!(
            (answer.seen("traceparent"), answer.seen("tracestate")),
            (vec![unsampled.as_str()], vec!["a=1"])
        );
        let answer = none.client().await.ask(&asking("/none", &[])).await;
        let [begun] = answer.seen("traceparent")[..] else { panic!("{answer:?}") };
        assert!(begun.len() == 55 && begun.ends_with("-00"), "others are told that it is left out: {begun}");

        ended(all).await;
        ended(none).await;
        let asked = collector.spans(SpanKind::Server);
        let paths: Vec<_> = asked.iter().filter_map(|came| came.says("url.path")).collect();
        assert_eq!(paths, ["/new", "/nonsense"]);
        assert!(asked.iter().all(|came| came.span.parent_span_id.is_empty()));
    }

    #[tokio::test]
    async fn each_server_that_was_asked_is_a_span_and_what_was_decided_is_told() {
        let (gone, well, collector) =
            (Server::nobody().await, Server::mirror().await, Collector::well().await);
        let mut config = config(&[&gone, &well]);
        config.upstreams.insert("gone".to_owned(), upstream(&[&gone]));
        let (config, _) = traced(config, collector.endpoint(), Percent::FULL);
        let [app, nobody] = ["app", "gone"].map(|name| config.target(name).unwrap());
        let judge = move |head: &request::Parts| match head.uri.path() {
            "/limited" => {
                let mut answer = Response::new(Bytes::new());
                *answer.status_mut() = StatusCode::TOO_MANY_REQUESTS;
                let (rule, decision) = (Some("login".to_owned()), Some("deny".to_owned()));
                Action::Respond(answer).noted(LogNote { rule, decision, ..LogNote::default() })
            }
            "/dropped" => {
                let (rule, decision) = (Some("closed".to_owned()), Some("denied".to_owned()));
                Action::Drop.noted(LogNote { rule, decision, ..LogNote::default() })
            }
            "/gone" => Action::Forward(nobody).into(),
            _ => Action::Forward(app).into(),
        };
        let gateway = Gateway::judged(config, judge).await;
        let mut client = gateway.client().await;
        for (path, status) in [("/again", 200), ("/limited", 429), ("/gone", 502)] {
            assert_eq!(client.get(path).await.status(), status, "{path}");
        }
        client.send(asking("/dropped", &[])).await;
        assert_eq!(client.rest().await, "");
        ended(gateway).await;

        let asked: BTreeMap<_, _> = collector
            .spans(SpanKind::Server)
            .into_iter()
            .map(|came| (came.says("url.path").unwrap(), came))
            .collect();
        let told = |path: &str, key| asked[path].says(key);
        assert_eq!(told("/limited", "tidegate.rule").as_deref(), Some("login"));
        assert_eq!(told("/limited", "tidegate.decision").as_deref(), Some("deny"));
        assert_eq!(told("/limited", "error.type"), None, "to refuse is no error of the gateway's");
        assert_eq!(told("/gone", "error.type").as_deref(), Some("502"));
        assert_eq!(told("/dropped", "error.type").as_deref(), Some("dropped"));
        assert_eq!(told("/dropped", "http.response.status_code"), None);
        assert_eq!(told("/dropped", "tidegate.rule").as_deref(), Some("closed"));
        assert_eq!(told("/dropped", "tidegate.decision").as_deref(), Some("denied"));
        assert!(asked["/gone"].is_error() && !asked["/limited"].is_error());

        let sent = collector.spans(SpanKind::Client);
        let of = |path: &str| {
            let parent = &asked[path].span.span_id;
            sent.iter().filter(move |came| came.span.parent_span_id == *parent).collect::<Vec<_>>()
        };
        assert!(of("/limited").is_empty() && of("/dropped").is_empty());
        let [first, second] = of("/again")[..] else { panic!("{sent:?}") };
        assert_eq!(first.says("error.type").as_deref(), Some("unreachable"));
        assert_eq!((first.is_error(), second.is_error()), (true, false));
        assert_eq!(second.says("http.request.resend_count").as_deref(), Some("1"));
        assert_eq!(first.says("http.request.resend_count"), None);
    }

    #[tokio::test]
    async fn spans_are_sent_again_while_that_may_help_and_counted_when_they_are_lost() {
        let well = ExportTraceServiceResponse::default();
        let (rejected_spans, error_message) = (1, "too old".to_owned());
        let partly = ExportTraceServiceResponse {
            partial_success: Some(ExportTracePartialSuccess { rejected_spans, error_message }),
        };
        let busy = (StatusCode::SERVICE_UNAVAILABLE, well.clone());
        for (answers, sent, lost) in [
            (vec![busy.clone()], 2, 0),
            (vec![(StatusCode::OK, partly)], 1, 1),
            (vec![(StatusCode::BAD_REQUEST, well)], 0, 2),
            (vec![busy; 4], 0, 2),
        ] {
            let (server, collector) = (Server::mirror().await, Collector::answering(answers).await);
            let (config, tracing) = traced(config(&[&server]), collector.endpoint(), Percent::FULL);
            let gateway = Gateway::with(config).await;
            assert_eq!(gateway.client().await.get("/").await.status(), 200);
            ended(gateway).await;
            assert_eq!((tracing.sent(), tracing.lost()), (sent, lost));
        }
    }

    #[tokio::test]
    async fn a_collector_that_is_away_costs_no_request() {
        let (server, nobody) = (Server::mirror().await, Server::nobody().await);
        let (config, tracing) =
            traced(config(&[&server]), format!("http://{}", nobody.address), Percent::FULL);
        let gateway = Gateway::with(config).await;
        let mut client = gateway.client().await;
        for _ in 0..50 {
            assert_eq!(client.get("/").await.status(), 200);
        }
        ended(gateway).await;
        assert_eq!((tracing.sent(), tracing.lost()), (0, 100));
    }

    #[tokio::test]
    async fn a_collector_that_hangs_fills_the_queue_and_holds_up_nobody() {
        let server = Server::mirror().await;
        let hangs = Server::raw(|stream| async move {
            let _open = stream;
            std::future::pending::<()>().await;
        })
        .await;
        let (config, tracing) =
            traced(config(&[&server]), format!("http://{}", hangs.address), Percent::FULL);
        let gateway = Gateway::with(config).await;
        let mut client = gateway.client().await;
        let mut asked = 0;
        while tracing.lost() == 0 {
            assert_eq!(client.get("/").await.status(), 200);
            asked += 1;
            assert!(asked < 10_000, "the queue has no end");
        }
        assert!(asked > 2_048, "there was room for these");
        // Nor is the end of the gateway held up for long.
        ended(gateway).await;
        assert_eq!((tracing.sent(), tracing.lost()), (0, 2 * asked));
    }
}

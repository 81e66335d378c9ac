//! Traces: parents, sampling, and an unavailable collector.

use crate::harness::{InProcessGateway, TestBackend, test_config};
use tidegate_core::Percent;
use tidegate_gateway::{Config, Tracing};
use tidegate_policy::head::ParsedRequest;
use tidegate_policy::model::Traces;

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn with_tracing(config: Config, endpoint: String, sample: Percent) -> (Config, Tracing) {
    let tracing = Tracing::new(Traces { endpoint, sample, service: "shop".to_owned() });
    (Config { traces: Some(tracing.clone()), ..config }, tracing)
}

fn request_text(path: &str, headers: &[(&str, &str)]) -> String {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("GET {path} HTTP/1.1\r\nhost: example.org:8080\r\n{headers}\r\n")
}

#[tokio::test]
async fn traceparent_is_forwarded_without_tracing() {
    let server = TestBackend::start_echo().await;
    let gateway = InProcessGateway::start(&[&server]).await;
    let mut client = gateway.connect().await;
    let response =
        client.request(&request_text("/", &[("traceparent", PARENT), ("tracestate", "a=1")])).await;
    assert_eq!(
        (response.echoed_headers("traceparent"), response.echoed_headers("tracestate")),
        (vec![PARENT], vec!["a=1"])
    );
    assert!(client.get("/").await.echoed_headers("traceparent").is_empty());
}

#[cfg(not(feature = "otel"))]
#[tokio::test]
async fn tracing_without_otel_feature_prevents_start() {
    let server = TestBackend::start_echo().await;
    let (config, _) =
        with_tracing(test_config(&[&server]), "http://127.0.0.1:4318".to_owned(), Percent::FULL);
    let error = InProcessGateway::start_with(config).await.start_error().await;
    assert_eq!(
        error,
        "traces to `http://127.0.0.1:4318`: this build cannot export traces: build it with the feature `otel`, or \
         remove `traces`"
    );
}

#[cfg(feature = "otel")]
mod exported {
    use super::*;
    use crate::{
        admin_api::AdminGateway,
        harness::{TestBody, test_upstream, text_body},
    };
    use bytes::Bytes;
    use http::{Request, Response, StatusCode};
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

    /// A collector, and the spans that it received.
    struct TestCollector {
        server: TestBackend,
        spans: Arc<Mutex<Vec<ReceivedSpan>>>,
    }

    /// A span, with the service of its resource.
    #[derive(Clone, Debug)]
    struct ReceivedSpan {
        span: Span,
        service: String,
    }

    impl TestCollector {
        /// Sends these responses in order, and then successes. It drops the spans of failed requests.
        async fn start_with_responses(responses: Vec<(StatusCode, ExportTraceServiceResponse)>) -> Self {
            let received: Arc<Mutex<Vec<ReceivedSpan>>> = Arc::default();
            let (noted, responses) = (received.clone(), Arc::new(Mutex::new(responses.into_iter())));
            let server = TestBackend::start(move |request: Request<Incoming>| {
                let noted = noted.clone();
                let response = responses.lock().unwrap().next();
                receive_export(request, noted, response)
            })
            .await;
            Self { server, spans: received }
        }

        async fn start() -> Self {
            Self::start_with_responses(Vec::new()).await
        }

        fn endpoint(&self) -> String {
            format!("http://{}", self.server.address)
        }

        /// The `traces` of a policy.
        fn policy(&self, sample: &str) -> String {
            format!("traces: {{ endpoint: '{}', sample: {sample}, service: shop }}\n", self.endpoint())
        }

        /// The spans of one kind, sorted by start.
        fn spans(&self, kind: SpanKind) -> Vec<ReceivedSpan> {
            let mut received = self.spans.lock().unwrap().clone();
            received.retain(|received| received.span.kind() == kind);
            received.sort_by_key(|received| received.span.start_time_unix_nano);
            received
        }
    }

    async fn receive_export(
        request: Request<Incoming>,
        noted: Arc<Mutex<Vec<ReceivedSpan>>>,
        response: Option<(StatusCode, ExportTraceServiceResponse)>,
    ) -> Response<TestBody> {
        assert_eq!((request.method().as_str(), request.uri().path()), ("POST", "/v1/traces"));
        assert_eq!(request.headers()["content-type"], "application/x-protobuf");
        let message = request.into_body().collect().await.unwrap().to_bytes();
        let message = ExportTraceServiceRequest::decode(message).unwrap();
        let (status, item) = response.unwrap_or_default();
        for resource in message.resource_spans.into_iter().filter(|_| status.is_success()) {
            let about = resource.resource.unwrap_or_default().attributes;
            let service = about.into_iter().find(|item| item.key == "service.name");
            let service = value_text(service.and_then(|item| item.value?.value).unwrap());
            let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            noted.lock().unwrap().extend(spans.map(|span| ReceivedSpan { span, service: service.clone() }));
        }
        let mut response = Response::new(text_body(Bytes::from(item.encode_to_vec())));
        *response.status_mut() = status;
        response
    }

    fn value_text(value: Value) -> String {
        match value {
            Value::StringValue(text) => text,
            Value::IntValue(number) => number.to_string(),
            other => panic!("{other:?}"),
        }
    }

    impl ReceivedSpan {
        fn attributes(&self) -> BTreeMap<String, String> {
            let item = self.span.attributes.iter();
            item.map(|item| (item.key.clone(), value_text(item.value.clone().unwrap().value.unwrap())))
                .collect()
        }

        fn attribute(&self, key: &str) -> Option<String> {
            self.attributes().remove(key)
        }

        fn is_error(&self) -> bool {
            self.span.status.as_ref().is_some_and(|status| status.code() == Code::Error)
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    async fn stop_gateway(mut gateway: InProcessGateway) {
        gateway.stop();
        gateway.wait_stopped().await;
    }

    #[tokio::test]
    async fn request_span_links_client_and_server_spans() {
        let (server, collector) = (TestBackend::start_echo().await, TestCollector::start().await);
        let gateway = AdminGateway::start(&server, &collector.policy("0%"));
        let mut client = gateway.connect().await;
        let headers = [("traceparent", PARENT), ("tracestate", "a=1,b=2"), ("user-agent", "test")];
        let response = client.request(&request_text("/cart?secret=1", &headers)).await;
        gateway.stop().await;

        let ([inbound], [sent]) =
            (&collector.spans(SpanKind::Server)[..], &collector.spans(SpanKind::Client)[..])
        else {
            panic!("{:?}", collector.spans)
        };
        assert_eq!(
            (hex(&inbound.span.trace_id), hex(&inbound.span.parent_span_id)),
            (TRACE.into(), "00f067aa0ba902b7".into())
        );
        assert_eq!(
            (hex(&sent.span.trace_id), &sent.span.parent_span_id),
            (TRACE.into(), &inbound.span.span_id)
        );
        let expected_parent = format!("00-{TRACE}-{}-01", hex(&sent.span.span_id));
        assert_eq!(
            (response.echoed_headers("traceparent"), response.echoed_headers("tracestate")),
            (vec![expected_parent.as_str()], vec!["a=1,b=2"])
        );
        assert_eq!((inbound.span.trace_state.as_str(), inbound.service.as_str()), ("a=1,b=2", "shop"));
        assert!(inbound.span.start_time_unix_nano <= sent.span.start_time_unix_nano);
        assert!(sent.span.end_time_unix_nano <= inbound.span.end_time_unix_nano);
        assert_eq!((inbound.is_error(), sent.is_error(), inbound.span.name.as_str()), (false, false, "GET"));

        let id = response.header("x-request-id").unwrap();
        let expected = [
            ("client.address", "127.0.0.1"),
            ("http.request.method", "GET"),
            ("http.response.status_code", "200"),
            ("network.peer.address", "127.0.0.1"),
            ("network.protocol.version", "1.1"),
            ("server.address", "example.org"),
            ("server.port", "8080"),
            ("tidegate.decision", "admitted"),
            ("tidegate.request.id", id),
            ("url.path", "/cart"),
            ("url.scheme", "http"),
            ("user_agent.original", "test"),
        ];
        assert_eq!(inbound.attributes(), expected.map(|(key, value)| (key.into(), value.into())).into());
        let (url, port) = (format!("http://{}/cart", server.address), server.address.port().to_string());
        let expected = [
            ("http.request.method", "GET"),
            ("http.response.status_code", "200"),
            ("server.address", "127.0.0.1"),
            ("server.port", &port),
            ("url.full", &url),
        ];
        assert_eq!(sent.attributes(), expected.map(|(key, value)| (key.into(), value.into())).into());
    }

    #[tokio::test]
    async fn trace_names_the_client_behind_a_trusted_proxy() {
        let (server, collector) = (TestBackend::start_echo().await, TestCollector::start().await);
        let policy = collector.policy("0%") + "trusted-proxies: 127.0.0.0/8";
        let gateway = AdminGateway::start(&server, &policy);
        let headers = [("traceparent", PARENT), ("x-forwarded-for", "198.51.100.9, 203.0.113.7")];
        gateway.connect().await.request(&request_text("/", &headers)).await;
        gateway.stop().await;
        let inbound = &collector.spans(SpanKind::Server)[0];
        assert_eq!(inbound.attribute("client.address").as_deref(), Some("203.0.113.7"));
        assert_eq!(inbound.attribute("network.peer.address").as_deref(), Some("127.0.0.1"));
    }

    #[tokio::test]
    async fn sampling_follows_traceparent() {
        let (server, collector) = (TestBackend::start_echo().await, TestCollector::start().await);
        let start = |sample: &str| AdminGateway::start(&server, &collector.policy(sample));
        let (all, none) = (start("100%"), start("0%"));
        let unsampled = PARENT.replace("-01", "-00");
        let nonsense = [("traceparent", "00-0-0-01"), ("tracestate", "a=1")];

        let response = all.connect().await.request(&request_text("/new", &[("tracestate", "a=1")])).await;
        assert!(
            response.echoed_headers("traceparent")[0].ends_with("-01")
                && response.echoed_headers("tracestate").is_empty()
        );
        let response = all.connect().await.request(&request_text("/nonsense", &nonsense)).await;
        assert!(
            response.echoed_headers("traceparent")[0].len() == 55
                && response.echoed_headers("tracestate").is_empty()
        );
        let item = [("traceparent", unsampled.as_str()), ("tracestate", "a=1")];
        let response = all.connect().await.request(&request_text("/unsampled", &item)).await;
        assert_eq!(
            (response.echoed_headers("traceparent"), response.echoed_headers("tracestate")),
            (vec![unsampled.as_str()], vec!["a=1"])
        );
        let response = none.connect().await.request(&request_text("/none", &[])).await;
        let [begun] = response.echoed_headers("traceparent")[..] else { panic!("{response:?}") };
        assert!(begun.len() == 55 && begun.ends_with("-00"), "servers see that it is not sampled: {begun}");

        all.stop().await;
        none.stop().await;
        let inbound = collector.spans(SpanKind::Server);
        let paths: Vec<_> = inbound.iter().filter_map(|received| received.attribute("url.path")).collect();
        assert_eq!(paths, ["/new", "/nonsense"]);
        assert!(inbound.iter().all(|received| received.span.parent_span_id.is_empty()));
    }

    #[tokio::test]
    async fn attempts_are_spans_and_decision_is_an_attribute() {
        let (gone, well, collector) =
            (TestBackend::unreachable().await, TestBackend::start_echo().await, TestCollector::start().await);
        let mut config = test_config(&[&gone, &well]);
        config.upstreams.insert("gone".to_owned(), test_upstream(&[&gone]));
        let (config, _) = with_tracing(config, collector.endpoint(), Percent::FULL);
        let [app, unreachable] = ["app", "gone"].map(|name| config.upstream_id(name).unwrap());
        let filter = move |head: &ParsedRequest| match head.path() {
            "/limited" => {
                let mut response = Response::new(Bytes::new());
                *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
                let (rule, decision) = (Some("login".to_owned()), Some("deny".to_owned()));
                Action::Respond(response.into()).with_note(LogNote { rule, decision, ..LogNote::default() })
            }
            "/dropped" => {
                let (rule, decision) = (Some("closed".to_owned()), Some("deny-list".to_owned()));
                Action::Drop.with_note(LogNote { rule, decision, ..LogNote::default() })
            }
            "/gone" => Action::Forward(unreachable).into(),
            _ => Action::Forward(app).into(),
        };
        let gateway = InProcessGateway::start_with_filter(config, filter).await;
        let mut client = gateway.connect().await;
        for (path, status) in [("/again", 200), ("/limited", 429), ("/gone", 502)] {
            assert_eq!(client.get(path).await.status(), status, "{path}");
        }
        client.send(request_text("/dropped", &[])).await;
        assert_eq!(client.read_to_end().await, "");
        stop_gateway(gateway).await;

        let inbound: BTreeMap<_, _> = collector
            .spans(SpanKind::Server)
            .into_iter()
            .map(|received| (received.attribute("url.path").unwrap(), received))
            .collect();
        let reply = |path: &str, key| inbound[path].attribute(key);
        assert_eq!(reply("/limited", "tidegate.rule").as_deref(), Some("login"));
        assert_eq!(reply("/limited", "tidegate.decision").as_deref(), Some("deny"));
        assert_eq!(reply("/limited", "error.type"), None, "a denial is not an error of the gateway");
        assert_eq!(reply("/gone", "error.type").as_deref(), Some("502"));
        assert_eq!(reply("/dropped", "error.type").as_deref(), Some("dropped"));
        assert_eq!(reply("/dropped", "http.response.status_code"), None);
        assert_eq!(reply("/dropped", "tidegate.rule").as_deref(), Some("closed"));
        assert_eq!(reply("/dropped", "tidegate.decision").as_deref(), Some("deny-list"));
        assert!(inbound["/gone"].is_error() && !inbound["/limited"].is_error());

        let sent = collector.spans(SpanKind::Client);
        let of = |path: &str| {
            let parent = &inbound[path].span.span_id;
            sent.iter().filter(move |received| received.span.parent_span_id == *parent).collect::<Vec<_>>()
        };
        assert!(of("/limited").is_empty() && of("/dropped").is_empty());
        let [first, second] = of("/again")[..] else { panic!("{sent:?}") };
        assert_eq!(first.attribute("error.type").as_deref(), Some("unreachable"));
        assert_eq!((first.is_error(), second.is_error()), (true, false));
        assert_eq!(second.attribute("http.request.resend_count").as_deref(), Some("1"));
        assert_eq!(first.attribute("http.request.resend_count"), None);
    }

    #[tokio::test]
    async fn failed_exports_are_retried_and_losses_counted() {
        let well = ExportTraceServiceResponse::default();
        let (rejected_spans, error_message) = (1, "too old".to_owned());
        let partly = ExportTraceServiceResponse {
            partial_success: Some(ExportTracePartialSuccess { rejected_spans, error_message }),
        };
        let busy = (StatusCode::SERVICE_UNAVAILABLE, well.clone());
        for (responses, sent, lost) in [
            (vec![busy.clone()], 2, 0),
            (vec![(StatusCode::OK, partly)], 1, 1),
            (vec![(StatusCode::BAD_REQUEST, well)], 0, 2),
            (vec![busy; 4], 0, 2),
        ] {
            let (server, collector) =
                (TestBackend::start_echo().await, TestCollector::start_with_responses(responses).await);
            let (config, tracing) =
                with_tracing(test_config(&[&server]), collector.endpoint(), Percent::FULL);
            let gateway = InProcessGateway::start_with(config).await;
            assert_eq!(gateway.connect().await.get("/").await.status(), 200);
            stop_gateway(gateway).await;
            assert_eq!((tracing.sent(), tracing.lost()), (sent, lost));
        }
    }

    #[tokio::test]
    async fn unreachable_collector_does_not_delay_requests() {
        let (server, unreachable) = (TestBackend::start_echo().await, TestBackend::unreachable().await);
        let (config, tracing) =
            with_tracing(test_config(&[&server]), format!("http://{}", unreachable.address), Percent::FULL);
        let gateway = InProcessGateway::start_with(config).await;
        let mut client = gateway.connect().await;
        for _ in 0..50 {
            assert_eq!(client.get("/").await.status(), 200);
        }
        stop_gateway(gateway).await;
        assert_eq!((tracing.sent(), tracing.lost()), (0, 100));
    }

    #[tokio::test]
    async fn hanging_collector_does_not_delay_requests() {
        let server = TestBackend::start_echo().await;
        let hangs = TestBackend::start_raw(|stream| async move {
            let _open = stream;
            std::future::pending::<()>().await;
        })
        .await;
        let (config, tracing) =
            with_tracing(test_config(&[&server]), format!("http://{}", hangs.address), Percent::FULL);
        let gateway = InProcessGateway::start_with(config).await;
        let mut client = gateway.connect().await;
        let mut requests = 0;
        while tracing.lost() == 0 {
            assert_eq!(client.get("/").await.status(), 200);
            requests += 1;
            assert!(requests < 10_000, "the queue is unbounded");
        }
        assert!(requests > 2_048, "the queue is smaller than its capacity");
        // The shutdown of the gateway is not delayed for long.
        stop_gateway(gateway).await;
        assert_eq!((tracing.sent(), tracing.lost()), (0, 2 * requests));
    }
}

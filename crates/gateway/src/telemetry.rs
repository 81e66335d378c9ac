//! The telemetry of one request: collected during the exchange, recorded in one place when it ends.

use crate::{ConnectionInfo, FilterContext, RequestFilter, proxy::RequestId, traces::Trace, worker::Worker};
use http::{HeaderValue, Method, StatusCode, Uri, Version, uri::Authority};
use std::sync::Arc;
use tidegate_core::Micros;
use tidegate_observe::{RecordedCost, ResponseOrigin};
use tidegate_policy::head::ParsedRequest;

/// The data of a filter in the access log and in traces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogNote {
    /// The rule that decided.
    pub rule: Option<String>,
    /// A hash of the key; never the key itself.
    pub key: Option<String>,
    /// The decision.
    pub decision: Option<String>,
    /// The id of the denial, if it is recorded.
    pub denial: Option<String>,
    /// `hit` or `miss`, if the rule falls back to stored responses.
    pub cache: Option<&'static str>,
    /// The costs by the rules that count tokens.
    pub costs: Vec<RecordedCost>,
}

/// The telemetry of one exchange. It is [recorded](Self::record) exactly once.
#[derive(Default)]
pub(crate) struct RequestTelemetry {
    /// `None` before the head of the response.
    response: Option<(StatusCode, ResponseOrigin)>,
    /// Set if there is an access log, or the request is traced.
    record: Option<Arc<RequestRecord>>,
}

/// The data of a request in the access log and in traces.
pub(crate) struct RequestRecord {
    /// The time at which the head was received.
    pub(crate) start: Micros,
    /// The time at which the last byte of the response was written.
    pub(crate) end: Micros,
    pub(crate) connection: ConnectionInfo,
    /// `-` if the head has no valid one.
    pub(crate) method: Method,
    /// `None` if the head has no valid target.
    pub(crate) uri: Option<Uri>,
    pub(crate) version: Version,
    pub(crate) host: Option<HeaderValue>,
    pub(crate) referer: Option<HeaderValue>,
    pub(crate) user_agent: Option<HeaderValue>,
    pub(crate) id: HeaderValue,
    /// The status of the response; 0 without a response.
    pub(crate) status: u16,
    /// The size of the response body.
    pub(crate) bytes: u64,
    /// The server that responded, and the time from sending the request to the head of its response.
    pub(crate) upstream: Option<(Authority, Micros)>,
    pub(crate) note: LogNote,
    pub(crate) trace: Option<Trace>,
}

impl RequestTelemetry {
    /// The telemetry of a request whose head was received. Replaces its trace headers if it does not continue a trace.
    pub(crate) fn begin(
        request: &mut ParsedRequest,
        id: &RequestId,
        connection: &ConnectionInfo,
        worker: &Worker,
    ) -> Self {
        let trace = worker.tracer.as_ref().and_then(|tracer| tracer.begin(&mut request.fields));
        let is_reported = worker.log.is_some() || trace.is_some();
        let record = is_reported.then(|| {
            let record = RequestRecord::new(request, id, connection, worker.clock.now());
            Arc::new(RequestRecord { trace, ..record })
        });
        Self { response: None, record }
    }

    /// The telemetry of a request that was rejected before its head was read.
    pub(crate) fn rejected(status: StatusCode) -> Self {
        Self { response: Some((status, ResponseOrigin::Gateway)), record: None }
    }

    pub(crate) fn on_decision(&mut self, note: Option<Box<LogNote>>) {
        if let (Some(record), Some(note)) = (self.record_mut(), note) {
            record.note = *note;
        }
    }

    pub(crate) fn on_response(&mut self, status: StatusCode, by: ResponseOrigin) {
        self.response = Some((status, by));
    }

    /// Records the server that responded.
    pub(crate) fn on_upstream_response(&mut self, server: &Authority, took: Micros) {
        if let Some(record) = self.record_mut() {
            record.upstream = Some((server.clone(), took));
        }
    }

    pub(crate) fn add_bytes(&mut self, bytes: usize) {
        if let Some(record) = self.record_mut() {
            record.bytes += bytes as u64;
        }
    }

    /// The trace of the request, if it is traced.
    pub(crate) fn trace(&mut self) -> Option<&mut Trace> {
        self.record_mut()?.trace.as_mut()
    }

    /// Counts, logs and traces an exchange that has ended, and records its history.
    pub(crate) fn record(
        mut self,
        filter: &dyn RequestFilter,
        context: Option<Box<dyn FilterContext>>,
        worker: &Worker,
    ) {
        filter.record(self.response);
        if let Some(context) = context {
            if let Some(record) = self.record_mut() {
                record.note.costs = context.costs().to_vec();
            }
            context.record(self.response);
        }
        let status = self.response.map_or(0, |(status, _)| status.as_u16());
        if let Some(record) = self.record_mut() {
            (record.status, record.end) = (status, worker.clock.now());
        }
        let Some(record) = self.record else { return };
        if let Some(log) = &worker.log {
            log.submit(record.clone());
        }
        if let (Some(tracer), Some(_)) = (&worker.tracer, &record.trace) {
            tracer.submit(record);
        }
    }

    /// The record, which is not shared before it is recorded.
    fn record_mut(&mut self) -> Option<&mut RequestRecord> {
        self.record.as_mut().and_then(Arc::get_mut)
    }
}

impl RequestRecord {
    pub(crate) fn new(
        request: &ParsedRequest,
        id: &RequestId,
        connection: &ConnectionInfo,
        start: Micros,
    ) -> Self {
        let header = |name: &[u8]| HeaderValue::from_bytes(request.fields.get(name)?).ok();
        Self {
            start,
            end: start,
            connection: connection.clone(),
            method: Method::from_bytes(request.method().as_bytes()).unwrap_or_default(),
            uri: (request.authority() != Some("")).then(|| request.uri()),
            version: request.version,
            host: header(b"host"),
            referer: header(b"referer"),
            user_agent: header(b"user-agent"),
            id: HeaderValue::from_bytes(id.as_bytes()).unwrap_or(HeaderValue::from_static("")),
            status: 0,
            bytes: 0,
            upstream: None,
            note: LogNote::default(),
            trace: None,
        }
    }
}

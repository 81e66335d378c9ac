//! Formats one request as one line.

use crate::telemetry::RequestRecord;
use http::HeaderValue;
use serde_json::{Map, Value};
use std::{fmt::Write, net::IpAddr};
use tidegate_core::Utc;
use tidegate_observe::RecordedCost;
use tidegate_policy::{is_credential, model::AccessLogFormat};
use tidegate_rule::key_hash;

impl RequestRecord {
    /// The line of the request, with a line feed.
    pub(super) fn format_line(&self, format: AccessLogFormat) -> String {
        match format {
            AccessLogFormat::Combined => self.format_combined(),
            AccessLogFormat::Json | AccessLogFormat::None => self.format_json(),
        }
    }

    fn format_combined(&self) -> String {
        let Utc { year, month, day, hour, minute, second, .. } = self.start.into();
        let month = MONTH_NAMES[month as usize - 1];
        let mut line = format!(
            "{} - - [{day:02}/{month}/{year}:{hour:02}:{minute:02}:{second:02} +0000] \"{} ",
            self.connection.client, self.method,
        );
        escape(self.redacted_target().as_deref().unwrap_or("-").as_bytes(), &mut line);
        let _ = write!(line, " {:?}\" {} {}", self.version, self.status, self.bytes);
        for value in [self.referer().as_deref(), self.user_agent.as_ref().map(HeaderValue::as_bytes)] {
            line.push_str(" \"");
            escape(value.unwrap_or(b"-"), &mut line);
            line.push('"');
        }
        line.push('\n');
        line
    }

    /// The request target without user info, and with hashed credentials.
    fn redacted_target(&self) -> Option<String> {
        let uri = self.uri.as_ref()?;
        let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        let target = match (uri.scheme_str(), uri.host(), uri.port()) {
            (Some(scheme), Some(host), Some(port)) => format!("{scheme}://{host}:{port}{path}"),
            (Some(scheme), Some(host), None) => format!("{scheme}://{host}{path}"),
            _ => path.to_owned(),
        };
        Some(redact_credentials(&target))
    }

    /// The peer of the connection, if it is a proxy.
    fn proxy_address(&self) -> Option<IpAddr> {
        let peer = self.connection.peer.ip().to_canonical();
        (peer != self.connection.client).then_some(peer)
    }

    fn referer(&self) -> Option<Vec<u8>> {
        let referer = self.referer.as_ref()?.as_bytes();
        Some(match str::from_utf8(referer) {
            Ok(text) => redact_credentials(text).into_bytes(),
            Err(_) => referer.to_vec(),
        })
    }

    fn format_json(&self) -> String {
        let text = |value: &Option<HeaderValue>| {
            value.as_ref().map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        let mut object = Map::new();
        let mut put = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                object.insert(name.to_owned(), Value::String(value));
            }
        };
        put("time", Some(Utc::from(self.start).to_string()));
        put("id", text(&Some(self.id.clone())));
        put("client", Some(self.connection.client.to_string()));
        put("peer", self.proxy_address().map(|peer| peer.to_string()));
        put("method", Some(self.method.to_string()).filter(|method| method != "-"));
        put("uri", self.redacted_target());
        put("version", Some(format!("{:?}", self.version)));
        put("host", text(&self.host));
        put("referer", self.referer().map(|referer| String::from_utf8_lossy(&referer).into_owned()));
        put("user_agent", text(&self.user_agent));
        put("rule", self.note.rule.clone());
        put("key", self.note.key.clone());
        put("decision", self.note.decision.clone());
        put("denial", self.note.denial.clone());
        put("cache", self.note.cache.map(str::to_owned));
        put("server", self.upstream.as_ref().map(|(server, _)| server.to_string()));
        object.extend(RecordedCost::to_json(&self.note.costs).map(|costs| ("costs".to_owned(), costs)));
        object.insert("status".to_owned(), self.status.into());
        object.insert("bytes".to_owned(), self.bytes.into());
        object.insert("duration_us".to_owned(), self.end.saturating_sub(self.start).get().into());
        if let Some((_, took)) = &self.upstream {
            object.insert("upstream_us".to_owned(), took.get().into());
        }
        format!("{}\n", Value::Object(object))
    }

    #[cfg(test)]
    pub(super) fn example() -> Self {
        let (head, ()) = http::Request::post("/login?next=/")
            .header("host", "app.example")
            .header("user-agent", "a \"b\"\t\u{e9}")
            .body(())
            .unwrap_or_default()
            .into_parts();
        let start = tidegate_core::Micros::new(951_827_696_789_012);
        let client = IpAddr::from([192, 0, 2, 1]);
        let scheme = tidegate_http_server::Scheme::Http;
        let connection = crate::ConnectionInfo {
            peer: (client, 4000).into(),
            client,
            scheme,
            listener: None,
            client_certificate: None,
        };
        let id = crate::proxy::RequestId::Received(Box::from(*b"abc"));
        let record = Self::new(&(&head).into(), &id, &connection, start);
        Self { status: 429, bytes: 7, end: start.saturating_add(tidegate_core::Micros::new(1_500)), ..record }
    }
}

/// Replaces values of query parameters that may be credentials by a hash.
fn redact_credentials(address: &str) -> String {
    let Some((path, query)) = address.split_once('?') else { return address.to_owned() };
    let redacted = query.split('&').map(|pair| match pair.split_once('=') {
        Some((name, value)) if !value.is_empty() && is_credential(name) => {
            format!("{name}={:016x}", key_hash("query", &value))
        }
        _ => pair.to_owned(),
    });
    format!("{path}?{}", redacted.collect::<Vec<_>>().join("&"))
}

const MONTH_NAMES: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Escapes quotes and control characters as nginx does, so that a client cannot end a line or a quote.
fn escape(bytes: &[u8], into: &mut String) {
    for byte in bytes {
        match byte {
            b'"' | b'\\' | 0..=31 | 127.. => {
                let _ = write!(into, "\\x{byte:02X}");
            }
            byte => into.push(char::from(*byte)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_line_escapes_control_characters() {
        assert_eq!(
            RequestRecord::example().format_line(AccessLogFormat::Combined),
            "192.0.2.1 - - [29/Feb/2000:12:34:56 +0000] \"POST /login?next=/ HTTP/1.1\" 429 7 \"-\" \
             \"a \\x22b\\x22\\x09\\xC3\\xA9\"\n"
        );
        let mut record = RequestRecord::example();
        record.note.rule = Some("login".to_owned());
        let line = record.format_line(AccessLogFormat::Json);
        let value: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["time"], "2000-02-29T12:34:56.789012Z");
        assert_eq!(
            (&value["status"], &value["bytes"], &value["duration_us"]),
            (&429.into(), &7.into(), &1_500.into())
        );
        assert_eq!((&value["rule"], &value["user_agent"]), (&"login".into(), &"a \"b\"\t\u{e9}".into()));
        assert_eq!(line.matches('\n').count(), 1);
    }

    #[test]
    fn credentials_are_redacted_in_log() {
        let (head, ()) = http::Request::get("http://user:pass@a:8080/x\"?api_key=abc&page=2&token=t#")
            .header("referer", "https://a/?access_token=abc")
            .body(())
            .unwrap_or_default()
            .into_parts();
        let record = RequestRecord {
            uri: Some(head.uri.clone()),
            referer: head.headers.get("referer").cloned(),
            ..RequestRecord::example()
        };
        let hash = format!("{:016x}", key_hash("query", &"abc"));
        for format in [AccessLogFormat::Json, AccessLogFormat::Combined] {
            let line = record.format_line(format);
            assert!(!line.contains("pass@") && !line.contains("=abc") && !line.contains("token=t"), "{line}");
            assert!(line.contains(&format!("api_key={hash}&page=2")) && line.contains("a:8080/x"), "{line}");
        }
        assert!(
            record.format_line(AccessLogFormat::Combined).contains("/x\\x22?"),
            "{}",
            record.format_line(AccessLogFormat::Combined)
        );
    }
}

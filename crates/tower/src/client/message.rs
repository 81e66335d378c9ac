//! Requests and responses of a client, independent of the HTTP library.

use http::{HeaderMap, StatusCode, header};
use std::borrow::Cow;
use tidegate_rule::Limited;

/// A request to send.
pub trait ClientRequest {
    /// Returns the host, if known.
    fn host(&self) -> Option<&str>;

    /// Returns the port, if it is not the default one of the scheme.
    fn port(&self) -> Option<u16>;

    /// Returns the headers.
    fn headers(&self) -> &HeaderMap;
}

/// A received response.
pub trait ClientResponse {
    /// Returns the status.
    fn status(&self) -> StatusCode;

    /// Returns the headers.
    fn headers(&self) -> &HeaderMap;

    /// Returns the server that responded, if known. After a redirect it may differ from the requested one.
    fn server(&self) -> Option<String> {
        None
    }

    /// Returns the rejection if a layer of the client made the response; the request was not sent.
    fn limited(&self) -> Option<&Limited> {
        None
    }
}

impl<B> ClientRequest for http::Request<B> {
    fn host(&self) -> Option<&str> {
        let host = self.uri().host().or_else(|| Some(split_port(host_header(self)?).0))?;
        Some(host).filter(|host| !host.is_empty())
    }

    fn port(&self) -> Option<u16> {
        let uri = self.uri();
        let default = match uri.scheme_str() {
            Some("https") => 443,
            _ => 80,
        };
        let port = match uri.host() {
            Some(_) => uri.port_u16(),
            None => host_header(self).and_then(|host| split_port(host).1),
        };
        port.filter(|port| *port != default)
    }

    fn headers(&self) -> &HeaderMap {
        self.headers()
    }
}

impl<B> ClientResponse for http::Response<B> {
    fn status(&self) -> StatusCode {
        self.status()
    }

    fn headers(&self) -> &HeaderMap {
        self.headers()
    }

    fn limited(&self) -> Option<&Limited> {
        self.extensions().get()
    }
}

#[cfg(feature = "reqwest")]
impl ClientRequest for reqwest::Request {
    fn host(&self) -> Option<&str> {
        self.url().host_str()
    }

    fn port(&self) -> Option<u16> {
        self.url().port()
    }

    fn headers(&self) -> &HeaderMap {
        self.headers()
    }
}

#[cfg(feature = "reqwest")]
impl ClientResponse for reqwest::Response {
    fn status(&self) -> StatusCode {
        self.status()
    }

    fn headers(&self) -> &HeaderMap {
        self.headers()
    }

    fn server(&self) -> Option<String> {
        Some(server_name(self.url().host_str()?, self.url().port()))
    }

    fn limited(&self) -> Option<&Limited> {
        self.extensions().get()
    }
}

/// Returns the key of a server: its host in lower case, and the port if there is one.
pub(super) fn server_name(host: &str, port: Option<u16>) -> String {
    let host = match host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => Cow::Owned(host.to_ascii_lowercase()),
        false => Cow::Borrowed(host),
    };
    match port {
        Some(port) => format!("{host}:{port}"),
        None => host.into_owned(),
    }
}

/// Returns the `Host` header.
fn host_header<B>(request: &http::Request<B>) -> Option<&str> {
    request.headers().get(header::HOST)?.to_str().ok()
}

/// Splits `example.com:8080` and `[::1]:8080` into host and port.
fn split_port(host: &str) -> (&str, Option<u16>) {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => (name, port.parse().ok()),
        _ => (host, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_name_is_normalized() {
        let named = [
            ("http://a.test/", "", "a.test"),
            ("http://A.test:80/", "", "a.test"),
            ("https://a.test:443/", "", "a.test"),
            ("https://a.test:80/", "", "a.test:80"),
            ("http://[::1]:8080/", "", "[::1]:8080"),
            ("http://a.test/", "b.test", "a.test"),
            ("/path", "A.test:80", "a.test"),
            ("/path", "a.test:81", "a.test:81"),
            ("/path", "[::1]", "[::1]"),
            ("/path", "", ""),
        ];
        for (uri, host, expected) in named {
            let request = http::Request::builder().uri(uri).header("host", host).body(()).unwrap();
            let name = ClientRequest::host(&request).map(|host| server_name(host, request.port()));
            assert_eq!(name.unwrap_or_default(), expected, "{uri} {host}");
        }
    }
}

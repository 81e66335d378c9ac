//! The target and the requests of a load.

use super::connection::{BenchHttpVersion, BenchTls};
use crate::error::CliError;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, header};
use http_body_util::Full;
use std::{
    any::Any,
    net::{IpAddr, SocketAddr, ToSocketAddrs as _},
    path::Path,
};
use tidegate_rule::request::RequestHead;

/// The target of a load.
#[derive(Clone)]
pub(crate) struct BenchTarget {
    pub(crate) url: String,
    pub(crate) address: SocketAddr,
    pub(super) version: BenchHttpVersion,
    pub(super) tls: Option<BenchTls>,
    authority: HeaderValue,
    host: String,
    path: String,
    query: Option<String>,
}

impl BenchTarget {
    /// Parses a URL and resolves its host. With TLS, the server is verified with the CA certificates in a file, or with those
    /// of the system.
    pub(crate) fn parse(
        url: &str,
        version: BenchHttpVersion,
        authorities: Option<&Path>,
    ) -> Result<Self, CliError> {
        let invalid_url = |problem: &str| {
            CliError::input(format!("`{url}`: {problem}; write it as in http://127.0.0.1:8080/path"))
        };
        let uri: Uri = url.parse().map_err(|_| invalid_url("invalid URL"))?;
        let authority = uri.authority().ok_or_else(|| invalid_url("missing host"))?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let (default_port, tls) = match uri.scheme_str() {
            Some("http") if authorities.is_some() => {
                return Err(invalid_url("--cacert requires https"));
            }
            Some("http") => (80, None),
            Some("https") => {
                let tls = BenchTls::new(&host, authorities.map(Path::to_owned), version);
                (443, Some(tls.map_err(|error| CliError::input(format!("{url}: {error}")))?))
            }
            _ => return Err(invalid_url("unsupported scheme")),
        };
        let port = authority.port_u16().unwrap_or(default_port);
        let found = (host.as_str(), port).to_socket_addrs();
        let mut found =
            found.map_err(|error| CliError::input(format!("cannot resolve `{host}`: {error}")))?;
        let address = found.next().ok_or_else(|| invalid_url("the host has no address"))?;
        let path = Some(uri.path()).filter(|path| !path.is_empty()).unwrap_or("/");
        Ok(Self {
            url: url.to_owned(),
            address,
            version,
            tls,
            authority: HeaderValue::try_from(authority.as_str()).map_err(|_| invalid_url("invalid host"))?,
            host: authority.as_str().to_owned(),
            path: path.to_owned(),
            query: uri.query().map(str::to_owned),
        })
    }

    /// Whether the target is this machine.
    pub(crate) fn is_loopback(&self) -> bool {
        self.address.ip().to_canonical().is_loopback()
    }
}

/// The request that is sent repeatedly, with alternating keys.
#[derive(Clone, Debug)]
pub(crate) struct RequestTemplate {
    pub(crate) method: Method,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// The header of the key, and the number of keys.
    pub(crate) keys: Option<(HeaderName, u32)>,
}

impl RequestTemplate {
    /// The number of keys.
    pub(crate) fn key_count(&self) -> u32 {
        self.keys.as_ref().map_or(1, |(_, count)| *count)
    }

    /// The key of a request, round robin.
    pub(crate) fn key_for(&self, number: u64) -> u32 {
        // Below `key_count`, which is a `u32`.
        (number % u64::from(self.key_count().max(1))) as u32
    }

    /// Builds the request of a key.
    pub(crate) fn request(&self, target: &BenchTarget, key: u32) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = self.method.clone();
        let query = target.query.as_deref().map(|query| format!("?{query}")).unwrap_or_default();
        // Always valid: it was part of the URL.
        *request.uri_mut() = format!("{}{query}", target.path).parse().unwrap_or_default();
        *request.headers_mut() = self.headers.clone();
        request.headers_mut().entry(header::HOST).or_insert_with(|| target.authority.clone());
        if let Some((name, _)) = &self.keys {
            request.headers_mut().insert(name, key_header(key));
        }
        request
    }
}

/// The name of a key.
pub(crate) fn key_name(key: u32) -> String {
    format!("key-{key}")
}

fn key_header(key: u32) -> HeaderValue {
    HeaderValue::try_from(key_name(key)).unwrap_or(HeaderValue::from_static("key"))
}

/// A request as the policy evaluates it, from this client address.
pub(super) struct SentRequest<'a> {
    pub(super) target: &'a BenchTarget,
    pub(super) request: &'a Request<Full<Bytes>>,
    pub(super) client: IpAddr,
}

impl RequestHead for SentRequest<'_> {
    fn method(&self) -> &str {
        self.request.method().as_str()
    }

    fn path(&self) -> &str {
        &self.target.path
    }

    fn query(&self) -> Option<&str> {
        self.target.query.as_deref()
    }

    fn host(&self) -> Option<&str> {
        let host_header = self.request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
        host_header.or(Some(&self.target.host))
    }

    fn route(&self) -> Option<&str> {
        None
    }

    fn peer(&self) -> Option<IpAddr> {
        Some(self.client)
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.request.headers().get(name).map(HeaderValue::as_bytes)
    }

    fn for_each_header<'h>(&'h self, name: &str, each: &mut dyn FnMut(&'h [u8])) {
        self.request.headers().get_all(name).iter().for_each(|value| each(value.as_bytes()));
    }

    fn extensions(&self) -> Option<&dyn Any> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_accepts_only_http_urls() {
        let read = |url| BenchTarget::parse(url, BenchHttpVersion::Http1, None);
        let target = read("http://127.0.0.1:8080/a?b=c").unwrap();
        assert!(target.is_loopback() && target.tls.is_none());
        assert_eq!((target.path.as_str(), target.query.as_deref()), ("/a", Some("b=c")));
        assert!(read("http://[::1]/").unwrap().is_loopback());
        assert!(!read("http://192.0.2.1").unwrap().is_loopback());
        for url in ["127.0.0.1:8080", "ftp://127.0.0.1", "/path", "http://"] {
            assert!(read(url).is_err(), "{url}");
        }
    }

    #[test]
    fn keys_rotate_by_request_number() {
        let keys = Some((HeaderName::from_static("x-user"), 3));
        let template =
            RequestTemplate { method: Method::GET, headers: HeaderMap::new(), body: Bytes::new(), keys };
        let target = BenchTarget::parse("http://127.0.0.1/a?b", BenchHttpVersion::Http1, None).unwrap();
        let names: Vec<String> = (0..4)
            .map(|number| template.request(&target, template.key_for(number)))
            .map(|request| request.headers()["x-user"].to_str().unwrap().to_owned())
            .collect();
        assert_eq!(names, ["key-0", "key-1", "key-2", "key-0"]);
        assert_eq!(template.request(&target, 0).uri(), "/a?b");
    }
}

//! A client of the admin API of a running gateway.

use crate::error::CliError;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::{env, future::Future, time::Duration};
use tokio::{net::TcpStream, runtime::Builder, time::timeout};

/// Selects the gateway.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct AdminArgs {
    /// Use the admin listener at this URL, as declared by `admin` in the policy [default: $TIDEGATE_ADMIN, or
    /// http://127.0.0.1:9091]
    #[arg(long, value_name = "URL")]
    admin: Option<String>,
}

/// A client of the admin API.
#[derive(Clone, Debug)]
pub(crate) struct AdminClient {
    url: String,
    host: String,
    port: u16,
    authority: HeaderValue,
    base_path: String,
    token: Option<HeaderValue>,
    /// The flag that sets the URL, for error messages.
    flag: &'static str,
}

/// The URL of the admin listener by default.
pub(crate) const DEFAULT_URL: &str = "http://127.0.0.1:9091";
/// The timeout of a request, and the maximum size of its response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_RESPONSE_SIZE: usize = 256 << 20;

impl AdminClient {
    /// Creates a client from arguments. Reads the token from `$TIDEGATE_ADMIN_TOKEN`.
    pub(crate) fn from_args(args: &AdminArgs) -> Result<Self, CliError> {
        Self::from_url(args.admin.as_deref(), "--admin")
    }

    /// Creates a client for a URL, or for the default one. `flag` is the flag that sets the URL.
    pub(crate) fn from_url(url: Option<&str>, flag: &'static str) -> Result<Self, CliError> {
        let url = url.map(str::to_owned).or_else(|| env::var("TIDEGATE_ADMIN").ok());
        let token = env::var("TIDEGATE_ADMIN_TOKEN").ok().filter(|token| !token.trim().is_empty());
        let client = Self::parse(url.as_deref().unwrap_or(DEFAULT_URL), token.as_deref())?;
        Ok(Self { flag, ..client })
    }

    /// The URL of the admin listener.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    fn parse(url: &str, token: Option<&str>) -> Result<Self, CliError> {
        let invalid_url =
            || CliError::input(format!("invalid gateway URL `{url}`; write it as in `{DEFAULT_URL}`"));
        let full = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let uri: Uri = full.parse().map_err(|_| invalid_url())?;
        let authority =
            uri.authority().filter(|_| uri.scheme_str() == Some("http")).ok_or_else(invalid_url)?;
        if authority.as_str().contains('@') {
            return Err(CliError::input(
                "the gateway URL must not contain credentials; put the token into $TIDEGATE_ADMIN_TOKEN",
            ));
        }
        let token = token.map(|token| HeaderValue::try_from(format!("Bearer {}", token.trim()))).transpose();
        let token = token.map_err(|_| CliError::input("invalid token in $TIDEGATE_ADMIN_TOKEN"))?;
        Ok(Self {
            host: authority.host().trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: authority.port_u16().unwrap_or(80),
            authority: HeaderValue::try_from(authority.as_str()).map_err(|_| invalid_url())?,
            base_path: uri.path().trim_end_matches('/').to_owned(),
            token,
            flag: "--admin",
            url: full,
        })
    }

    /// Gets a path as JSON.
    pub(crate) async fn get(&self, path: &str) -> Result<Value, CliError> {
        self.send(Method::GET, path, None).await
    }

    /// Sends a request and parses the response as JSON; `null` if it is empty.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, CliError> {
        let (status, _, body) = self.fetch(method, path, body).await?;
        self.parse_response(status, path, &body)
    }

    /// Gets a path as raw bytes, with the response headers.
    pub(crate) async fn get_text(&self, path: &str) -> Result<(HeaderMap, Bytes), CliError> {
        match self.fetch(Method::GET, path, None).await? {
            (status, headers, body) if status.is_success() => Ok((headers, body)),
            (status, _, body) => Err(self.status_error(status, serde_json::from_slice(&body).ok().as_ref())),
        }
    }

    async fn fetch(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, HeaderMap, Bytes), CliError> {
        let exchange = async {
            let (head, body) = self.open(method, path, body).await?.into_parts();
            let body = Limited::new(body, MAX_RESPONSE_SIZE).collect().await;
            Ok((head.status, head.headers, body.map_err(|error| self.unavailable(&*error))?.to_bytes()))
        };
        let timed_out = |_| self.unavailable(&"timeout");
        timeout(REQUEST_TIMEOUT, exchange).await.map_err(timed_out)?
    }

    /// Sends a request and returns the response with its body as a stream.
    pub(crate) async fn open(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<http::Response<Incoming>, CliError> {
        let text = body.map(Value::to_string).unwrap_or_default();
        let mut request = Request::new(Full::new(Bytes::from(text)));
        *request.method_mut() = method;
        *request.uri_mut() = format!("{}{path}", self.base_path)
            .parse()
            .map_err(|_| CliError::input(format!("invalid path `{path}`")))?;
        let headers = request.headers_mut();
        headers.insert(header::HOST, self.authority.clone());
        if body.is_some() {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(token) = &self.token {
            headers.insert(header::AUTHORIZATION, token.clone());
        }
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await;
        let stream = stream.map_err(|error| self.unavailable(&error))?;
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| self.unavailable(&error))?;
        tokio::spawn(connection);
        sender.send_request(request).await.map_err(|error| self.unavailable(&error))
    }

    fn parse_response(&self, status: StatusCode, path: &str, body: &[u8]) -> Result<Value, CliError> {
        let value: Option<Value> = serde_json::from_slice(body).ok();
        match (status.is_success(), value) {
            (true, Some(value)) => Ok(value),
            (true, None) if body.is_empty() => Ok(Value::Null),
            (true, None) => {
                Err(CliError::input(format!("the response of {} to {path} is not JSON", self.url)))
            }
            (false, value) => Err(self.status_error(status, value.as_ref())),
        }
    }

    /// The error for an unsuccessful status.
    pub(crate) fn status_error(&self, status: StatusCode, problem: Option<&Value>) -> CliError {
        let detail = problem.and_then(|problem| problem["detail"].as_str());
        let detail = detail.unwrap_or_else(|| status.canonical_reason().unwrap_or("unknown reason"));
        let hint = match status {
            StatusCode::UNAUTHORIZED => " (set $TIDEGATE_ADMIN_TOKEN)",
            _ => "",
        };
        CliError::input(format!("{} returned {}: {detail}{hint}", self.url, status.as_u16()))
    }

    /// The error for a gateway that does not respond.
    pub(crate) fn unavailable(&self, reason: &dyn std::fmt::Display) -> CliError {
        CliError::input(format!(
            "no gateway at {}: {reason}; add `admin: 127.0.0.1:9091` to the policy, and set the URL with {}",
            self.url, self.flag
        ))
    }
}

/// Runs a future to completion on this thread.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| CliError::input(format!("cannot start the runtime: {error}")))?.block_on(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admin_urls_are_parsed_in_all_forms() {
        for (url, host, port, base) in [
            ("http://127.0.0.1:9091", "127.0.0.1", 9_091, ""),
            ("localhost:9091", "localhost", 9_091, ""),
            ("http://[::1]:9091/", "::1", 9_091, ""),
            ("http://gateway.internal/ops/", "gateway.internal", 80, "/ops"),
        ] {
            let client = AdminClient::parse(url, Some(" secret\n")).unwrap();
            assert_eq!((client.host.as_str(), client.port, client.base_path.as_str()), (host, port, base));
            assert_eq!(client.token.unwrap(), "Bearer secret");
        }
        for url in ["https://a", "ftp://a", "http://", "a b"] {
            assert!(AdminClient::parse(url, None).is_err(), "{url}");
        }
    }
}

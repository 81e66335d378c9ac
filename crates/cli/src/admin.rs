//! Asking a gateway that runs, at its listener of operators.

use crate::error::CliError;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::{env, future::Future, time::Duration};
use tokio::{net::TcpStream, runtime::Builder, time::timeout};

/// Where the gateway is that is meant.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct AdminArgs {
    /// Where operators come in: what the policy says under `admin`; $TIDEGATE_ADMIN, or else http://127.0.0.1:9091
    #[arg(long, value_name = "URL")]
    admin: Option<String>,
}

/// A gateway that can be asked.
#[derive(Clone, Debug)]
pub(crate) struct AdminClient {
    url: String,
    host: String,
    port: u16,
    authority: HeaderValue,
    base_path: String,
    token: Option<HeaderValue>,
    /// What a person says where it is with.
    flag: &'static str,
}

/// Where it is unless told otherwise.
const DEFAULT_URL: &str = "http://127.0.0.1:9091";
/// How long an answer may take, and how large it may be.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_RESPONSE_SIZE: usize = 256 << 20;

impl AdminClient {
    /// The gateway that these arguments mean. What operators must know is taken from `$TIDEGATE_ADMIN_TOKEN`.
    pub(crate) fn from_args(args: &AdminArgs) -> Result<Self, CliError> {
        Self::from_url(args.admin.as_deref(), "--admin")
    }

    /// The gateway at this address, or the usual one, as a person has said it with this flag.
    pub(crate) fn from_url(url: Option<&str>, flag: &'static str) -> Result<Self, CliError> {
        let url = url.map(str::to_owned).or_else(|| env::var("TIDEGATE_ADMIN").ok());
        let token = env::var("TIDEGATE_ADMIN_TOKEN").ok().filter(|token| !token.trim().is_empty());
        let client = Self::parse(url.as_deref().unwrap_or(DEFAULT_URL), token.as_deref())?;
        Ok(Self { flag, ..client })
    }

    /// Where it is.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    fn parse(url: &str, token: Option<&str>) -> Result<Self, CliError> {
        let invalid_url =
            || CliError::input(format!("`{url}` is no address of a gateway; write it as in `{DEFAULT_URL}`"));
        let full = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let uri: Uri = full.parse().map_err(|_| invalid_url())?;
        let authority =
            uri.authority().filter(|_| uri.scheme_str() == Some("http")).ok_or_else(invalid_url)?;
        if authority.as_str().contains('@') {
            let problem = "the address of a gateway has no user and no password";
            return Err(CliError::input(format!(
                "{problem}; leave them out, and put the token into $TIDEGATE_ADMIN_TOKEN"
            )));
        }
        let token = token.map(|token| HeaderValue::try_from(format!("Bearer {}", token.trim()))).transpose();
        let token = token.map_err(|_| CliError::input("$TIDEGATE_ADMIN_TOKEN holds what no token can be"))?;
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

    /// What is told at this path, as JSON.
    pub(crate) async fn get(&self, path: &str) -> Result<Value, CliError> {
        self.send(Method::GET, path, None).await
    }

    /// Asks for something, and reads the answer as JSON; nothing where there is none.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, CliError> {
        let (status, _, body) = self.fetch(method, path, body).await?;
        self.parse_response(status, path, &body)
    }

    /// What is told at this path, as it is, with its headers.
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
        let timed_out = |_| self.unavailable(&"it takes too long");
        timeout(REQUEST_TIMEOUT, exchange).await.map_err(timed_out)?
    }

    /// Asks for something, and gives the answer as it comes.
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
            .map_err(|_| CliError::input(format!("`{path}` cannot be asked for")))?;
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
            (true, Some(told)) => Ok(told),
            (true, None) if body.is_empty() => Ok(Value::Null),
            (true, None) => Err(CliError::input(format!("what {} answers to {path} is no JSON", self.url))),
            (false, told) => Err(self.status_error(status, told.as_ref())),
        }
    }

    /// What a gateway says that does not do what it is asked for.
    pub(crate) fn status_error(&self, status: StatusCode, problem: Option<&Value>) -> CliError {
        let detail = problem.and_then(|told| told["detail"].as_str());
        let detail = detail.unwrap_or_else(|| status.canonical_reason().unwrap_or("no reason is told"));
        let hint = match status {
            StatusCode::UNAUTHORIZED => " ($TIDEGATE_ADMIN_TOKEN is sent as that)",
            _ => "",
        };
        CliError::input(format!("{} answers {}: {detail}{hint}", self.url, status.as_u16()))
    }

    /// That nobody answers, and why.
    pub(crate) fn unavailable(&self, reason: &dyn std::fmt::Display) -> CliError {
        CliError::input(format!(
            "no gateway answers at {}: {reason}; have the policy say `admin: 127.0.0.1:9091`, and say where with {}",
            self.url, self.flag
        ))
    }
}

/// Waits for something on this thread.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| CliError::input(format!("no runtime: {error}")))?.block_on(work)
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

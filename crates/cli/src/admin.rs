//! Asking a gateway that runs, at its listener of operators.

use crate::failure::Failure;
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
pub(crate) struct Operator {
    url: String,
    host: String,
    port: u16,
    authority: HeaderValue,
    base: String,
    token: Option<HeaderValue>,
    /// What a person says where it is with.
    flag: &'static str,
}

/// Where it is unless told otherwise.
const USUAL: &str = "http://127.0.0.1:9091";
/// How long an answer may take, and how large it may be.
const PATIENCE: Duration = Duration::from_secs(10);
const LARGEST: usize = 256 << 20;

impl Operator {
    /// The gateway that these arguments mean. What operators must know is taken from `$TIDEGATE_ADMIN_TOKEN`.
    pub(crate) fn of(args: &AdminArgs) -> Result<Self, Failure> {
        Self::said(args.admin.as_deref(), "--admin")
    }

    /// The gateway at this address, or the usual one, as a person has said it with this flag.
    pub(crate) fn said(url: Option<&str>, flag: &'static str) -> Result<Self, Failure> {
        let url = url.map(str::to_owned).or_else(|| env::var("TIDEGATE_ADMIN").ok());
        let token = env::var("TIDEGATE_ADMIN_TOKEN").ok().filter(|token| !token.trim().is_empty());
        let operator = Self::at(url.as_deref().unwrap_or(USUAL), token.as_deref())?;
        Ok(Self { flag, ..operator })
    }

    /// Where it is.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    fn at(url: &str, token: Option<&str>) -> Result<Self, Failure> {
        let wrong =
            || Failure::input(format!("`{url}` is no address of a gateway; write it as in `{USUAL}`"));
        let full = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let uri: Uri = full.parse().map_err(|_| wrong())?;
        let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http")).ok_or_else(wrong)?;
        if authority.as_str().contains('@') {
            let problem = "the address of a gateway has no user and no password";
            return Err(Failure::input(format!(
                "{problem}; leave them out, and put the token into $TIDEGATE_ADMIN_TOKEN"
            )));
        }
        let token = token.map(|token| HeaderValue::try_from(format!("Bearer {}", token.trim()))).transpose();
        let token = token.map_err(|_| Failure::input("$TIDEGATE_ADMIN_TOKEN holds what no token can be"))?;
        Ok(Self {
            host: authority.host().trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: authority.port_u16().unwrap_or(80),
            authority: HeaderValue::try_from(authority.as_str()).map_err(|_| wrong())?,
            base: uri.path().trim_end_matches('/').to_owned(),
            token,
            flag: "--admin",
            url: full,
        })
    }

    /// What is told at this path, as JSON.
    pub(crate) async fn get(&self, path: &str) -> Result<Value, Failure> {
        self.ask(Method::GET, path, None).await
    }

    /// Asks for something, and reads the answer as JSON; nothing where there is none.
    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, Failure> {
        let (status, _, body) = self.whole(method, path, body).await?;
        self.read(status, path, &body)
    }

    /// What is told at this path, as it is, with its headers.
    pub(crate) async fn text(&self, path: &str) -> Result<(HeaderMap, Bytes), Failure> {
        match self.whole(Method::GET, path, None).await? {
            (status, headers, body) if status.is_success() => Ok((headers, body)),
            (status, _, body) => Err(self.refused(status, serde_json::from_slice(&body).ok().as_ref())),
        }
    }

    async fn whole(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, HeaderMap, Bytes), Failure> {
        let asked = async {
            let (head, body) = self.open(method, path, body).await?.into_parts();
            let body = Limited::new(body, LARGEST).collect().await;
            Ok((head.status, head.headers, body.map_err(|error| self.silent(&*error))?.to_bytes()))
        };
        let late = |_| self.silent(&"it takes too long");
        timeout(PATIENCE, asked).await.map_err(late)?
    }

    /// Asks for something, and gives the answer as it comes.
    pub(crate) async fn open(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<http::Response<Incoming>, Failure> {
        let text = body.map(Value::to_string).unwrap_or_default();
        let mut request = Request::new(Full::new(Bytes::from(text)));
        *request.method_mut() = method;
        *request.uri_mut() = format!("{}{path}", self.base)
            .parse()
            .map_err(|_| Failure::input(format!("`{path}` cannot be asked for")))?;
        let headers = request.headers_mut();
        headers.insert(header::HOST, self.authority.clone());
        if body.is_some() {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(token) = &self.token {
            headers.insert(header::AUTHORIZATION, token.clone());
        }
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await;
        let stream = stream.map_err(|error| self.silent(&error))?;
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| self.silent(&error))?;
        tokio::spawn(connection);
        sender.send_request(request).await.map_err(|error| self.silent(&error))
    }

    fn read(&self, status: StatusCode, path: &str, body: &[u8]) -> Result<Value, Failure> {
        let told: Option<Value> = serde_json::from_slice(body).ok();
        match (status.is_success(), told) {
            (true, Some(told)) => Ok(told),
            (true, None) if body.is_empty() => Ok(Value::Null),
            (true, None) => Err(Failure::input(format!("what {} answers to {path} is no JSON", self.url))),
            (false, told) => Err(self.refused(status, told.as_ref())),
        }
    }

    /// What a gateway says that does not do what it is asked for.
    pub(crate) fn refused(&self, status: StatusCode, told: Option<&Value>) -> Failure {
        let detail = told.and_then(|told| told["detail"].as_str());
        let detail = detail.unwrap_or_else(|| status.canonical_reason().unwrap_or("no reason is told"));
        let hint = match status {
            StatusCode::UNAUTHORIZED => " ($TIDEGATE_ADMIN_TOKEN is sent as that)",
            _ => "",
        };
        Failure::input(format!("{} answers {}: {detail}{hint}", self.url, status.as_u16()))
    }

    /// That nobody answers, and why.
    pub(crate) fn silent(&self, why: &dyn std::fmt::Display) -> Failure {
        Failure::input(format!(
            "no gateway answers at {}: {why}; have the policy say `admin: 127.0.0.1:9091`, and say where with {}",
            self.url, self.flag
        ))
    }
}

/// Waits for something on this thread.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::input(format!("no runtime: {error}")))?.block_on(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_in_all_their_forms() {
        for (url, host, port, base) in [
            ("http://127.0.0.1:9091", "127.0.0.1", 9_091, ""),
            ("localhost:9091", "localhost", 9_091, ""),
            ("http://[::1]:9091/", "::1", 9_091, ""),
            ("http://gateway.internal/ops/", "gateway.internal", 80, "/ops"),
        ] {
            let operator = Operator::at(url, Some(" secret\n")).unwrap();
            assert_eq!((operator.host.as_str(), operator.port, operator.base.as_str()), (host, port, base));
            assert_eq!(operator.token.unwrap(), "Bearer secret");
        }
        for url in ["https://a", "ftp://a", "http://", "a b"] {
            assert!(Operator::at(url, None).is_err(), "{url}");
        }
    }
}

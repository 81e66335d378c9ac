//! `tidegate explain`: what would a policy do with this request?

use super::check;
use crate::{error::CliError, explain, terminal};
use http::{Method, Request, Uri, Version, header, request};
use std::{net::IpAddr, path::PathBuf, str::FromStr};

/// Show which rules of a policy apply to a request, for whom they count, and what would be answered.
///
/// The answer is that of a gateway which has counted nothing yet and has banned nobody. No store is asked.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExplainArgs {
    /// The policy, in YAML, TOML or JSON
    file: PathBuf,

    /// The request, as in 'POST /login', 'GET example.com/search?q=a' or '/'
    request: RequestLine,

    /// The address that it comes from
    #[arg(long, value_name = "ADDRESS", default_value = "192.0.2.1")]
    ip: IpAddr,

    /// The name of the listener that it comes in through
    #[arg(long, value_name = "NAME")]
    listener: Option<String>,

    /// One of its headers, as in 'x-plan: gold'
    #[arg(long = "header", value_name = "NAME: VALUE")]
    headers: Vec<HeaderArg>,

    /// Print it for programs
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  tidegate explain policy.yaml 'POST /login' --ip 203.0.113.7
  tidegate explain policy.yaml 'GET api.example.com/items?page=2' --header 'x-plan: gold'";

pub(crate) fn run(args: &ExplainArgs) -> Result<(), CliError> {
    let policy = check::read_policy(&args.file)?;
    let listener = args.listener.as_deref();
    let request = args.request.to_parts(&args.headers).map_err(CliError::input)?;
    let explanation = tidegate_policy::explain_request(&policy, request, (args.ip, listener), "".as_ref())
        .map_err(|error| CliError::input(error.to_string()))?;
    match args.json {
        true => terminal::print(&format!("{:#}\n", explain::explanation_json(&explanation))),
        false => terminal::print(&explanation.to_string()),
    }
}

/// The first line of a request, as people write it.
#[derive(Clone, Debug)]
struct RequestLine {
    method: Method,
    /// Of a line without a scheme, where it is in front of the path.
    host: Option<String>,
    target: Uri,
}

impl RequestLine {
    /// The head of a request with this line. Without a host it is one of HTTP/1.0, which may have none.
    fn to_parts(&self, headers: &[HeaderArg]) -> Result<request::Parts, String> {
        let mut request = Request::builder().method(&self.method).uri(&self.target);
        for (name, value) in self.host.iter().map(|host| ("host", host.as_str())).chain(
            headers
                .iter()
                .filter(|header| self.host.is_none() || header.name != "host")
                .map(|header| (&*header.name, &*header.value)),
        ) {
            request = request.header(name, value);
        }
        let mut parts = request.body(()).map_err(|error| error.to_string())?.into_parts().0;
        if parts.uri.authority().is_none() && !parts.headers.contains_key(header::HOST) {
            parts.version = Version::HTTP_10;
        }
        Ok(parts)
    }
}

impl FromStr for RequestLine {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (method, address) = text.trim().split_once(' ').unwrap_or(("GET", text.trim()));
        let address = address.trim();
        let start = address.find('/').or_else(|| address.find('*').filter(|_| address == "*"));
        let Some(start) = start else {
            return Err("there is no path in it; write 'GET /path' or 'GET host/path'".to_owned());
        };
        let (host, target) = if address.contains("://") { ("", address) } else { address.split_at(start) };
        let target = target.split_once('#').map_or(target, |(target, _)| target);
        let target = target.parse().map_err(|error| format!("`{target}` is not a path of HTTP: {error}"))?;
        let method = method.to_uppercase();
        let method = method.parse().map_err(|_| format!("`{method}` is not a method of HTTP"))?;
        Ok(Self { method, host: Some(host.to_owned()).filter(|host| !host.is_empty()), target })
    }
}

#[derive(Clone, Debug)]
struct HeaderArg {
    name: String,
    value: String,
}

impl FromStr for HeaderArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some((name, value)) if !name.trim().is_empty() => {
                Ok(Self { name: name.trim().to_lowercase(), value: value.trim().to_owned() })
            }
            _ => Err("a header is a name, a colon and a value; write 'x-plan: gold'".to_owned()),
        }
    }
}

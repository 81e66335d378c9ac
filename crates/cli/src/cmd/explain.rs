//! `tidegate explain`: shows how a policy decides a request.

use super::check;
use crate::{error::CliError, explain, terminal};
use http::{Method, Request, Uri, Version, header, request};
use std::{net::IpAddr, path::PathBuf, str::FromStr};
use tidegate_rule::request::DescriptorHead;

/// Show which rules of a policy apply to a request, which keys they count, and the resulting response.
///
/// The result is that of a gateway that has just started: without counts and without bans. The command connects to no store.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExplainArgs {
    /// Use this policy, in YAML, TOML or JSON
    file: PathBuf,

    /// Explain this request, as in 'POST /login', 'GET example.com/search?q=a' or '/'
    #[arg(required_unless_present = "descriptor")]
    request: Option<RequestLine>,

    /// Set the client address
    #[arg(long, value_name = "ADDRESS", default_value = "192.0.2.1")]
    ip: IpAddr,

    /// Set the name of the listener
    #[arg(long, value_name = "NAME")]
    listener: Option<String>,

    /// Add a request header, as in 'x-plan: gold'
    #[arg(long = "header", value_name = "NAME: VALUE")]
    headers: Vec<HeaderArg>,

    /// Set the body, for rules that read it, as in '{"max_tokens": 100}'
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    body: String,

    /// Explain a descriptor of Envoy with this entry, as in 'remote_address=192.0.2.1', instead of a request
    #[arg(long, value_name = "NAME=VALUE", conflicts_with_all = ["request", "ip", "listener", "headers", "body"])]
    descriptor: Vec<EntryArg>,

    /// Print the explanation as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  tidegate explain policy.yaml 'POST /login' --ip 203.0.113.7
  tidegate explain policy.yaml 'GET api.example.com/items?page=2' --header 'x-plan: gold'
  tidegate explain policy.yaml 'POST /v1/responses' --body '{\"max_output_tokens\": 500}'
  tidegate explain policy.yaml --descriptor domain=shop --descriptor remote_address=192.0.2.1";

pub(crate) fn run(args: &ExplainArgs) -> Result<(), CliError> {
    let policy = check::read_policy(&args.file)?;
    let explanation = match &args.request {
        Some(line) => {
            let request = line.to_parts(&args.headers).map_err(CliError::input)?;
            let sender = (args.ip, args.listener.as_deref());
            let request = (&request, args.body.as_bytes());
            tidegate_policy::explain_request(&policy, request, sender, "".as_ref())
        }
        None => {
            let entries = args.descriptor.iter().map(|entry| (&*entry.name, &*entry.value));
            let domain = entries.clone().find(|(name, _)| *name == DescriptorHead::DOMAIN);
            let head = DescriptorHead::new(domain.map_or("", |(_, domain)| domain), entries);
            tidegate_policy::explain(&policy, &head, "".as_ref())
        }
    };
    let explanation = explanation.map_err(|error| CliError::input(error.to_string()))?;
    match args.json {
        true => terminal::print(&format!("{:#}\n", explain::explanation_json(&explanation))),
        false => terminal::print(&explanation.to_string()),
    }
}

/// A request line in the short form of the command line.
#[derive(Clone, Debug)]
struct RequestLine {
    method: Method,
    /// The host before the path, in a line without a scheme.
    host: Option<String>,
    target: Uri,
}

impl RequestLine {
    /// Builds the request head. Without a host it is HTTP/1.0, which does not require one.
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
            return Err("missing path; write 'GET /path' or 'GET host/path'".to_owned());
        };
        let (host, target) = if address.contains("://") { ("", address) } else { address.split_at(start) };
        let target = target.split_once('#').map_or(target, |(target, _)| target);
        let target = target.parse().map_err(|error| format!("invalid path `{target}`: {error}"))?;
        let method = method.to_uppercase();
        let method = method.parse().map_err(|_| format!("invalid method `{method}`"))?;
        Ok(Self { method, host: Some(host.to_owned()).filter(|host| !host.is_empty()), target })
    }
}

#[derive(Clone, Debug)]
struct EntryArg {
    name: String,
    value: String,
}

impl FromStr for EntryArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, value)) if !name.is_empty() => {
                Ok(Self { name: name.to_owned(), value: value.to_owned() })
            }
            _ => Err("an entry is a name, an equals sign and a value; write 'user=ann'".to_owned()),
        }
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

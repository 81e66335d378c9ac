//! `tidegate explain`: what would a policy do with this request?

use super::check;
use crate::{explain, failure::Failure, terminal};
use std::{any::Any, net::IpAddr, path::PathBuf, str::FromStr};
use tidegate_rule::request::Head;

/// Show which rules of a policy apply to a request, for whom they count, and what would be answered.
///
/// The answer is that of a gateway which has counted nothing yet and has banned nobody. No store is asked.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The policy, in YAML, TOML or JSON
    file: PathBuf,

    /// The request, as in 'POST /login', 'GET example.com/search?q=a' or '/'
    request: Line,

    /// The address that it comes from
    #[arg(long, value_name = "ADDRESS", default_value = "192.0.2.1")]
    ip: IpAddr,

    /// The name of the listener that it comes in through
    #[arg(long, value_name = "NAME")]
    listener: Option<String>,

    /// One of its headers, as in 'x-plan: gold'
    #[arg(long = "header", value_name = "NAME: VALUE")]
    headers: Vec<Header>,

    /// Print it for programs
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  tidegate explain policy.yaml 'POST /login' --ip 203.0.113.7
  tidegate explain policy.yaml 'GET api.example.com/items?page=2' --header 'x-plan: gold'";

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let policy = check::read(&args.file)?;
    let listener = args.listener.as_deref();
    let request = Request { line: &args.request, ip: args.ip, listener, headers: &args.headers };
    let explanation = tidegate_policy::explain(&policy, &request, "".as_ref())
        .map_err(|error| Failure::input(error.to_string()))?;
    match args.json {
        true => terminal::print(&format!("{:#}\n", explain::json(&explanation))),
        false => terminal::print(&explanation.to_string()),
    }
}

/// The first line of a request, as people write it.
#[derive(Clone, Debug)]
struct Line {
    method: String,
    host: Option<String>,
    path: String,
    query: Option<String>,
}

impl FromStr for Line {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (method, address) = text.trim().split_once(' ').unwrap_or(("GET", text.trim()));
        let address = address.trim();
        let address = address.split_once("://").map_or(address, |(_, address)| address);
        let Some(slash) = address.find('/') else {
            return Err("there is no path in it; write 'GET /path' or 'GET host/path'".to_owned());
        };
        let (host, path) = address.split_at(slash);
        let (path, query) = match path.split_once('?') {
            Some((path, query)) => (path, Some(query.to_owned())),
            None => (path, None),
        };
        let host = Some(host.to_owned()).filter(|host| !host.is_empty());
        Ok(Self { method: method.to_uppercase(), host, path: path.to_owned(), query })
    }
}

#[derive(Clone, Debug)]
struct Header {
    name: String,
    value: String,
}

impl FromStr for Header {
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

/// A request that nobody sent.
struct Request<'a> {
    line: &'a Line,
    ip: IpAddr,
    listener: Option<&'a str>,
    headers: &'a [Header],
}

impl Head for Request<'_> {
    fn method(&self) -> &str {
        &self.line.method
    }

    fn path(&self) -> &str {
        &self.line.path
    }

    fn query(&self) -> Option<&str> {
        self.line.query.as_deref()
    }

    fn host(&self) -> Option<&str> {
        let said = self.headers.iter().find(|header| header.name == "host").map(|header| &*header.value);
        self.line.host.as_deref().or(said)
    }

    fn route(&self) -> Option<&str> {
        None
    }

    fn peer(&self) -> Option<IpAddr> {
        Some(self.ip)
    }

    fn listener(&self) -> Option<&str> {
        self.listener
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers.iter().find(|header| header.name == name).map(|header| header.value.as_bytes())
    }

    fn each_header<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
        let named = self.headers.iter().filter(|header| header.name == name);
        named.for_each(|header| each(header.value.as_bytes()));
    }

    fn extensions(&self) -> Option<&dyn Any> {
        None
    }
}

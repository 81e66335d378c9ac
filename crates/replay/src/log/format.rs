//! Line formats: the built-in ones, or a custom one.

use super::{
    builtin::{self, HeaderIndex},
    cloudfront::CloudfrontFormat,
    escape::Escape,
    json::{HeaderMembers, JsonFormat},
    text::{FormatToken, TextFormat},
};
use crate::log::{LogField, LogInput, MAX_HEADERS};

/// A line format.
#[derive(Clone, Debug)]
pub struct LineFormat {
    pub(super) name: String,
    pub(super) kind: FormatKind,
}

#[derive(Clone, Debug)]
pub(super) enum FormatKind {
    Text(TextFormat),
    Json(JsonFormat),
    Haproxy,
    Cloudfront(CloudfrontFormat),
}

impl LineFormat {
    /// The name of the format.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A shell command that sorts a log of this format by time; `None` for custom formats.
    pub(super) fn sort_command(&self, file: &str) -> Option<String> {
        // The day, the month and the year of `[06/Feb/2009:12:14:14.655` are sorted separately.
        let common = "LC_ALL=C sort -s -t '[' -k 2.8,2.11n -k 2.4,2.6M -k 2.1,2.2n -k 2.13,2.24";
        let sort = match self.name.as_str() {
            "combined" | "main" | "common" | "vhost" | "traefik" => common.to_owned(),
            // Remove the syslog header, which may contain brackets.
            "haproxy" => format!(r"sed -E 's/^([^ ]+ +)*([^ ]+:[0-9]+ \[)/\2/' | {common}"),
            "envoy" => "LC_ALL=C sort -s -k 1,1".to_owned(),
            "alb" => "LC_ALL=C sort -s -k 2,2".to_owned(),
            "cloudfront" => "LC_ALL=C sort -s -k 1,2".to_owned(),
            "caddy" => "jq -sc 'sort_by(.ts)[]'".to_owned(),
            "traefik-json" => "jq -sc 'sort_by(.StartUTC)[]'".to_owned(),
            "json" => "jq -sc 'sort_by(.time)[]'".to_owned(),
            _ => return None,
        };
        let decompress = match file.rsplit_once('.') {
            _ if file == LogInput::STDIN_NAME => return Some(sort),
            Some((_, "gz")) => "gzip -dc",
            Some((_, "zst")) => "zstd -dc",
            Some((_, "xz")) => "xz -dc",
            Some((_, "bz2")) => "bzip2 -dc",
            _ => "cat",
        };
        Some(format!("{decompress} '{}' | {sort}", file.replace('\'', r"'\''")))
    }
}

/// The formats that are tried on a line, and the headers that they contain.
#[derive(Clone, Debug)]
pub struct LineFormats {
    pub(super) list: Vec<LineFormat>,
    pub(super) headers: Vec<String>,
}

/// A format is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FormatError(String);

impl LineFormats {
    /// Returns all built-in formats.
    ///
    /// `fields` map fields to JSON members, for example `("ip", "client.address")`.
    pub fn builtin(fields: &[(String, String)]) -> Result<Self, FormatError> {
        let mut formats = Self { list: Vec::new(), headers: Vec::new() };
        for name in ["combined", "main", "vhost", "common", "envoy", "haproxy", "alb", "cloudfront"] {
            formats.add(name, fields)?;
        }
        // Lines with configured members are not those of a known server.
        let json =
            if fields.is_empty() { ["traefik", "caddy", "json"] } else { ["json", "traefik", "caddy"] };
        for name in json {
            formats.add(name, fields)?;
        }
        Ok(formats)
    }

    /// Returns one format, by its name or in the syntax of nginx, Apache or Envoy.
    pub fn single(text: &str, fields: &[(String, String)]) -> Result<Self, FormatError> {
        let mut formats = Self { list: Vec::new(), headers: Vec::new() };
        formats.add(text, fields)?;
        Ok(formats)
    }

    /// The names of all headers that lines may contain.
    pub fn headers(&self) -> &[String] {
        &self.headers
    }

    /// The formats, in the order of attempts.
    pub fn list(&self) -> &[LineFormat] {
        &self.list
    }

    /// Parses the `#Fields` line of a CloudFront log, if that is one of the formats. All headers are known by then.
    pub(super) fn parse_cloudfront_header(&self, line: &[u8]) -> Option<CloudfrontFormat> {
        let is_cloudfront = |format: &LineFormat| matches!(format.kind, FormatKind::Cloudfront(_));
        self.list.iter().find(|format| is_cloudfront(format))?;
        let columns = str::from_utf8(line.strip_prefix(b"#Fields:")?).ok()?;
        let mut place = |name: &str| self.headers.iter().position(|known| known == name);
        Some(CloudfrontFormat::new(columns, &mut place))
    }

    /// Adds the formats of a name, or a format string.
    fn add(&mut self, name: &str, fields: &[(String, String)]) -> Result<(), FormatError> {
        let text = match name {
            "combined" => builtin::COMBINED_FORMAT,
            "main" => builtin::MAIN_FORMAT,
            "common" => builtin::COMMON_FORMAT,
            "vhost" => builtin::VHOST_FORMAT,
            "envoy" => builtin::ENVOY_FORMAT,
            "traefik" => {
                self.add_json(
                    "traefik-json",
                    builtin::TRAEFIK_FIELDS,
                    HeaderMembers::Prefix("request_"),
                    fields,
                )?;
                builtin::TRAEFIK_FORMAT
            }
            "caddy" => {
                let headers = HeaderMembers::Object("request.headers");
                return self.add_json(name, builtin::CADDY_FIELDS, headers, fields);
            }
            "json" | "envoy-json" => {
                return self.add_json("json", builtin::JSON_FIELDS, HeaderMembers::None, fields);
            }
            "haproxy" => {
                self.list.push(LineFormat { name: name.to_owned(), kind: FormatKind::Haproxy });
                return Ok(());
            }
            "alb" => {
                let tokens = builtin::alb_tokens(&mut |name| header_index(&mut self.headers, name));
                return self.add_text(name, tokens, Escape::Backslash, Some(builtin::ALB_REQUIRED_FIELDS));
            }
            "cloudfront" => {
                let mut place = |name: &str| header_index(&mut self.headers, name);
                let format = CloudfrontFormat::new(builtin::CLOUDFRONT_COLUMNS, &mut place);
                self.list.push(LineFormat { name: name.to_owned(), kind: FormatKind::Cloudfront(format) });
                return Ok(());
            }
            text => text,
        };
        let mut place = |name: &str| header_index(&mut self.headers, name);
        // nginx and Apache escape the text of requests. Envoy and Traefik do not.
        let (tokens, escape) = if text.contains('$') {
            (parse_nginx(text, &mut place), Escape::Backslash)
        } else if text.contains("%REQ(") || text.contains("%START_TIME") {
            (parse_envoy(text, &mut place)?, Escape::None)
        } else if text.contains('%') {
            let escape = if name == "traefik" { Escape::None } else { Escape::Backslash };
            (parse_apache(text, &mut place)?, escape)
        } else {
            return Err(FormatError(format!(
                "unknown format `{text}`; use combined, main, common, vhost, envoy, haproxy, traefik, caddy, alb, cloudfront, \
                 json, or the syntax of nginx ($…), Apache (%…) or Envoy (%…%)"
            )));
        };
        self.add_text(name, tokens, escape, None)
    }

    fn add_text(
        &mut self,
        name: &str,
        tokens: Vec<FormatToken>,
        escape: Escape,
        required: Option<usize>,
    ) -> Result<(), FormatError> {
        let format = TextFormat::from_tokens(tokens, escape)
            .map_err(|wrong| FormatError(format!("format `{name}`: {wrong}")))?;
        let format = match required {
            Some(required) => format.with_required(required),
            None => format,
        };
        self.list.push(LineFormat { name: name.to_owned(), kind: FormatKind::Text(format) });
        Ok(())
    }

    fn add_json(
        &mut self,
        name: &str,
        defaults: &[(&str, &str)],
        headers: HeaderMembers,
        fields: &[(String, String)],
    ) -> Result<(), FormatError> {
        let mut place = |name: &str| header_index(&mut self.headers, name);
        let mut members = Vec::new();
        for (name, path) in fields {
            let field = builtin::field_by_name(name, &mut place).ok_or_else(|| {
                FormatError(format!("unknown field `{name}`; use one of {}", builtin::FIELD_NAMES))
            })?;
            members.push((path.clone(), field));
        }
        for (path, name) in defaults {
            // A record has one time, so a configured time replaces both kinds.
            let are_times = |configured: &str| {
                [configured, name].iter().all(|name| matches!(*name, "time" | "completed"))
            };
            let is_named = |(configured, _): &(String, String)| configured == name || are_times(configured);
            let field = builtin::field_by_name(name, &mut place).filter(|_| !fields.iter().any(is_named));
            members.extend(field.map(|field| ((*path).to_owned(), field)));
        }
        let kind = FormatKind::Json(JsonFormat::new(members, headers));
        self.list.push(LineFormat { name: name.to_owned(), kind });
        Ok(())
    }
}

/// Returns the index of a header, and adds it if there is room.
fn header_index(headers: &mut Vec<String>, name: &str) -> Option<usize> {
    if let Some(place) = headers.iter().position(|known| known == name) {
        return Some(place);
    }
    if headers.len() == MAX_HEADERS {
        return None;
    }
    headers.push(name.to_owned());
    Some(headers.len() - 1)
}

/// Parses `$name` and `${name}`, as in nginx's `log_format`.
fn parse_nginx(text: &str, place: &mut HeaderIndex<'_>) -> Vec<FormatToken> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(dollar) = rest.find('$') {
        pieces.push(FormatToken::Text(rest.as_bytes()[..dollar].to_vec()));
        let behind = &rest[dollar + 1..];
        let is_of_names = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let (name, end) = match behind.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            Some((name, end)) => (name, end),
            None => behind.split_at(behind.find(|c| !is_of_names(c)).unwrap_or(behind.len())),
        };
        pieces.push(FormatToken::Field(builtin::nginx_field(name, place), format!("${name}")));
        rest = end;
    }
    pieces.push(FormatToken::Text(rest.as_bytes().to_vec()));
    pieces
}

/// Parses `%h`, `%>s`, `%{Referer}i`, `%400,501{Referer}i`, as in Apache's `LogFormat`.
fn parse_apache(text: &str, place: &mut HeaderIndex<'_>) -> Result<Vec<FormatToken>, FormatError> {
    let text = text.replace("\\\"", "\"");
    let mut pieces = Vec::new();
    let mut rest = &*text;
    while let Some(percent) = rest.find('%') {
        pieces.push(FormatToken::Text(rest.as_bytes()[..percent].to_vec()));
        let behind = &rest[percent + 1..];
        if let Some(after) = behind.strip_prefix('%') {
            pieces.push(FormatToken::Text(vec![b'%']));
            rest = after;
            continue;
        }
        let behind =
            behind.trim_start_matches(|c: char| c.is_ascii_digit() || matches!(c, ',' | '!' | '<' | '>'));
        let (argument, behind) = match behind.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            Some((argument, behind)) => (Some(argument), behind),
            None => (None, behind),
        };
        let end = behind.char_indices().nth(if behind.starts_with('^') { 3 } else { 1 });
        let (letter, after) = behind.split_at(end.map_or(behind.len(), |(at, _)| at));
        if letter.is_empty() {
            return Err(FormatError(format!(
                "format `{text}` ends with a `%`; write `%%` for a percent sign"
            )));
        }
        let field = builtin::apache_field(letter, argument, place);
        let name =
            argument.map_or_else(|| format!("%{letter}"), |argument| format!("%{{{argument}}}{letter}"));
        // Apache writes brackets around `%t`.
        let in_brackets = letter == "t" && argument.is_none();
        if in_brackets {
            pieces.push(FormatToken::Text(vec![b'[']));
        }
        pieces.push(FormatToken::Field(field, name));
        if in_brackets {
            pieces.push(FormatToken::Text(vec![b']']));
        }
        rest = after;
    }
    pieces.push(FormatToken::Text(rest.as_bytes().to_vec()));
    Ok(pieces)
}

/// Parses `%START_TIME%`, `%REQ(:METHOD)%`, as in Envoy.
fn parse_envoy(text: &str, place: &mut HeaderIndex<'_>) -> Result<Vec<FormatToken>, FormatError> {
    let mut pieces = Vec::new();
    let mut rest = text.trim_end_matches("\\n");
    while let Some((front, behind)) = rest.split_once('%') {
        pieces.push(FormatToken::Text(front.as_bytes().to_vec()));
        // The argument in parentheses may contain percent signs.
        let is_of_names = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let open = behind.find('(').filter(|open| behind[..*open].chars().all(is_of_names));
        let close = open.and_then(|open| Some(open + behind[open..].find(')')?)).unwrap_or(0);
        let end = behind[close..].find('%').map(|end| close + end);
        let Some(end) = end else {
            return Err(FormatError(format!("format `{text}`: `%{behind}` has no closing `%`")));
        };
        let name = &behind[..end];
        let (operator, argument) = match name.split_once('(') {
            Some((operator, argument)) => (operator, argument.split(')').next()),
            None => (name, None),
        };
        let field: LogField = builtin::envoy_field(operator, argument, place);
        pieces.push(FormatToken::Field(field, format!("%{name}%")));
        rest = &behind[end + 1..];
    }
    pieces.push(FormatToken::Text(rest.as_bytes().to_vec()));
    Ok(pieces)
}

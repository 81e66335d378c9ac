//! Responses that nginx sends itself: `return`, and `rewrite` to another site.

use super::{Importer, condition::NginxCondition, directives, lexer::Directive, numbers::parse_integer};
use tidegate_policy::model::Respond;

/// A response to requests that match a condition. It precedes all other settings of its level.
#[derive(Clone, Debug)]
pub(super) struct ConditionalResponse {
    pub(super) condition: NginxCondition,
    pub(super) respond: Respond,
}

/// Placeholder for the scheme in a redirect until its listeners are known.
pub(super) const SCHEME_PLACEHOLDER: &str = "{scheme}";

/// The responses of a level.
#[derive(Clone, Debug, Default)]
pub(super) struct LevelResponses {
    /// Responses with a condition, in order.
    pub(super) conditional: Vec<ConditionalResponse>,
    /// The response to all other requests.
    pub(super) unconditional: Option<Respond>,
}

impl Importer<'_> {
    /// Reads a `return`, a `rewrite` or an `if`. nginx evaluates them in order, up to the first response.
    pub(super) fn read_response(
        &mut self,
        directive: &Directive,
        server_name: Option<&str>,
        answers: &mut LevelResponses,
    ) {
        if answers.unconditional.is_some() {
            return;
        }
        match directive.name.as_str() {
            "return" => answers.unconditional = Some(self.parse_return(directive, server_name)),
            "rewrite" => match parse_rewrite(directive, server_name) {
                Some(respond) => {
                    self.record_scheme(&respond);
                    answers.unconditional = Some(respond);
                }
                None => self.record_unsupported(directive),
            },
            _ => self.read_if(directive, server_name, answers),
        }
    }

    /// `if (…) { return …; }`
    fn read_if(&mut self, directive: &Directive, server_name: Option<&str>, answers: &mut LevelResponses) {
        let block = directive.block.as_deref().unwrap_or_default();
        let condition = match (block, NginxCondition::parse(directive, &self.variables)) {
            ([only], Ok(condition)) if only.name == "return" => condition,
            (block, condition) => {
                let strange = match condition {
                    Err(strange) => strange,
                    Ok(_) => "an `if` block with more than a `return`".to_owned(),
                };
                let reason = format!("{strange} is not supported; write a route or a rule with `match`");
                return match block.iter().any(|entry| directives::can_protect(&entry.name)) {
                    true => self.record_protection_loss(directive, reason),
                    false => self.record_loss(directive, reason),
                };
            }
        };
        self.needs_scheme |= condition.scheme.is_some();
        let respond = self.parse_return(&block[0], server_name);
        answers.conditional.push(ConditionalResponse { condition, respond });
    }

    /// Parses `return CODE [TEXT]`, `return CODE URL` or `return URL`. An unsupported response becomes a 404.
    fn parse_return(&mut self, directive: &Directive, server_name: Option<&str>) -> Respond {
        let status = |status| Respond::Status { status, headers: [].into(), body: String::new() };
        let text = directive.arg(1).unwrap_or_default();
        let code = directive.arg(0).and_then(parse_integer).and_then(|code| u16::try_from(code).ok());
        let found = match (directive.arg(0), code) {
            (_, Some(444)) => Some(Respond::Drop),
            (_, Some(code @ (301 | 302 | 303 | 307 | 308))) if !text.is_empty() => {
                build_redirect(text, code, server_name)
            }
            (_, Some(code @ 200..=599)) => {
                if text.contains('$') {
                    self.record_loss(
                        directive,
                        "a body that depends on the request is not supported; the response has no body",
                    );
                }
                let body = if text.contains('$') { "" } else { text };
                let body = body.replace(|c: char| c.is_control() && c != '\n' && c != '\t', " ");
                Some(Respond::Status { status: code, headers: [].into(), body })
            }
            (Some(url), None) if directive.args.len() == 1 => build_redirect(url, 302, server_name),
            _ => None,
        };
        match found {
            Some(respond) => {
                self.record_scheme(&respond);
                respond
            }
            None => {
                self.record_loss(directive, "a policy cannot send this response; it sends 404");
                status(404)
            }
        }
    }

    fn record_scheme(&mut self, respond: &Respond) {
        if let Respond::Redirect { location, .. } = respond {
            self.needs_scheme |= location.contains(SCHEME_PLACEHOLDER);
        }
    }
}

fn build_redirect(url: &str, status: u16, server_name: Option<&str>) -> Option<Respond> {
    Some(Respond::Redirect { location: translate_url(url, server_name)?, status })
}

/// Replaces nginx variables in a URL with placeholders of a policy.
fn translate_url(url: &str, server_name: Option<&str>) -> Option<String> {
    if url.contains(|c: char| c.is_control() || c.is_whitespace() || matches!(c, '{' | '}')) {
        return None;
    }
    // Longer names first, because one name may be the prefix of another.
    let known = [
        ("$uri$is_args$args", "{uri}"),
        ("$request_uri", "{uri}"),
        ("$document_uri", "{path}"),
        ("$uri", "{path}"),
        ("$http_host", "{host}"),
        ("$host", "{host}"),
        ("$scheme", SCHEME_PLACEHOLDER),
        ("$server_name", server_name.unwrap_or("$")),
    ];
    let (mut text, mut rest) = (String::new(), url);
    while let Some(at) = rest.find('$') {
        text.push_str(&rest[..at]);
        let (name, meaning) = known.iter().find(|(name, _)| {
            let behind = rest[at..].strip_prefix(name);
            behind.is_some_and(|behind| !behind.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_'))
        })?;
        text.push_str(meaning);
        rest = &rest[at + name.len()..];
    }
    text.push_str(rest);
    (!text.contains('$') && !text.is_empty()).then_some(text)
}

/// Parses `rewrite ^ https://$host$request_uri? permanent;`, and the variant with the path as `$1`.
fn parse_rewrite(directive: &Directive, server_name: Option<&str>) -> Option<Respond> {
    let (expression, target) = (directive.arg(0)?, directive.arg(1)?);
    let status = match directive.arg(2) {
        Some("permanent") => 301,
        Some("redirect") => 302,
        None if ["http://", "https://", "$scheme"].iter().any(|start| target.starts_with(start)) => 302,
        _ => return None,
    };
    // nginx adds the query unless the target ends with `?`.
    let (target, path) = match target.strip_suffix('?') {
        Some(target) => (target, "$uri"),
        None if target.contains("$request_uri") => return None,
        None => (target, "$request_uri"),
    };
    let target = match (expression, target.contains("$1")) {
        ("^" | ".*" | "^.*" | "^.*$" | "^/" | "^(.*)" | "^(.*)$" | "(.*)", false) => match path {
            "$uri" => target.to_owned(),
            _ => return None,
        },
        ("^(.*)" | "^(.*)$" | "(.*)", true) => target.replacen("$1", path, 1),
        ("^/(.*)" | "^/(.*)$", true) if target.contains("/$1") => target.replacen("/$1", path, 1),
        _ => return None,
    };
    build_redirect(&target, status, server_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirect_urls_use_placeholders() {
        let cases = [
            ("https://$host$request_uri", Some("https://{host}{uri}")),
            ("https://www.a.com$uri$is_args$args", Some("https://www.a.com{uri}")),
            ("$scheme://$server_name/x", Some("{scheme}://a.com/x")),
            ("/new", Some("/new")),
            ("https://$hostname/", None),
            ("https://$1", None),
            ("https://a/{x}", None),
        ];
        for (url, expected) in cases {
            assert_eq!(translate_url(url, Some("a.com")).as_deref(), expected, "{url}");
        }
        assert_eq!(translate_url("https://$server_name", None), None);
    }
}

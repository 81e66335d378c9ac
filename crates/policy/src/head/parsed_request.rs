//! The head of a request in one buffer.

use super::HeaderFields;
use http::{Uri, Version, request, uri::PathAndQuery};

/// The head of a request: the request line and the fields. Clearing it keeps its memory for the next request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedRequest {
    /// The HTTP version.
    pub version: Version,
    /// The header fields.
    pub fields: HeaderFields,
    /// The method, and the path with the query.
    line: String,
    method_len: usize,
    /// The length of the path. It is 0 in the authority form of a target.
    path_len: usize,
    /// The scheme and the authority of an absolute target; the authority of a target in the authority form.
    absolute: Option<Box<Absolute>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Absolute {
    scheme: Option<String>,
    authority: String,
}

impl Default for ParsedRequest {
    fn default() -> Self {
        Self {
            version: Version::HTTP_11,
            fields: HeaderFields::default(),
            line: String::new(),
            method_len: 0,
            path_len: 0,
            absolute: None,
        }
    }
}

impl ParsedRequest {
    /// Replaces the request line, and removes all fields.
    ///
    /// The target has the origin form (`/path?query`), the absolute form (`http://host/path`), the authority form (`host:80`) or
    /// the asterisk form (`*`).
    #[inline]
    pub fn set_request_line(&mut self, method: &str, target: &str, version: Version) {
        self.fields.clear();
        self.version = version;
        self.absolute = None;
        self.line.clear();
        self.line.push_str(method);
        self.method_len = method.len();
        if target.starts_with('/') || target == "*" {
            self.push_target(target);
        } else {
            self.set_absolute_target(target);
        }
    }

    #[cold]
    fn set_absolute_target(&mut self, target: &str) {
        let Some((scheme, rest)) = target.split_once("://") else {
            self.absolute = Some(Box::new(Absolute { scheme: None, authority: target.to_owned() }));
            return self.push_target("");
        };
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        self.absolute =
            Some(Box::new(Absolute { scheme: Some(scheme.to_owned()), authority: authority.to_owned() }));
        match path.starts_with('/') {
            true => self.push_target(path),
            // An empty path is the root.
            false => self.push_target(&format!("/{path}")),
        }
    }

    /// Appends the target to the method.
    #[inline]
    fn push_target(&mut self, target: &str) {
        self.line.push_str(target);
        self.path_len = target.bytes().position(|byte| byte == b'?').unwrap_or(target.len());
    }

    /// Replaces the path and the query.
    pub fn set_target(&mut self, path: &str, query: Option<&str>) {
        self.line.truncate(self.method_len);
        self.line.push_str(path);
        self.path_len = path.len();
        if let Some(query) = query {
            self.line.extend(["?", query]);
        }
    }

    /// Converts an absolute target to the origin form.
    pub(super) fn remove_authority(&mut self) {
        self.absolute = None;
    }

    /// The method.
    #[inline]
    pub fn method(&self) -> &str {
        self.line.get(..self.method_len).unwrap_or_default()
    }

    /// The path, without the query.
    #[inline]
    pub fn path(&self) -> &str {
        self.target().get(..self.path_len).unwrap_or_default()
    }

    /// The query after the `?`.
    #[inline]
    pub fn query(&self) -> Option<&str> {
        self.target().get(self.path_len + 1..)
    }

    /// The path and the query.
    #[inline]
    pub fn target(&self) -> &str {
        self.line.get(self.method_len..).unwrap_or_default()
    }

    /// The scheme of an absolute target.
    pub fn scheme(&self) -> Option<&str> {
        self.absolute.as_ref()?.scheme.as_deref()
    }

    /// The authority of a target in the absolute or authority form.
    #[inline]
    pub fn authority(&self) -> Option<&str> {
        self.absolute.as_ref().map(|absolute| absolute.authority.as_str())
    }

    /// The host in the target, or that of the `Host` field.
    pub fn host(&self) -> Option<&str> {
        self.authority().or_else(|| str::from_utf8(self.fields.get(b"host")?).ok())
    }

    /// The memory in bytes, used or not.
    pub fn memory(&self) -> usize {
        self.fields.memory() + self.line.capacity()
    }

    /// The target as a URI; `/` if it is not one, which the parser of HTTP/1.1 and `http::Uri` prevent.
    pub fn uri(&self) -> Uri {
        let target = self.target();
        let uri = match (self.scheme(), self.authority()) {
            (Some(scheme), Some(authority)) => format!("{scheme}://{authority}{target}").parse(),
            (_, Some(authority)) => authority.parse(),
            _ => target.parse(),
        };
        uri.unwrap_or_default()
    }
}

impl From<&request::Parts> for ParsedRequest {
    fn from(parts: &request::Parts) -> Self {
        let mut request = Self { version: parts.version, ..Self::default() };
        request.line.push_str(parts.method.as_str());
        request.method_len = request.line.len();
        match parts.uri.path_and_query().map(PathAndQuery::as_str) {
            // An empty path is the root.
            Some(query) if query.starts_with('?') => request.push_target(&format!("/{query}")),
            target => request.push_target(target.unwrap_or_default()),
        }
        request.absolute = parts.uri.authority().map(|authority| {
            let scheme = parts.uri.scheme_str().map(str::to_owned);
            Box::new(Absolute { scheme, authority: authority.as_str().to_owned() })
        });
        request.fields.extend_from_map(&parts.headers);
        request
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_forms_are_split() {
        let mut request = ParsedRequest::default();
        for (target, authority, path, query) in [
            ("/", None, "/", None),
            ("/a?b=c?d", None, "/a", Some("b=c?d")),
            ("/a?", None, "/a", Some("")),
            ("/http://b/c", None, "/http://b/c", None),
            ("*", None, "*", None),
            ("http://a:80/b?c", Some("a:80"), "/b", Some("c")),
            ("http://a", Some("a"), "/", None),
            ("http://a?b", Some("a"), "/", Some("b")),
            ("a:80", Some("a:80"), "", None),
        ] {
            request.set_request_line("GET", target, Version::HTTP_11);
            assert_eq!((request.authority(), request.path(), request.query()), (authority, path, query));
            let parts = http::Request::builder().uri(target).body(()).unwrap().into_parts().0;
            let converted = ParsedRequest::from(&parts);
            assert_eq!(
                (converted.method(), converted.path(), converted.query()),
                ("GET", path, query),
                "{target}"
            );
        }
        request.set_target("/x", Some("y"));
        assert_eq!((request.target(), request.path(), request.query()), ("/x?y", "/x", Some("y")));
    }
}

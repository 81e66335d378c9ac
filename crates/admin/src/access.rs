//! Which requests the admin API accepts.

use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use std::net::IpAddr;
use tidegate_http_server::{
    ApiError, OPERATOR_TOKEN_REQUIRED, Operator, OperatorAccess, Operators, unauthorized,
};
use tidegate_observe::ChangeAccess;
use tidegate_policy::model::OperatorRole;

/// The callers and host names that the admin API accepts.
pub(super) struct AdminAccess {
    operators: Operators,
    hosts: Vec<String>,
}

impl AdminAccess {
    pub(super) fn new(operators: Operators, hosts: Vec<String>) -> Self {
        Self { operators, hosts }
    }

    /// The callers that may change something.
    pub(super) fn change_access(&self) -> ChangeAccess {
        match &self.operators {
            Operators::Tokens(_) => ChangeAccess::Token,
            Operators::Everyone => ChangeAccess::Open,
            Operators::Disabled => ChangeAccess::Disabled,
        }
    }

    /// Rejects requests from other web sites.
    ///
    /// A foreign page can make a browser send requests here: cross-origin, which `Origin` reveals, or by DNS rebinding, which
    /// `Host` reveals.
    pub(super) fn check_request(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<(), ApiError> {
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let host = host.or_else(|| uri.authority().map(http::uri::Authority::as_str)).unwrap_or_default();
        let origin = headers.get(header::ORIGIN);
        if let Some(origin) = origin
            && !is_same_origin(origin, host)
        {
            let problem =
                "cross-origin request rejected; remove `Origin`, or use the origin of this listener";
            return Err(ApiError::new(StatusCode::FORBIDDEN, problem));
        }
        // Probes and scripts may use any host name for these two.
        let is_open = uri.path() == "/health" || (uri.path() == "/reload" && method == Method::POST);
        if (is_open && origin.is_none()) || self.is_allowed_host(host) {
            // Health, metrics and the files of the dashboard contain no data of clients or of the policy.
            return match uri.path().starts_with("/api/") {
                true => self.require(OperatorRole::Read, headers).map(drop),
                false => Ok(()),
            };
        }
        let problem = "unknown Host; use an address or `localhost`, or add the name under `admin`, as in \
                       `hosts: [gateway.internal]`";
        Err(ApiError::new(StatusCode::MISDIRECTED_REQUEST, problem))
    }

    fn is_allowed_host(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or_default(),
            None => host.rsplit_once(':').map_or(host, |(name, _)| name),
        };
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        name.parse::<IpAddr>().is_ok()
            || name == "localhost"
            || name.ends_with(".localhost")
            || self.hosts.contains(&name)
    }

    /// Returns the operator who sent a request; an error unless the operator has this role.
    ///
    /// Without tokens, everyone may read, and everyone on this machine may do everything.
    pub(super) fn require(&self, role: OperatorRole, headers: &HeaderMap) -> Result<Operator, ApiError> {
        match self.operators.check(headers) {
            OperatorAccess::Granted(operator) => operator.require(role),
            OperatorAccess::Disabled if role == OperatorRole::Read => {
                Ok(Operator { role, ..Operator::shared() })
            }
            OperatorAccess::Disabled => {
                let problem = "changes are disabled: the policy has no operator token; declare one, as in \
                               `admin: { token: $ADMIN_TOKEN }`";
                Err(ApiError::new(StatusCode::FORBIDDEN, problem))
            }
            OperatorAccess::InvalidToken | OperatorAccess::MissingToken => {
                Err(unauthorized(OPERATOR_TOKEN_REQUIRED))
            }
        }
    }

    /// Checks a request that reloads the policy. Without tokens everyone may send one.
    pub(super) fn require_reload(&self, headers: &HeaderMap) -> Result<Operator, ApiError> {
        match &self.operators {
            Operators::Disabled => self.require(OperatorRole::Read, headers),
            Operators::Everyone | Operators::Tokens(_) => self.require(OperatorRole::Operate, headers),
        }
    }
}

/// Whether an origin has this host.
fn is_same_origin(origin: &HeaderValue, host: &str) -> bool {
    let origin = origin.to_str().unwrap_or_default();
    let rest = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    rest.is_some_and(|rest| !host.is_empty() && rest.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response_status(path: &str, host: &str, origin: Option<&str>) -> u16 {
        let access = AdminAccess::new(Operators::Everyone, vec!["gateway.internal".to_owned()]);
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().unwrap());
        }
        let method = if path == "/reload" { Method::POST } else { Method::GET };
        match access.check_request(&method, &path.parse().unwrap(), &headers) {
            Ok(()) => 200,
            Err(problem) => problem.status.as_u16(),
        }
    }

    #[test]
    fn cross_origin_requests_are_rejected() {
        let page = "/api/v1/status";
        for (path, host, origin, expected) in [
            (page, "127.0.0.1:9091", None, 200),
            (page, "[::1]:9091", None, 200),
            (page, "192.0.2.7", None, 200),
            (page, "localhost:9091", None, 200),
            (page, "LOCALHOST", None, 200),
            (page, "gateway.internal:9091", None, 200),
            (page, "evil.example", None, 421),
            (page, "localhost.evil.example:9091", None, 421),
            (page, "127.0.0.1.evil.example", None, 421),
            (page, "evil.example:9091", Some("http://evil.example:9091"), 421),
            (page, "localhost:9091", Some("http://localhost:9091"), 200),
            (page, "localhost:9091", Some("http://localhost:8080"), 403),
            (page, "localhost:9091", Some("http://evil.example"), 403),
            (page, "localhost:9091", Some("null"), 403),
            ("/health", "evil.example", None, 200),
            ("/reload", "a", None, 200),
            ("/reload", "evil.example", Some("http://evil.example"), 421),
        ] {
            assert_eq!(response_status(path, host, origin), expected, "{path} {host} {origin:?}");
        }
    }

    #[test]
    fn changes_require_loopback_or_token() {
        let at = |address: [u8; 4]| AdminAccess::new(Operators::new(None, Some(address.into())), Vec::new());
        assert_eq!(at([127, 0, 0, 1]).change_access(), ChangeAccess::Open);
        assert_eq!(at([192, 0, 2, 1]).change_access(), ChangeAccess::Disabled);
        assert!(at([192, 0, 2, 1]).require(OperatorRole::Operate, &HeaderMap::new()).is_err());
        assert!(at([192, 0, 2, 1]).require_reload(&HeaderMap::new()).is_ok());
        assert!(at([192, 0, 2, 1]).require(OperatorRole::Read, &HeaderMap::new()).is_ok());
    }
}

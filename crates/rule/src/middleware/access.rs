//! Access control by a list and bans.

use super::options::MiddlewareOptions;
use crate::{
    NumberForm, RejectionResponse,
    request::{
        AddressKey, KeyValue, MissingPeerWarning, RequestHead, RequestKey, ResponseHead, TrustedProxies,
    },
};
use std::{fmt, net::IpAddr, sync::Arc, time::Duration};
use tidegate_access::{AccessControl, AccessDecision, AccessMatch, ListAction};
use tidegate_overload::CallOutcome;

/// An access list and bans in front of requests; clients that are denied too often are banned.
///
/// ```
/// use tidegate_access::{AccessControl, Bans};
/// use tidegate_rule::{request::TrustedProxies, middleware::RequestAccess};
///
/// let bans = Bans::builder().rule("10/min for 1h".parse()?).build()?;
/// let control = AccessControl::new("deny 192.0.2.0/24".parse()?, bans);
/// let access = RequestAccess::new(control)
///     .trusted_proxies(TrustedProxies::new(["10.0.0.0/8"])?)
///     .ban_on(|reply| reply.status() == 429);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Denied requests get 403; for a ban, `Retry-After` is its end. A request without a known address or key is
/// denied too: otherwise the list would silently have no effect. See [`on_unknown`](Self::on_unknown).
///
/// Bans of IPv6 addresses apply to the 64-bit network of the client. Clones share the list and the bans.
#[derive(Clone)]
pub struct RequestAccess {
    control: Arc<AccessControl>,
    client: ClientSource,
    /// The key of bans, if it differs from what the list checks.
    ban_by: Option<RequestKey>,
    unknown_action: ListAction,
    unknown_descriptor_action: ListAction,
    warning: MissingPeerWarning,
    make_response: Arc<MakeAccessResponse>,
    options: Arc<MiddlewareOptions>,
}

#[derive(Clone)]
enum ClientSource {
    Address(Arc<FindAddress>),
    Key(RequestKey),
}

type FindAddress = dyn Fn(&dyn RequestHead) -> Option<IpAddr> + Send + Sync;
type MakeAccessResponse = dyn Fn(AccessDecision) -> RejectionResponse + Send + Sync;

impl RequestAccess {
    /// Checks the peer address. Behind a proxy that is the proxy: see
    /// [`trusted_proxies`](Self::trusted_proxies).
    pub fn new(control: impl Into<Arc<AccessControl>>) -> Self {
        Self {
            control: control.into(),
            client: ClientSource::Address(Arc::new(|head| head.peer())),
            ban_by: None,
            unknown_action: ListAction::Deny,
            unknown_descriptor_action: ListAction::Deny,
            warning: MissingPeerWarning::default(),
            make_response: Arc::new(|decision| {
                RejectionResponse::access_denied(decision, NumberForm::Digits)
            }),
            options: Arc::new(MiddlewareOptions {
                classify: Arc::new(|_| CallOutcome::Ignored),
                ..MiddlewareOptions::new("access")
            }),
        }
    }

    /// Checks the address of the client according to these proxies.
    #[must_use]
    pub fn trusted_proxies(self, proxies: TrustedProxies) -> Self {
        self.address(move |head| proxies.client_address(head))
    }

    /// Checks an address that a function finds.
    #[must_use]
    pub fn address(self, find: impl Fn(&dyn RequestHead) -> Option<IpAddr> + Send + Sync + 'static) -> Self {
        Self { client: ClientSource::Address(Arc::new(find)), ..self }
    }

    /// Checks a key instead of an address: the `key` lines of a list, and bans of keys.
    #[must_use]
    pub fn key(self, key: RequestKey) -> Self {
        Self { client: ClientSource::Key(key), ..self }
    }

    /// Bans by a key, and counts denials by it, while the list checks the address: users who share an address
    /// are banned individually. A request without the key is banned by its address.
    #[must_use]
    pub fn ban_by(self, key: RequestKey) -> Self {
        Self { ban_by: Some(key), ..self }
    }

    /// Sets how a request without an address or a key is treated; denied by default.
    #[must_use]
    pub fn on_unknown(self, action: ListAction) -> Self {
        Self { unknown_action: action, ..self }
    }

    /// Sets how a descriptor without an address or a key is treated; denied by default. Descriptors
    /// that are not about a client have no address.
    #[must_use]
    pub fn on_unknown_descriptor(self, action: ListAction) -> Self {
        Self { unknown_descriptor_action: action, ..self }
    }

    /// Counts a response as a denial if it satisfies this test, such as a 429 of an inner limit; the rule of
    /// the bans decides on a ban.
    #[must_use]
    pub fn ban_on(mut self, is_denial: impl Fn(&dyn ResponseHead) -> bool + Send + Sync + 'static) -> Self {
        Arc::make_mut(&mut self.options).classify =
            Arc::new(move |response| match response.is_some_and(&is_denial) {
                true => CallOutcome::Failure,
                false => CallOutcome::Ignored,
            });
        self
    }

    /// Sets the response to denied requests. An unknown client counts as denied.
    #[must_use]
    pub fn with_response(
        self,
        response: impl Fn(AccessDecision) -> RejectionResponse + Send + Sync + 'static,
    ) -> Self {
        Self { make_response: Arc::new(response), ..self }
    }

    /// Admits a request, or returns the reason of the denial.
    pub fn check(&self, head: &dyn RequestHead) -> Result<AdmittedClient, AccessDenied> {
        let (identity, ban_key) = (self.identify(head), self.ban_key(head));
        let decision = identity.check(ban_key.as_deref(), &self.control).unwrap_or_else(|| {
            let action = match head.descriptor() {
                Some(_) => self.unknown_descriptor_action,
                None => self.unknown_action,
            };
            match action {
                ListAction::Allow => AccessDecision::Unlisted,
                ListAction::Deny => AccessDecision::Denied,
            }
        });
        match decision {
            AccessDecision::Allowed | AccessDecision::Unlisted => {
                Ok(AdmittedClient { identity, ban_key, decision, control: self.control.clone() })
            }
            AccessDecision::Denied | AccessDecision::Banned(_) => Err(AccessDenied { decision }),
        }
    }

    /// The response to a denied request.
    #[cold]
    pub fn response(&self, denied: AccessDenied) -> RejectionResponse {
        (self.make_response)(denied.decision)
    }

    /// How responses to admitted requests are classified: a failure is an inner denial.
    pub fn options(&self) -> &Arc<MiddlewareOptions> {
        &self.options
    }

    /// The key that the list checks; `None` if the request does not have it.
    pub fn list_key<'a>(&self, head: &'a dyn RequestHead) -> Option<KeyValue<'a>> {
        match &self.client {
            ClientSource::Address(find) => {
                find(head).map(|address| KeyValue::Text(address.to_string().into()))
            }
            ClientSource::Key(key) => key.find(head),
        }
    }

    fn identify(&self, head: &dyn RequestHead) -> ClientIdentity {
        let found = match &self.client {
            ClientSource::Address(find) => {
                let address = find(head);
                if address.is_none() {
                    self.warning.emit_once(head);
                }
                address.map(ClientIdentity::Address)
            }
            ClientSource::Key(key) => key.find(head).map(|key| ClientIdentity::Key(key.to_string().into())),
        };
        found.unwrap_or(ClientIdentity::Unknown)
    }

    /// The key of bans, if it differs from what the list checks.
    pub fn ban_key(&self, head: &dyn RequestHead) -> Option<Box<str>> {
        self.ban_by.as_ref()?.find(head).map(|key| key.to_string().into())
    }
}

/// A denied request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessDenied {
    /// The decision: denied or banned.
    pub decision: AccessDecision,
}

impl AccessDenied {
    /// A short reason for clients, without details.
    pub fn reason(self) -> &'static str {
        match self.decision {
            AccessDecision::Banned(_) => "temporarily banned",
            _ => "access denied",
        }
    }

    /// The time after which a retry makes sense, if known.
    pub fn retry_after(self) -> Option<Duration> {
        match self.decision {
            AccessDecision::Banned(wait) => Some(wait.to_duration()),
            _ => None,
        }
    }
}

/// The client of a request, as lists and bans identify it.
#[derive(Clone, Debug)]
enum ClientIdentity {
    Address(IpAddr),
    Key(Box<str>),
    Unknown,
}

impl ClientIdentity {
    /// The access decision; `None` for an unknown client that is not banned.
    ///
    /// Bans apply to the whole network of an IPv6 client; list entries define their own prefix.
    fn check(&self, ban_key: Option<&str>, control: &AccessControl) -> Option<AccessDecision> {
        match (self, ban_key) {
            (Self::Address(address), Some(key)) => Some(match control.list().check(*address) {
                AccessMatch::Allowed => AccessDecision::Allowed,
                AccessMatch::Denied => AccessDecision::Denied,
                AccessMatch::Unlisted => {
                    control.bans().check(key).map_or(AccessDecision::Unlisted, AccessDecision::Banned)
                }
            }),
            (Self::Address(address), None) => Some(match control.check(*address) {
                AccessDecision::Unlisted => {
                    let banned = control.bans().check(&AddressKey::new(*address).network_address());
                    banned.map_or(AccessDecision::Unlisted, AccessDecision::Banned)
                }
                listed => listed,
            }),
            (Self::Key(key), _) => Some(control.check_key(key)),
            (Self::Unknown, Some(key)) => control.bans().check(key).map(AccessDecision::Banned),
            (Self::Unknown, None) => None,
        }
    }
}

/// An admitted client.
#[derive(Clone)]
pub struct AdmittedClient {
    identity: ClientIdentity,
    ban_key: Option<Box<str>>,
    decision: AccessDecision,
    control: Arc<AccessControl>,
}

impl AdmittedClient {
    /// Whether it is allowed by the list, or unlisted.
    pub fn decision(&self) -> AccessDecision {
        self.decision
    }

    /// Records the classified response: a failure is an inner denial, and the rule of the bans decides on a
    /// ban.
    pub fn record_response(self, report: CallOutcome) {
        if report == CallOutcome::Failure {
            self.record_denial();
        }
    }

    fn record_denial(self) {
        let Self { identity, ban_key, control, decision } = self;
        match (identity, ban_key) {
            (ClientIdentity::Address(_) | ClientIdentity::Unknown, Some(key)) => {
                if decision == AccessDecision::Unlisted {
                    control.bans().record_denial(&*key);
                }
            }
            (ClientIdentity::Address(address), None) => {
                if control.check(address) == AccessDecision::Unlisted {
                    control.bans().record_denial(&AddressKey::new(address).network_address());
                }
            }
            (ClientIdentity::Key(key), _) => _ = control.record_key_denial(&key),
            (ClientIdentity::Unknown, None) => {}
        }
    }
}

impl From<AccessControl> for RequestAccess {
    fn from(control: AccessControl) -> Self {
        Self::new(control)
    }
}

impl From<Arc<AccessControl>> for RequestAccess {
    fn from(control: Arc<AccessControl>) -> Self {
        Self::new(control)
    }
}

impl fmt::Debug for RequestAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RequestAccess").field(&self.control).finish()
    }
}

impl fmt::Debug for AdmittedClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AdmittedClient").field(&self.identity).finish()
    }
}

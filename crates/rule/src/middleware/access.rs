//! Whom a list and bans keep out.

use super::options::MiddlewareOptions;
use crate::{
    RejectionResponse,
    request::{AddressKey, KeyValue, PeerWarning, RequestHead, RequestKey, ResponseHead, TrustedProxies},
};
use std::{fmt, net::IpAddr, sync::Arc, time::Duration};
use tidegate_access::{AccessControl, AccessDecision, AccessMatch, ListAction};
use tidegate_core::header::ceil_seconds;
use tidegate_overload::CallOutcome;

/// A list and bans in front of requests, and bans for whoever is denied too often further inside.
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
/// Whoever is kept out is answered with 403, and a ban says in `Retry-After` when it ends. A request whose sender is not known
/// is kept out too: a list that nobody is held against would go unnoticed. See [`on_unknown`](Self::on_unknown).
///
/// Bans of addresses of IPv6 hold for the network of 64 bits that a client has to itself. Clones share the list and the bans.
#[derive(Clone)]
pub struct RequestAccess {
    control: Arc<AccessControl>,
    client: ClientSource,
    /// Whom bans hold for, where that is not who the list is asked about.
    ban_by: Option<RequestKey>,
    unknown_action: ListAction,
    warning: PeerWarning,
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
    /// Asks for the address at the other end of the connection. Behind a proxy that is the proxy: see
    /// [`behind`](Self::trusted_proxies).
    pub fn new(control: impl Into<Arc<AccessControl>>) -> Self {
        Self {
            control: control.into(),
            client: ClientSource::Address(Arc::new(|head| head.peer())),
            ban_by: None,
            unknown_action: ListAction::Deny,
            warning: PeerWarning::default(),
            make_response: Arc::new(forbidden_response),
            options: Arc::new(MiddlewareOptions {
                classify: Arc::new(|_| CallOutcome::Ignored),
                ..MiddlewareOptions::new("access")
            }),
        }
    }

    /// Asks for the address of the client, as these proxies tell it.
    #[must_use]
    pub fn trusted_proxies(self, proxies: TrustedProxies) -> Self {
        self.address(move |head| proxies.client_address(head))
    }

    /// Asks for an address that a function finds.
    #[must_use]
    pub fn address(self, find: impl Fn(&dyn RequestHead) -> Option<IpAddr> + Send + Sync + 'static) -> Self {
        Self { client: ClientSource::Address(Arc::new(find)), ..self }
    }

    /// Asks for a key instead of an address: the `key` lines of a list, and bans of keys.
    #[must_use]
    pub fn key(self, key: RequestKey) -> Self {
        Self { client: ClientSource::Key(key), ..self }
    }

    /// Has bans hold for a key, and counts denials by it, while the list is asked about the address: users who share an
    /// address are banned one by one. A request without the key is banned by its address.
    #[must_use]
    pub fn ban_by(self, key: RequestKey) -> Self {
        Self { ban_by: Some(key), ..self }
    }

    /// What becomes of a request without an address or a key; it is kept out unless told otherwise.
    #[must_use]
    pub fn on_unknown(self, stance: ListAction) -> Self {
        Self { unknown_action: stance, ..self }
    }

    /// Counts an answer as a denial where this says so, and has the bans' own rule decide on a ban: a limit further inside
    /// that answers with 429, say.
    #[must_use]
    pub fn ban_on(mut self, is_denial: impl Fn(&dyn ResponseHead) -> bool + Send + Sync + 'static) -> Self {
        Arc::make_mut(&mut self.options).classify =
            Arc::new(move |reply| match reply.is_some_and(&is_denial) {
                true => CallOutcome::Failure,
                false => CallOutcome::Ignored,
            });
        self
    }

    /// What to answer to whoever is kept out. Who is unknown stands as denied.
    #[must_use]
    pub fn with_response(
        self,
        answer: impl Fn(AccessDecision) -> RejectionResponse + Send + Sync + 'static,
    ) -> Self {
        Self { make_response: Arc::new(answer), ..self }
    }

    /// Lets a request in, or says why not.
    pub fn check(&self, head: &dyn RequestHead) -> Result<AdmittedClient, Box<AccessDenied>> {
        let (visitor, ban_key) = (self.identify(head), self.ban_key(head));
        let standing =
            visitor.check(ban_key.as_deref(), &self.control).unwrap_or(match self.unknown_action {
                ListAction::Allow => AccessDecision::Unlisted,
                ListAction::Deny => AccessDecision::Denied,
            });
        match standing {
            AccessDecision::Allowed | AccessDecision::Unlisted => Ok(AdmittedClient {
                identity: visitor,
                ban_key,
                decision: standing,
                control: self.control.clone(),
            }),
            AccessDecision::Denied | AccessDecision::Banned(_) => Err(Box::new(self.deny(standing))),
        }
    }

    /// How it judges the answers to those whom it lets in: a failure is a denial further inside.
    pub fn options(&self) -> &Arc<MiddlewareOptions> {
        &self.options
    }

    /// Whom it judges by a request; `None` if that does not tell.
    pub fn client_key<'a>(&self, head: &'a dyn RequestHead) -> Option<KeyValue<'a>> {
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
                    self.warning.check(head);
                }
                address.map(ClientIdentity::Address)
            }
            ClientSource::Key(key) => key.find(head).map(|key| ClientIdentity::Key(key.to_string().into())),
        };
        found.unwrap_or(ClientIdentity::Unknown)
    }

    /// Whom bans hold for, where that is not who the list is asked about.
    pub fn ban_key(&self, head: &dyn RequestHead) -> Option<Box<str>> {
        self.ban_by.as_ref()?.find(head).map(|key| key.to_string().into())
    }

    #[cold]
    fn deny(&self, standing: AccessDecision) -> AccessDenied {
        let retry_after = match standing {
            AccessDecision::Banned(wait) => Some(wait.to_duration()),
            _ => None,
        };
        AccessDenied {
            response: (self.make_response)(standing),
            reason: denial_reason(standing),
            retry_after,
        }
    }
}

/// What is told to whoever is not let in.
#[derive(Debug)]
pub struct AccessDenied {
    /// The answer.
    pub response: RejectionResponse,
    /// The reason in a few words, without telling more than that.
    pub reason: &'static str,
    /// When it is worth asking again, if that is known.
    pub retry_after: Option<Duration>,
}

/// 403, and when a ban ends.
fn forbidden_response(standing: AccessDecision) -> RejectionResponse {
    let answer = RejectionResponse::forbidden(denial_reason(standing));
    match standing {
        AccessDecision::Banned(wait) => answer.header("retry-after", ceil_seconds(wait).to_string()),
        _ => answer,
    }
}

/// What to say of it, without telling more than that.
fn denial_reason(standing: AccessDecision) -> &'static str {
    match standing {
        AccessDecision::Banned(_) => "banned for a time",
        _ => "not let in",
    }
}

/// Who a request is from, as lists and bans know it.
#[derive(Clone, Debug)]
enum ClientIdentity {
    Address(IpAddr),
    Key(Box<str>),
    Unknown,
}

impl ClientIdentity {
    /// Where it stands; `None` for one of whom nothing is known.
    ///
    /// A client of IPv6 has a whole network to itself, so bans hold for that; lists say for themselves how far they reach.
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
            (Self::Unknown, _) => None,
        }
    }
}

/// A visitor who was let in.
#[derive(Clone)]
pub struct AdmittedClient {
    identity: ClientIdentity,
    ban_key: Option<Box<str>>,
    decision: AccessDecision,
    control: Arc<AccessControl>,
}

impl AdmittedClient {
    /// Whether it is on the list, or only not kept out.
    pub fn decision(&self) -> AccessDecision {
        self.decision
    }

    /// It was answered, and that counts as this: a failure is a denial further inside, and the bans' own rule decides whether
    /// it is banned for that.
    pub fn record_response(self, report: CallOutcome) {
        if report == CallOutcome::Failure {
            self.record_denial();
        }
    }

    fn record_denial(self) {
        let Self { identity: visitor, ban_key, control, decision: standing } = self;
        match (visitor, ban_key) {
            (ClientIdentity::Address(_), Some(key)) => {
                if standing == AccessDecision::Unlisted {
                    control.bans().record_denial(&*key);
                }
            }
            (ClientIdentity::Address(address), None) => {
                if control.check(address) == AccessDecision::Unlisted {
                    control.bans().record_denial(&AddressKey::new(address).network_address());
                }
            }
            (ClientIdentity::Key(key), _) => _ = control.record_key_denial(&key),
            (ClientIdentity::Unknown, _) => {}
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
        f.debug_tuple("Guest").field(&self.identity).finish()
    }
}

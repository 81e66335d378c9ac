//! Keys of requests: which part of a request identifies its bucket.
//!
//! ```
//! use tidegate_rule::request::{TrustedProxies, key};
//!
//! let proxies = TrustedProxies::new(["10.0.0.0/8"])?;
//! let by_tenant = key::header("x-tenant")?.and(key::user());
//! let by_token_or_address = key::header("authorization")?.or(key::client(proxies).ipv6_prefix(56));
//! # Ok::<(), tidegate_core::SettingError>(())
//! ```

use super::{
    AddressKey, CertificateName, KeyValue, MissingPeerWarning, RequestHead, TrustedProxies, cookie, query,
};
use crate::{RequestContext, body::JsonPointer};
use std::{borrow::Cow, fmt, net::IpAddr, sync::Arc};
use tidegate_core::SettingError;

/// The key of a rule: finds the value that identifies a bucket in a request, if any.
///
/// An empty value counts as missing. A value longer than [`MAX_KEY_BYTES`] is replaced by its hash: keys are
/// stored and sent to stores, and clients must not control their size.
#[derive(Clone)]
pub struct RequestKey {
    source: KeySource,
}

/// How requests without the key are treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingKey {
    /// Counts them by the peer address; if that is unknown, in one bucket.
    #[default]
    Ip,
    /// Counts them in one bucket, so that omitting the key gains nothing.
    Shared,
    /// Does not apply the rule to them.
    Skip,
    /// Rejects them with 400.
    Reject,
}

/// How requests with several values of a key are treated: repeated headers, cookies, parameters or entries of a descriptor.
///
/// Servers disagree on which value counts. A client that makes a rule read one value and the server another
/// could impersonate others, and a key of all values would change with each added value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DuplicateKeys {
    /// Rejects them with 400.
    #[default]
    Reject,
    /// The first value counts, as for the server.
    First,
    /// The last value counts, as for the server.
    Last,
}

/// The maximum length of a key that is not hashed: enough for a signed token.
pub const MAX_KEY_BYTES: usize = 4_096;

type FindKey = dyn for<'a> Fn(&'a dyn RequestHead) -> Option<KeyValue<'a>> + Send + Sync;
type FindUser = dyn for<'a> Fn(&'a dyn RequestHead) -> Option<Cow<'a, str>> + Send + Sync;

#[derive(Clone)]
enum KeySource {
    All,
    Peer { prefix_len: u8, warning: MissingPeerWarning },
    Client { proxies: TrustedProxies, prefix_len: u8, warning: MissingPeerWarning },
    Header(Arc<str>, DuplicateKeys),
    Cookie(Arc<str>, DuplicateKeys),
    Query(Arc<str>, DuplicateKeys),
    Descriptor(Arc<str>, DuplicateKeys),
    Body(Arc<JsonPointer>),
    ClientCertificate(CertificateName),
    Host,
    Method,
    Path,
    Route,
    User,
    UserFn(Arc<FindUser>),
    Custom(Arc<FindKey>),
    Joined(Vec<RequestKey>),
    FirstOf(Vec<RequestKey>),
}

/// One bucket for all requests.
pub fn all() -> RequestKey {
    RequestKey { source: KeySource::All }
}

/// The peer address of the connection. Behind a proxy that is the proxy; see [`client`].
///
/// The server must record it: axum does with `into_make_service_with_connect_info::<SocketAddr>()`. Otherwise
/// all requests are without a key, [`MissingKey`] applies to them, and an error is logged once.
pub fn peer() -> RequestKey {
    RequestKey {
        source: KeySource::Peer {
            prefix_len: AddressKey::IPV6_PREFIX_LEN,
            warning: MissingPeerWarning::default(),
        },
    }
}

/// The client address according to these proxies. The server must record the peer address, as for [`peer`].
pub fn client(proxies: TrustedProxies) -> RequestKey {
    RequestKey {
        source: KeySource::Client {
            proxies,
            prefix_len: AddressKey::IPV6_PREFIX_LEN,
            warning: MissingPeerWarning::default(),
        },
    }
}

/// The value of a header, without surrounding white space. Clients choose it, so it limits only if something
/// else verifies it. Requests with several values are rejected by default: [`RequestKey::duplicates`].
pub fn header(name: &str) -> Result<RequestKey, SettingError> {
    Ok(RequestKey {
        source: KeySource::Header(super::parse_name(name, "header")?.into(), DuplicateKeys::default()),
    })
}

/// The value of a cookie, without quotes. Clients choose it.
pub fn cookie(name: &str) -> Result<RequestKey, SettingError> {
    super::parse_name(name, "cookie")?;
    Ok(RequestKey { source: KeySource::Cookie(name.into(), DuplicateKeys::default()) })
}

/// The value of a query parameter. Clients choose it.
pub fn query(name: impl Into<Arc<str>>) -> RequestKey {
    RequestKey { source: KeySource::Query(name.into(), DuplicateKeys::default()) }
}

/// The value of an entry of a descriptor; HTTP requests have none. See [`DescriptorHead`](super::DescriptorHead).
pub fn descriptor(name: impl Into<Arc<str>>) -> RequestKey {
    RequestKey { source: KeySource::Descriptor(name.into(), DuplicateKeys::default()) }
}

/// A value in the body: a string, a number or a boolean. Requests whose body was not read, or is not JSON, have none. See
/// [`RequestHead::body`].
pub fn body(pointer: JsonPointer) -> RequestKey {
    RequestKey { source: KeySource::Body(Arc::new(pointer)) }
}

/// A name in the verified certificate of the client of a TLS connection. Requests of other connections have none.
pub fn client_certificate(name: CertificateName) -> RequestKey {
    RequestKey { source: KeySource::ClientCertificate(name) }
}

/// The requested host, in lower case, without a port.
pub fn host() -> RequestKey {
    RequestKey { source: KeySource::Host }
}

/// `GET`, `POST` and so on.
pub fn method() -> RequestKey {
    RequestKey { source: KeySource::Method }
}

/// The raw path. `/users/7` and `/users/%37` are different keys, and clients can make up paths: with a
/// router, [`route`] is the better key.
pub fn path() -> RequestKey {
    RequestKey { source: KeySource::Path }
}

/// The matched route, such as `/users/{id}`, or else the path.
pub fn route() -> RequestKey {
    RequestKey { source: KeySource::Route }
}

/// The user name from the [`RequestContext`] of the request.
pub fn user() -> RequestKey {
    RequestKey { source: KeySource::User }
}

/// The user name, found by a function: in decoded claims, for example.
pub fn user_from(
    find: impl for<'a> Fn(&'a dyn RequestHead) -> Option<Cow<'a, str>> + Send + Sync + 'static,
) -> RequestKey {
    RequestKey { source: KeySource::UserFn(Arc::new(find)) }
}

/// A key found by a function.
pub fn custom(
    find: impl for<'a> Fn(&'a dyn RequestHead) -> Option<KeyValue<'a>> + Send + Sync + 'static,
) -> RequestKey {
    RequestKey { source: KeySource::Custom(Arc::new(find)) }
}

impl RequestKey {
    /// A key found by a function; the same as [`custom`].
    pub fn custom(
        find: impl for<'a> Fn(&'a dyn RequestHead) -> Option<KeyValue<'a>> + Send + Sync + 'static,
    ) -> Self {
        custom(find)
    }

    /// The key of this request; `None` if it has none.
    #[inline]
    pub fn find<'a>(&self, head: &'a dyn RequestHead) -> Option<KeyValue<'a>> {
        match &self.source {
            KeySource::Peer { prefix_len, warning } => Some(KeyValue::Address(AddressKey::with_prefix(
                address_or_warn(head.peer(), head, warning)?,
                *prefix_len,
            ))),
            source => source
                .find(head)
                .map(|value| if value.len() <= MAX_KEY_BYTES { value } else { value.to_hashed() }),
        }
    }

    /// The prefix bits of an IPv6 address, if this is the peer address and nothing else.
    #[inline]
    pub(crate) fn peer_prefix_len(&self) -> Option<u8> {
        match self.source {
            KeySource::Peer { prefix_len, .. } => Some(prefix_len),
            _ => None,
        }
    }

    /// Combines both keys, for requests that have both: different pairs are different keys.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let mut keys = match self.source {
            KeySource::Joined(keys) => keys,
            source => vec![Self { source }],
        };
        keys.push(other);
        Self { source: KeySource::Joined(keys) }
    }

    /// Uses the other key for requests without this one. No value of this key can select a bucket of the
    /// other one.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        let choices = |key: Self| match key.source {
            KeySource::FirstOf(keys) => keys,
            source => vec![Self { source }],
        };
        let mut keys = choices(self);
        keys.extend(choices(other));
        Self { source: KeySource::FirstOf(keys) }
    }

    /// Sets how requests with several values of a header, cookie, parameter or entry of this key are treated. Gates
    /// reject them by default.
    #[must_use]
    pub fn duplicates(self, duplicates: DuplicateKeys) -> Self {
        let all = |keys: Vec<Self>| keys.into_iter().map(|key| key.duplicates(duplicates)).collect();
        let source = match self.source {
            KeySource::Header(name, _) => KeySource::Header(name, duplicates),
            KeySource::Cookie(name, _) => KeySource::Cookie(name, duplicates),
            KeySource::Query(name, _) => KeySource::Query(name, duplicates),
            KeySource::Descriptor(name, _) => KeySource::Descriptor(name, duplicates),
            KeySource::Joined(keys) => KeySource::Joined(all(keys)),
            KeySource::FirstOf(keys) => KeySource::FirstOf(all(keys)),
            other => other,
        };
        Self { source }
    }

    /// Whether a request has several values of this key and must be rejected.
    pub fn has_duplicates(&self, head: &dyn RequestHead) -> bool {
        let mut values = 0_usize;
        match &self.source {
            KeySource::Header(name, DuplicateKeys::Reject) => {
                head.for_each_header(name, &mut |_| values = values.saturating_add(1));
            }
            KeySource::Cookie(name, DuplicateKeys::Reject) => {
                cookie::for_each_cookie(head, name, &mut |_| values = values.saturating_add(1));
            }
            KeySource::Query(name, DuplicateKeys::Reject) => {
                query::for_each_query(head, name, &mut |_| values = values.saturating_add(1));
            }
            KeySource::Descriptor(name, DuplicateKeys::Reject) => {
                if let Some(descriptor) = head.descriptor() {
                    descriptor.for_each_value(name, &mut |_| values = values.saturating_add(1));
                }
            }
            KeySource::Joined(keys) | KeySource::FirstOf(keys) => {
                return keys.iter().any(|key| key.has_duplicates(head));
            }
            _ => {}
        }
        values > 1
    }

    /// Sets the prefix length of an IPv6 client in the addresses of this key; 64 by default, at most 128.
    /// IPv4 addresses are used in full.
    #[must_use]
    pub fn ipv6_prefix(self, prefix_len: u8) -> Self {
        let all = |keys: Vec<Self>| keys.into_iter().map(|key| key.ipv6_prefix(prefix_len)).collect();
        let source = match self.source {
            KeySource::Peer { warning, .. } => KeySource::Peer { prefix_len, warning },
            KeySource::Client { proxies, warning, .. } => KeySource::Client { proxies, prefix_len, warning },
            KeySource::Joined(keys) => KeySource::Joined(all(keys)),
            KeySource::FirstOf(keys) => KeySource::FirstOf(all(keys)),
            other => other,
        };
        Self { source }
    }
}

impl KeySource {
    fn find<'a>(&self, head: &'a dyn RequestHead) -> Option<KeyValue<'a>> {
        match self {
            Self::All => Some(KeyValue::All),
            Self::Peer { prefix_len, warning } => Some(
                AddressKey::with_prefix(address_or_warn(head.peer(), head, warning)?, *prefix_len).into(),
            ),
            Self::Client { proxies, prefix_len, warning } => Some(
                AddressKey::with_prefix(
                    address_or_warn(proxies.client_address(head), head, warning)?,
                    *prefix_len,
                )
                .into(),
            ),
            Self::Header(name, duplicates) => duplicates
                .select(|each| head.for_each_header(name, each))
                .map(<[u8]>::trim_ascii)
                .filter(|it| !it.is_empty())
                .map(KeyValue::from),
            Self::Cookie(name, duplicates) => duplicates
                .select(|each| cookie::for_each_cookie(head, name, each))
                .filter(|it| !it.is_empty())
                .map(KeyValue::from),
            Self::Query(name, duplicates) => duplicates
                .select(|each| query::for_each_query(head, name, each))
                .filter(|it| !it.is_empty())
                .map(KeyValue::from_bytes),
            Self::Descriptor(name, duplicates) => {
                let descriptor = head.descriptor()?;
                duplicates
                    .select(|each| descriptor.for_each_value(name, each))
                    .map(<[u8]>::trim_ascii)
                    .filter(|it| !it.is_empty())
                    .map(KeyValue::from)
            }
            Self::Body(pointer) => {
                Some(head.body()?.get(pointer)?.to_text()).filter(|text| !text.is_empty()).map(KeyValue::Text)
            }
            Self::ClientCertificate(name) => head.client_certificate()?.name(*name).map(KeyValue::from),
            Self::Host => head.host().and_then(normalize_host).map(KeyValue::Text),
            Self::Method | Self::Path | Self::Route if head.descriptor().is_some() => None,
            Self::Method => Some(head.method().into()),
            Self::Path => Some(head.path().into()),
            Self::Route => Some(head.route().unwrap_or_else(|| head.path()).into()),
            Self::User => find_user(head).map(KeyValue::Text),
            Self::UserFn(find) => find(head).filter(|user| !user.is_empty()).map(KeyValue::Text),
            Self::Custom(find) => find(head),
            Self::Joined(keys) => {
                keys.iter().map(|key| key.find(head)).collect::<Option<_>>().map(KeyValue::Joined)
            }
            Self::FirstOf(keys) => {
                (0..=u8::MAX).zip(keys).find_map(|(index, key)| match (index, key.find(head)?) {
                    (0, value) => Some(value),
                    (index, value) => Some(KeyValue::Fallback(index, Box::new(value))),
                })
            }
        }
    }
}

/// Returns the address; warns if it is missing.
#[inline]
fn address_or_warn(
    address: Option<IpAddr>,
    head: &dyn RequestHead,
    warning: &MissingPeerWarning,
) -> Option<IpAddr> {
    if address.is_none() {
        warning.emit_once(head);
    }
    address
}

impl DuplicateKeys {
    /// Selects the value that counts.
    fn select<T>(self, values: impl FnOnce(&mut dyn FnMut(T))) -> Option<T> {
        let mut selected = None;
        values(&mut |value| match self {
            Self::Last => selected = Some(value),
            Self::Reject | Self::First => selected = selected.take().or(Some(value)),
        });
        selected
    }
}

/// From the context of the request, or else from that of the task.
fn find_user(head: &dyn RequestHead) -> Option<Cow<'_, str>> {
    let user = match head.context().and_then(RequestContext::user) {
        Some(user) => Cow::Borrowed(user),
        None => Cow::Owned(RequestContext::with_current(|context| context.user().map(str::to_owned))??),
    };
    Some(user).filter(|user| !user.is_empty())
}

/// The canonical name of a host: clients may write `Example.com`, `example.com.` and `example.com:80`.
pub fn normalize_host(host: &str) -> Option<Cow<'_, str>> {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    match name {
        "" => None,
        name if name.bytes().any(|byte| byte.is_ascii_uppercase()) => Some(name.to_ascii_lowercase().into()),
        name => Some(name.into()),
    }
}

impl fmt::Debug for RequestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            KeySource::All => f.write_str("all"),
            KeySource::Peer { prefix_len, .. } => write!(f, "peer/{prefix_len}"),
            KeySource::Client { proxies, prefix_len, .. } => {
                write!(f, "client/{prefix_len} behind {proxies:?}")
            }
            KeySource::Header(name, _) => write!(f, "header {name}"),
            KeySource::Cookie(name, _) => write!(f, "cookie {name}"),
            KeySource::Query(name, _) => write!(f, "query {name}"),
            KeySource::Descriptor(name, _) => write!(f, "descriptor {name}"),
            KeySource::Body(pointer) => write!(f, "body {pointer}"),
            KeySource::ClientCertificate(name) => write!(f, "client certificate {name:?}"),
            KeySource::Host => f.write_str("host"),
            KeySource::Method => f.write_str("method"),
            KeySource::Path => f.write_str("path"),
            KeySource::Route => f.write_str("route"),
            KeySource::User | KeySource::UserFn(_) => f.write_str("user"),
            KeySource::Custom(_) => f.write_str("custom"),
            KeySource::Joined(keys) => f.debug_set().entries(keys).finish(),
            KeySource::FirstOf(keys) => f.debug_list().entries(keys).finish(),
        }
    }
}

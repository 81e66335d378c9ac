//! For whom: what of a request names a bucket.
//!
//! ```
//! use tidegate_rule::request::{TrustedProxies, key};
//!
//! let proxies = TrustedProxies::new(["10.0.0.0/8"])?;
//! let by_tenant = key::header("x-tenant")?.and(key::user());
//! let by_token_or_address = key::header("authorization")?.or(key::client(proxies).ipv6_prefix(56));
//! # Ok::<(), tidegate_core::SettingError>(())
//! ```

use super::{Address, Head, KeyValue, PeerWarning, TrustedProxies, cookie, query};
use crate::Facts;
use std::{borrow::Cow, fmt, net::IpAddr, sync::Arc};
use tidegate_core::SettingError;

/// For whom a rule counts: finds what names a bucket in a request, or nothing.
///
/// What is empty counts as not there. What is longer than [`LONGEST`] bytes counts by a hash: keys are remembered and sent to
/// stores, and a client must not decide how much of that there is.
#[derive(Clone)]
pub struct Key {
    source: Source,
}

/// What happens to requests that have no such key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Missing {
    /// They are counted by the address at the other end of the connection; where that is not known, in one bucket.
    #[default]
    Address,
    /// They share one bucket, so that leaving the key out gains nothing.
    Share,
    /// The rule does not apply to them.
    Skip,
    /// They are answered with 400.
    Refuse,
}

/// What happens to requests that have several values where a key takes one: headers, cookies or parameters of one name.
///
/// Servers do not agree which of them counts. Whoever could have a rule see one value and the server another would pass for
/// somebody else, and a key of all values together would be a new one for each value that is added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Duplicates {
    /// They are answered with 400.
    #[default]
    Refuse,
    /// The first value counts, as it does for the server.
    First,
    /// The last value counts, as it does for the server.
    Last,
}

/// The most bytes of a key that is not hashed: enough for a signed token.
pub const LONGEST: usize = 4_096;

type Find = dyn for<'a> Fn(&'a dyn Head) -> Option<KeyValue<'a>> + Send + Sync;
type FindUser = dyn for<'a> Fn(&'a dyn Head) -> Option<Cow<'a, str>> + Send + Sync;

#[derive(Clone)]
enum Source {
    All,
    Peer { bits: u8, warning: PeerWarning },
    Client { proxies: TrustedProxies, bits: u8, warning: PeerWarning },
    Header(Arc<str>, Duplicates),
    Cookie(Arc<str>, Duplicates),
    Query(Arc<str>, Duplicates),
    Host,
    Method,
    Path,
    Route,
    User,
    UserBy(Arc<FindUser>),
    By(Arc<Find>),
    Every(Vec<Key>),
    First(Vec<Key>),
}

/// One bucket for all requests.
pub fn all() -> Key {
    Key { source: Source::All }
}

/// The address at the other end of the connection. Behind a proxy that is the proxy; see [`client`].
///
/// The server must record it: axum does with `into_make_service_with_connect_info::<SocketAddr>()`. Where it is not
/// recorded, all requests are without a key, [`Missing`] applies to them, and an error is logged once.
pub fn peer() -> Key {
    Key { source: Source::Peer { bits: Address::PREFIX, warning: PeerWarning::default() } }
}

/// The address of the client, as these proxies tell it. The server must record the address of its peer, as for [`peer`].
pub fn client(proxies: TrustedProxies) -> Key {
    Key { source: Source::Client { proxies, bits: Address::PREFIX, warning: PeerWarning::default() } }
}

/// The value of a header, without white space around it. Whoever sends the request chooses it, so it limits only where
/// something else checks it. Requests with several are refused by default: [`Key::duplicates`].
pub fn header(name: &str) -> Result<Key, SettingError> {
    Ok(Key { source: Source::Header(super::name(name, "header")?.into(), Duplicates::default()) })
}

/// A cookie, without quotes if it has any. Whoever sends the request chooses it.
pub fn cookie(name: &str) -> Result<Key, SettingError> {
    super::name(name, "cookie")?;
    Ok(Key { source: Source::Cookie(name.into(), Duplicates::default()) })
}

/// A parameter behind the `?` of the address. Whoever sends the request chooses it.
pub fn query(name: impl Into<Arc<str>>) -> Key {
    Key { source: Source::Query(name.into(), Duplicates::default()) }
}

/// The host that was asked for, in lower case, without a port.
pub fn host() -> Key {
    Key { source: Source::Host }
}

/// `GET`, `POST` and so on.
pub fn method() -> Key {
    Key { source: Source::Method }
}

/// The path as it came. `/users/7` and `/users/%37` are different keys, and every path that a client makes up is one:
/// where there is a router, [`route`] is the better key.
pub fn path() -> Key {
    Key { source: Source::Path }
}

/// The route that matched, such as `/users/{id}`, or else the path.
pub fn route() -> Key {
    Key { source: Source::Route }
}

/// The name by which the application knows the client, from the [`Facts`] of the request.
pub fn user() -> Key {
    Key { source: Source::User }
}

/// The name by which the application knows the client, found by a function of yours: in claims that are already decoded,
/// say.
pub fn user_by(find: impl for<'a> Fn(&'a dyn Head) -> Option<Cow<'a, str>> + Send + Sync + 'static) -> Key {
    Key { source: Source::UserBy(Arc::new(find)) }
}

/// Whatever a function of yours finds.
pub fn by(find: impl for<'a> Fn(&'a dyn Head) -> Option<KeyValue<'a>> + Send + Sync + 'static) -> Key {
    Key { source: Source::By(Arc::new(find)) }
}

impl Key {
    /// A key of your own; the same as [`by`].
    pub fn by(find: impl for<'a> Fn(&'a dyn Head) -> Option<KeyValue<'a>> + Send + Sync + 'static) -> Self {
        by(find)
    }

    /// What this request has; `None` if it has no such thing.
    #[inline]
    pub fn find<'a>(&self, head: &'a dyn Head) -> Option<KeyValue<'a>> {
        match &self.source {
            Source::Peer { bits, warning } => {
                Some(KeyValue::Address(Address::of_prefix(known(head.peer(), head, warning)?, *bits)))
            }
            source => {
                source.find(head).map(|value| if value.len() <= LONGEST { value } else { value.hashed() })
            }
        }
    }

    /// The bits of an address of IPv6 that count, if this is the address of the peer and nothing else.
    #[inline]
    pub(crate) fn peer_bits(&self) -> Option<u8> {
        match self.source {
            Source::Peer { bits, .. } => Some(bits),
            _ => None,
        }
    }

    /// Both, for requests that have both: different pairs are different keys.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let mut keys = match self.source {
            Source::Every(keys) => keys,
            source => vec![Self { source }],
        };
        keys.push(other);
        Self { source: Source::Every(keys) }
    }

    /// This, or the other one for requests that do not have this. Nobody gets at a bucket of the other one by what they
    /// choose for this.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        let choices = |key: Self| match key.source {
            Source::First(keys) => keys,
            source => vec![Self { source }],
        };
        let mut keys = choices(self);
        keys.extend(choices(other));
        Self { source: Source::First(keys) }
    }

    /// What happens to requests with several values of a header, a cookie or a parameter that this key takes one of. Gates
    /// refuse them by default.
    #[must_use]
    pub fn duplicates(self, duplicates: Duplicates) -> Self {
        let all = |keys: Vec<Self>| keys.into_iter().map(|key| key.duplicates(duplicates)).collect();
        let source = match self.source {
            Source::Header(name, _) => Source::Header(name, duplicates),
            Source::Cookie(name, _) => Source::Cookie(name, duplicates),
            Source::Query(name, _) => Source::Query(name, duplicates),
            Source::Every(keys) => Source::Every(all(keys)),
            Source::First(keys) => Source::First(all(keys)),
            other => other,
        };
        Self { source }
    }

    /// Whether a request has several values where this key takes one, and is to be refused for it.
    pub fn has_duplicates(&self, head: &dyn Head) -> bool {
        let mut values = 0_usize;
        match &self.source {
            Source::Header(name, Duplicates::Refuse) => {
                head.each_header(name, &mut |_| values = values.saturating_add(1));
            }
            Source::Cookie(name, Duplicates::Refuse) => {
                cookie::each_cookie(head, name, &mut |_| values = values.saturating_add(1));
            }
            Source::Query(name, Duplicates::Refuse) => {
                query::each_query(head, name, &mut |_| values = values.saturating_add(1));
            }
            Source::Every(keys) | Source::First(keys) => {
                return keys.iter().any(|key| key.has_duplicates(head));
            }
            _ => {}
        }
        values > 1
    }

    /// How many bits of an address of IPv6 are one client, where this key is an address or has one in it; 64 unless told
    /// otherwise, and 128 at most. Addresses of IPv4 stay whole.
    #[must_use]
    pub fn ipv6_prefix(self, bits: u8) -> Self {
        let all = |keys: Vec<Self>| keys.into_iter().map(|key| key.ipv6_prefix(bits)).collect();
        let source = match self.source {
            Source::Peer { warning, .. } => Source::Peer { bits, warning },
            Source::Client { proxies, warning, .. } => Source::Client { proxies, bits, warning },
            Source::Every(keys) => Source::Every(all(keys)),
            Source::First(keys) => Source::First(all(keys)),
            other => other,
        };
        Self { source }
    }
}

impl Source {
    fn find<'a>(&self, head: &'a dyn Head) -> Option<KeyValue<'a>> {
        match self {
            Self::All => Some(KeyValue::All),
            Self::Peer { bits, warning } => {
                Some(Address::of_prefix(known(head.peer(), head, warning)?, *bits).into())
            }
            Self::Client { proxies, bits, warning } => {
                Some(Address::of_prefix(known(proxies.client(head), head, warning)?, *bits).into())
            }
            Self::Header(name, duplicates) => duplicates
                .choose(|each| head.each_header(name, each))
                .map(<[u8]>::trim_ascii)
                .filter(|it| !it.is_empty())
                .map(KeyValue::from),
            Self::Cookie(name, duplicates) => duplicates
                .choose(|each| cookie::each_cookie(head, name, each))
                .filter(|it| !it.is_empty())
                .map(KeyValue::from),
            Self::Query(name, duplicates) => duplicates
                .choose(|each| query::each_query(head, name, each))
                .filter(|it| !it.is_empty())
                .map(KeyValue::from_bytes),
            Self::Host => head.host().and_then(host_name).map(KeyValue::Text),
            Self::Method => Some(head.method().into()),
            Self::Path => Some(head.path().into()),
            Self::Route => Some(head.route().unwrap_or_else(|| head.path()).into()),
            Self::User => user_of(head).map(KeyValue::Text),
            Self::UserBy(find) => find(head).filter(|user| !user.is_empty()).map(KeyValue::Text),
            Self::By(find) => find(head),
            Self::Every(keys) => {
                keys.iter().map(|key| key.find(head)).collect::<Option<_>>().map(KeyValue::Joined)
            }
            Self::First(keys) => {
                (0..=u8::MAX).zip(keys).find_map(|(place, key)| match (place, key.find(head)?) {
                    (0, value) => Some(value),
                    (place, value) => Some(KeyValue::Instead(place, Box::new(value))),
                })
            }
        }
    }
}

/// The address, after a warning where there is none.
#[inline]
fn known(address: Option<IpAddr>, head: &dyn Head, warning: &PeerWarning) -> Option<IpAddr> {
    if address.is_none() {
        warning.check(head);
    }
    address
}

impl Duplicates {
    /// The value that counts, of all that are given.
    fn choose<T>(self, values: impl FnOnce(&mut dyn FnMut(T))) -> Option<T> {
        let mut chosen = None;
        values(&mut |value| match self {
            Self::Last => chosen = Some(value),
            Self::Refuse | Self::First => chosen = chosen.take().or(Some(value)),
        });
        chosen
    }
}

/// From the facts beside the request, or else from those of the task.
fn user_of(head: &dyn Head) -> Option<Cow<'_, str>> {
    let user = match head.facts().and_then(Facts::user) {
        Some(user) => Cow::Borrowed(user),
        None => Cow::Owned(Facts::with_current(|facts| facts.user().map(str::to_owned))??),
    };
    Some(user).filter(|user| !user.is_empty())
}

/// The one name of a host: clients may write `Example.com`, `example.com.` and `example.com:80`.
pub fn host_name(host: &str) -> Option<Cow<'_, str>> {
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

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Source::All => f.write_str("all"),
            Source::Peer { bits, .. } => write!(f, "peer/{bits}"),
            Source::Client { proxies, bits, .. } => write!(f, "client/{bits} behind {proxies:?}"),
            Source::Header(name, _) => write!(f, "header {name}"),
            Source::Cookie(name, _) => write!(f, "cookie {name}"),
            Source::Query(name, _) => write!(f, "query {name}"),
            Source::Host => f.write_str("host"),
            Source::Method => f.write_str("method"),
            Source::Path => f.write_str("path"),
            Source::Route => f.write_str("route"),
            Source::User | Source::UserBy(_) => f.write_str("user"),
            Source::By(_) => f.write_str("by a function"),
            Source::Every(keys) => f.debug_set().entries(keys).finish(),
            Source::First(keys) => f.debug_list().entries(keys).finish(),
        }
    }
}

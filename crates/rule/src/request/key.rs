//! For whom: what of a request names a bucket.

use super::{Address, Head};
use std::{borrow::Cow, fmt, sync::Arc};

/// What names a bucket, found in a request.
///
/// It hashes as what it holds does, so that an attribute whose key is a `&str`, a `u64` or an [`Address`] means the same
/// bucket of the same rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyValue<'a> {
    /// The same for everybody.
    All,
    /// A client, by its address.
    Address(Address),
    /// A number.
    Number(u64),
    /// Text.
    Text(Cow<'a, str>),
    /// Bytes that are not text.
    Bytes(Cow<'a, [u8]>),
    /// Several of these.
    Joined(Vec<Self>),
}

/// For whom a rule counts: finds what names a bucket in a request, or nothing.
#[derive(Clone)]
pub struct Key {
    find: Arc<Find>,
}

type Find = dyn for<'a> Fn(&'a dyn Head) -> Option<KeyValue<'a>> + Send + Sync;

impl Key {
    /// A key of your own.
    pub fn by(find: impl for<'a> Fn(&'a dyn Head) -> Option<KeyValue<'a>> + Send + Sync + 'static) -> Self {
        Self { find: Arc::new(find) }
    }

    /// What this request has; `None` if it has no such thing.
    #[inline]
    pub fn find<'a>(&self, head: &'a dyn Head) -> Option<KeyValue<'a>> {
        (self.find)(head)
    }
}

/// One bucket for all requests.
pub fn all() -> Key {
    Key::by(|_| Some(KeyValue::All))
}

/// The address at the other end of the connection. Behind a proxy that is the proxy.
pub fn peer() -> Key {
    Key::by(|head| head.peer().map(|peer| KeyValue::Address(Address::of(peer))))
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

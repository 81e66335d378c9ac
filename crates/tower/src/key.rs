//! Keys that only requests of `http` have.

use http::Extensions;
use std::borrow::Cow;
use tidegate_rule::request::{KeyValue, RequestHead, RequestKey, key};

/// What the application noted down beside the request in a type of its own: claims that it has decoded, say.
///
/// ```
/// use tidegate_tower::key;
///
/// #[derive(Clone)]
/// struct JwtClaims {
///     subject: String,
/// }
///
/// let by_subject = key::extension(|claims: &JwtClaims| Some(claims.subject.as_str().into()));
/// ```
pub fn extension<T>(
    find: impl for<'a> Fn(&'a T) -> Option<KeyValue<'a>> + Send + Sync + 'static,
) -> RequestKey
where
    T: Send + Sync + 'static,
{
    key::custom(move |head| find_extension(head).and_then(&find))
}

/// The same, as the name by which the application knows the client.
pub fn user_extension<T>(
    find: impl for<'a> Fn(&'a T) -> Option<Cow<'a, str>> + Send + Sync + 'static,
) -> RequestKey
where
    T: Send + Sync + 'static,
{
    key::user_from(move |head| find_extension(head).and_then(&find))
}

/// What the application noted down beside a request in this type, for costs, tiers and conditions.
pub fn find_extension<T: Send + Sync + 'static>(head: &dyn RequestHead) -> Option<&T> {
    head.extensions()?.downcast_ref::<Extensions>()?.get()
}

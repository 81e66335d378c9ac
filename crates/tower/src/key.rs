//! Keys from the extensions of `http` requests.

use http::Extensions;
use std::borrow::Cow;
use tidegate_rule::request::{KeyValue, RequestHead, RequestKey, key};

/// Returns a key from a request extension of type `T`, for example decoded claims.
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

/// Returns a key from a request extension of type `T` that names the user.
pub fn user_extension<T>(
    find: impl for<'a> Fn(&'a T) -> Option<Cow<'a, str>> + Send + Sync + 'static,
) -> RequestKey
where
    T: Send + Sync + 'static,
{
    key::user_from(move |head| find_extension(head).and_then(&find))
}

/// Returns the request extension of type `T`, for costs, tiers and conditions.
pub fn find_extension<T: Send + Sync + 'static>(head: &dyn RequestHead) -> Option<&T> {
    head.extensions()?.downcast_ref::<Extensions>()?.get()
}

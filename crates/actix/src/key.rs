//! Keys from the extensions of actix-web requests.

use actix_web::dev::Extensions;
use std::borrow::Cow;
use tidegate_rule::request::{KeyValue, RequestHead, RequestKey, key};

/// Returns a key from a request extension of type `T` that an outer middleware inserted, for example decoded claims.
///
/// ```
/// use tidegate_actix::key;
///
/// struct SubjectClaims {
///     subject: String,
/// }
///
/// let by_subject = key::extension(|claims: &SubjectClaims| Some(claims.subject.as_str().into()));
/// ```
pub fn extension<T: 'static>(
    find: impl for<'a> Fn(&'a T) -> Option<KeyValue<'a>> + Send + Sync + 'static,
) -> RequestKey {
    key::custom(move |head| find_extension(head).and_then(&find))
}

/// Returns a key from a request extension of type `T` that names the user.
pub fn user_extension<T: 'static>(
    find: impl for<'a> Fn(&'a T) -> Option<Cow<'a, str>> + Send + Sync + 'static,
) -> RequestKey {
    key::user_from(move |head| find_extension(head).and_then(&find))
}

/// Returns the request extension of type `T`, for costs, tiers and conditions.
pub fn find_extension<T: 'static>(head: &dyn RequestHead) -> Option<&T> {
    head.extensions()?.downcast_ref::<Extensions>()?.get()
}

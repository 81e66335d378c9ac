//! Keys that only requests of actix-web have.

use actix_web::dev::Extensions;
use std::borrow::Cow;
use tidegate_rule::request::{KeyValue, RequestHead, RequestKey, key};

/// What an earlier middleware noted down among the extensions of the request in a type of its own: claims that it has decoded,
/// say.
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

/// The same, as the name by which the application knows the client.
pub fn user_extension<T: 'static>(
    find: impl for<'a> Fn(&'a T) -> Option<Cow<'a, str>> + Send + Sync + 'static,
) -> RequestKey {
    key::user_from(move |head| find_extension(head).and_then(&find))
}

/// What was noted down among the extensions of a request in this type, for costs, tiers and conditions.
pub fn find_extension<T: 'static>(head: &dyn RequestHead) -> Option<&T> {
    head.extensions()?.downcast_ref::<Extensions>()?.get()
}

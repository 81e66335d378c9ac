//! Rejections as gRPC status.

use crate::{HeaderStyle, Limited, RejectionResponse};
use ::tonic::{
    Code, Status,
    metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap},
};
use tidegate_overload::CallError;
use tonic_types::{ErrorDetails, StatusExt as _};

/// `RESOURCE_EXHAUSTED` for a limit, which the details name, `DEADLINE_EXCEEDED` for a time limit, and
/// `UNAVAILABLE` for overload or an unavailable store. The retry time is in the details as `RetryInfo`, to the microsecond, and in the metadata as
/// `retry-after`; without it clients should not retry.
impl From<Limited> for Status {
    fn from(limited: Limited) -> Self {
        let mut details = ErrorDetails::new();
        if let Some(wait) = limited.retry_after() {
            details.set_retry_info(Some(wait));
        }
        let code = match limited.cause() {
            CallError::Limited(_) => {
                details.add_quota_failure_violation(limited.rule(), "the quota is used up");
                Code::ResourceExhausted
            }
            CallError::TimeLimitExceeded(_) => Code::DeadlineExceeded,
            _ => Code::Unavailable,
        };
        let metadata = metadata(&RejectionResponse::from_limited(&limited, HeaderStyle::default()));
        Self::with_error_details_and_metadata(code, limited.client_message(), details, metadata)
    }
}

/// The headers of the HTTP response as metadata, without the content type.
fn metadata(rejection: &RejectionResponse) -> MetadataMap {
    let mut metadata = MetadataMap::new();
    for (name, value) in rejection.headers.iter().filter(|(name, _)| name != "content-type") {
        let name = AsciiMetadataKey::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, AsciiMetadataValue::try_from(&**value)) {
            metadata.append(name, value);
        }
    }
    metadata
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::integrations::fixtures;
    use std::time::Duration;

    #[test]
    fn limit_is_resource_exhausted_and_breaker_is_unavailable() {
        let status = Status::from(fixtures::rate_limited());
        assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "Slow down, \"friend\"."));
        let retry = status.get_details_retry_info().unwrap();
        assert_eq!(retry.retry_delay, Some(Duration::from_millis(2_500)));
        let violations = status.get_details_quota_failure().unwrap().violations;
        assert_eq!(violations[0].subject, "login");
        assert_eq!(status.metadata().get("retry-after").unwrap(), "3");
        assert_eq!(status.metadata().get("ratelimit").unwrap(), r#""login";r=0;t=3"#);

        let status = Status::from(fixtures::breaker_open());
        assert_eq!(
            (status.code(), status.message()),
            (Code::Unavailable, "the server cannot take this call now")
        );
        assert_eq!(status.get_details_retry_info().unwrap().retry_delay, Some(Duration::from_secs(4)));
        assert_eq!(status.metadata().get("retry-after").unwrap(), "4");
        assert!(status.get_details_quota_failure().is_none());
    }

    #[test]
    fn unavailable_store_is_unavailable() {
        let status = Status::from(fixtures::store_unavailable());
        assert_eq!(
            (status.code(), status.message()),
            (Code::Unavailable, "the server cannot take this call now")
        );
        assert_eq!(status.get_details_retry_info().unwrap().retry_delay, Some(Duration::from_secs(1)));
        assert!(status.get_details_quota_failure().is_none());
    }

    #[test]
    fn time_limit_is_deadline_exceeded() {
        let status = Status::from(fixtures::time_limit_exceeded());
        assert_eq!((status.code(), status.message()), (Code::DeadlineExceeded, "the call took too long"));
    }

    #[test]
    fn no_retry_info_without_retry_time() {
        let status = Status::from(Limited::new("beta", CallError::FeatureDisabled));
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.get_details_retry_info().is_none());
        assert!(status.metadata().get("retry-after").is_none());
    }
}

//! Good responses that are sent instead of rejections: `on-limit: { fallback: { cache: 10min } }`.
//!
//! ```text
//!   admitted request ──▶ server ──▶ good response ──copy──▶ FallbackCache
//!   rejected request ──────────────────────────────lookup──▶ stored response, or the rejection
//! ```
//!
//! A response is stored if it is a 200 to a GET and a shared cache may store it (RFC 9111). A request with credentials is
//! specific to one user: its response is stored only if the server declares it as `public`. The sizes of the cache and of the
//! copies in progress are bounded; of the stored responses, those that are used least are removed first.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header, response};
use quick_cache::{Weighter, sync::Cache};
use std::{
    fmt, mem,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};
use tidegate_core::Micros;
use tidegate_limiter::Clock;
use tidegate_observe::CacheCounts;
use tidegate_policy::head::ParsedRequest;

/// The maximum size of all stored responses.
const MAX_CACHE_BYTES: u64 = 64 << 20;
/// The maximum size of all copies in progress.
const MAX_COPIED_BYTES: usize = 32 << 20;
/// The maximum size of a stored body.
const MAX_BODY_BYTES: usize = 1 << 20;
/// The maximum number of responses to one target, which differ by the headers that `Vary` names.
const MAX_VARIANTS: usize = 8;
/// The maximum number of headers that `Vary` may name.
const MAX_VARY: usize = 16;
/// The expected number of targets. `quick_cache` makes at most four shards of it, and the variants of one target fit into a shard.
const EXPECTED_TARGETS: usize = 128;
/// The maximum age, in seconds.
const MAX_SECONDS: u64 = 1 << 32;
/// The assumed size of a stored response besides its headers and body.
const RESPONSE_OVERHEAD: usize = 512;
/// The assumed size of a header besides its name and value.
const HEADER_OVERHEAD: usize = 64;

/// Stored responses by upstream, host and target.
pub(crate) struct FallbackCache {
    targets: Cache<String, Variants, VariantsWeighter>,
    clock: Clock,
    /// Whether a rule of the policy in force uses it.
    is_enabled: AtomicBool,
    copied_bytes: AtomicUsize,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// The responses to one target, the newest first.
type Variants = Arc<[Arc<StoredResponse>]>;

/// A request whose response may be stored, or that a stored response may answer.
pub(crate) struct CacheableRequest {
    method: Method,
    key: String,
    /// Empty if the method is not safe.
    headers: HeaderMap,
}

struct StoredResponse {
    head: StoredHead,
    body: Bytes,
    stored_at: Micros,
}

/// The head of a response, without references to the buffers of connections.
struct StoredHead {
    headers: HeaderMap,
    /// The values of the request headers that `Vary` names.
    vary: Vec<(HeaderName, Vec<u8>)>,
    /// The `Content-Length`.
    length: Option<u64>,
    /// The age when it was received.
    initial_age: Micros,
    /// The age after which the server does not permit to send it.
    max_age: Micros,
}

/// The copy of a response on its way to the client. It is stored when the body is complete.
pub struct ResponseCopy {
    cache: Arc<FallbackCache>,
    key: String,
    head: Option<StoredHead>,
    body: Vec<u8>,
    /// The part of `copied_bytes` that belongs to this copy.
    reserved: usize,
}

/// The directives of `Cache-Control` that matter here.
#[derive(Default)]
struct CacheControl {
    is_public: bool,
    is_forbidden: bool,
    must_revalidate: bool,
    max_age: Option<u64>,
    s_maxage: Option<u64>,
}

#[derive(Clone)]
struct VariantsWeighter;

impl Weighter<String, Variants> for VariantsWeighter {
    fn weight(&self, key: &String, variants: &Variants) -> u64 {
        let responses: usize = variants.iter().map(|response| response.size()).sum();
        (key.len() + responses) as u64
    }
}

impl FallbackCache {
    pub(crate) fn new(clock: Clock) -> Self {
        let targets = Cache::with_weighter(EXPECTED_TARGETS, MAX_CACHE_BYTES, VariantsWeighter);
        Self {
            targets,
            clock,
            is_enabled: AtomicBool::new(false),
            copied_bytes: AtomicUsize::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// Sets whether responses are stored. Without, all responses are removed.
    pub(crate) fn set_enabled(&self, is_enabled: bool) {
        self.is_enabled.store(is_enabled, Ordering::SeqCst);
        if !is_enabled {
            self.targets.clear();
        }
    }

    /// The counts since the start, and the size.
    pub(crate) fn counts(&self) -> CacheCounts {
        CacheCounts {
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            bytes: self.targets.weight(),
        }
    }

    /// Returns the stored response to this request, if it is not older than `max_age`.
    pub(crate) fn find(
        &self,
        request: Option<&CacheableRequest>,
        max_age: Micros,
    ) -> Option<Response<Bytes>> {
        let found = request.and_then(|request| self.find_stored(request, max_age));
        let counter = if found.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    fn find_stored(&self, request: &CacheableRequest, max_age: Micros) -> Option<Response<Bytes>> {
        if !matches!(request.method, Method::GET | Method::HEAD) {
            return None;
        }
        let variants = self.targets.get(&request.key)?;
        let stored = variants.iter().find(|stored| stored.head.matches(&request.headers))?;
        let stored_for = self.clock.now().saturating_sub(stored.stored_at);
        let age = stored.head.initial_age.saturating_add(stored_for);
        if stored_for > max_age || age > stored.head.max_age {
            return None;
        }
        let mut response = Response::new(stored.body.clone());
        *response.headers_mut() = stored.head.headers.clone();
        response.headers_mut().insert(header::AGE, (age.get() / 1_000_000).into());
        response.headers_mut().insert("cache-status", HeaderValue::from_static("tidegate; hit"));
        Some(response)
    }

    /// Starts a copy of a response, if it may be stored. Removes stored responses that it makes invalid. `is_personal` returns
    /// whether the response to a request with these headers may be specific to one user.
    pub(crate) fn copy(
        self: &Arc<Self>,
        request: CacheableRequest,
        response: &response::Parts,
        is_personal: impl FnOnce(&HeaderMap) -> bool,
    ) -> Option<ResponseCopy> {
        if !request.method.is_safe() {
            if response.status.is_success() || response.status.is_redirection() {
                self.targets.remove(&request.key);
            }
            return None;
        }
        if request.method != Method::GET {
            return None;
        }
        let has_changed = response.status.is_success()
            || matches!(response.status, StatusCode::NOT_FOUND | StatusCode::GONE);
        if !has_changed {
            return None;
        }
        let control = CacheControl::parse(&response.headers);
        let is_public = control.as_ref().is_some_and(|control| control.is_public);
        // Other clients may get another response.
        if CacheControl::parse(&request.headers).is_none_or(|control| control.is_forbidden)
            || !is_public && is_personal(&request.headers)
        {
            return None;
        }
        let Some(head) = control.and_then(|control| StoredHead::new(&request.headers, response, &control))
        else {
            self.targets.remove(&request.key);
            return None;
        };
        Some(ResponseCopy {
            cache: Arc::clone(self),
            key: request.key,
            head: Some(head),
            body: Vec::new(),
            reserved: 0,
        })
    }

    fn insert(&self, key: String, stored: StoredResponse) {
        let others = self.targets.get(&key);
        let others = others.iter().flat_map(|variants| variants.iter()).cloned();
        let others = others.filter(|other| other.head.vary != stored.head.vary).take(MAX_VARIANTS - 1);
        let others: Vec<_> = others.collect();
        let variants: Variants = std::iter::once(Arc::new(stored)).chain(others).collect();
        if self.is_enabled.load(Ordering::SeqCst) {
            self.targets.insert(key, variants);
        }
    }
}

impl CacheableRequest {
    /// A request to this upstream. `None` for methods that neither read nor change the target, and for a GET with a body,
    /// which may select the response.
    pub(crate) fn new(request: &ParsedRequest, upstream: &str) -> Option<Self> {
        let method = Method::from_bytes(request.method().as_bytes()).ok()?;
        let (is_safe, fields) = (method.is_safe(), &request.fields);
        let has_body = fields.contains(b"transfer-encoding")
            || fields.get(b"content-length").is_some_and(|length| length != b"0");
        if matches!(method, Method::OPTIONS | Method::TRACE) || is_safe && has_body {
            return None;
        }
        let host = String::from_utf8_lossy(fields.get(b"host").unwrap_or_default()).to_ascii_lowercase();
        let target = request.target();
        Some(Self {
            method,
            key: format!("{upstream} {host} {target}"),
            headers: if is_safe { fields.to_map() } else { HeaderMap::new() },
        })
    }
}

impl StoredHead {
    /// The head of a response to a GET, if the response may be stored.
    fn new(request: &HeaderMap, response: &response::Parts, control: &CacheControl) -> Option<Self> {
        let headers = &response.headers;
        let is_forbidden = control.is_forbidden || headers.contains_key(header::SET_COOKIE);
        let length = match headers.get(header::CONTENT_LENGTH) {
            Some(length) => Some(length.to_str().ok()?.parse::<u64>().ok()?),
            None => None,
        };
        let is_stream = headers
            .get(header::CONTENT_TYPE)
            .is_some_and(|content_type| content_type.as_bytes().starts_with(b"text/event-stream"));
        let is_large = length.is_some_and(|length| length > MAX_BODY_BYTES as u64);
        if response.status != StatusCode::OK || is_forbidden || is_stream || is_large {
            return None;
        }
        let seconds = headers.get(header::AGE).and_then(|age| age.to_str().ok()?.parse::<u64>().ok());
        let stored = headers.iter().filter(|(name, _)| **name != header::CONTENT_LENGTH);
        // A value is a part of the buffer of its connection, which would stay allocated.
        let stored = stored.map(|(name, value)| Some((name.clone(), copy_value(value)?)));
        let mut copied = HeaderMap::new();
        for header in stored {
            let (name, value) = header?;
            copied.append(name, value);
        }
        Some(Self {
            headers: copied,
            vary: vary_values(headers, request)?,
            length,
            initial_age: Micros::from_secs(seconds.unwrap_or(0).min(MAX_SECONDS)),
            max_age: control.max_stale_age(),
        })
    }

    fn matches(&self, request: &HeaderMap) -> bool {
        self.vary.iter().all(|(name, value)| joined_values(request, name) == *value)
    }
}

impl StoredResponse {
    /// The size of the response, with its headers.
    fn size(&self) -> usize {
        let headers = self.head.headers.iter().map(|(name, value)| name.as_str().len() + value.len());
        let vary = self.head.vary.iter().map(|(name, value)| name.as_str().len() + value.len());
        let texts: usize = headers.chain(vary).map(|size| size + HEADER_OVERHEAD).sum();
        texts + self.body.len() + RESPONSE_OVERHEAD
    }
}

impl CacheControl {
    /// Parses all directives; `None` if one is not readable.
    fn parse(headers: &HeaderMap) -> Option<Self> {
        let mut found = Self::default();
        for value in headers.get_all(header::CACHE_CONTROL) {
            for directive in value.to_str().ok()?.split(',') {
                let (name, argument) = directive.split_once('=').unwrap_or((directive, ""));
                let seconds = || argument.trim().trim_matches('"').parse::<u64>().unwrap_or(0);
                match name.trim().to_ascii_lowercase().as_str() {
                    "no-store" | "private" | "no-cache" => found.is_forbidden = true,
                    "public" => found.is_public = true,
                    "must-revalidate" | "proxy-revalidate" => found.must_revalidate = true,
                    "max-age" => found.max_age = Some(seconds()),
                    "s-maxage" => found.s_maxage = Some(seconds()),
                    _ => {}
                }
            }
        }
        Some(found)
    }

    /// The age after which the server forbids to send the response. `s-maxage` includes `proxy-revalidate`.
    fn max_stale_age(&self) -> Micros {
        match self.s_maxage {
            Some(seconds) => Micros::from_secs(seconds.min(MAX_SECONDS)),
            None if self.must_revalidate => Micros::from_secs(self.max_age.unwrap_or(0).min(MAX_SECONDS)),
            None => Micros::MAX,
        }
    }
}

/// The values of the request headers that `Vary` names; `None` if the response differs by more than headers.
fn vary_values(response: &HeaderMap, request: &HeaderMap) -> Option<Vec<(HeaderName, Vec<u8>)>> {
    let mut values = Vec::new();
    for value in response.get_all(header::VARY) {
        for name in value.to_str().ok()?.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let name = HeaderName::from_bytes(name.as_bytes()).ok().filter(|name| name.as_str() != "*")?;
            values.push((name.clone(), joined_values(request, &name)));
        }
    }
    (values.len() <= MAX_VARY).then_some(values)
}

fn joined_values(headers: &HeaderMap, name: &HeaderName) -> Vec<u8> {
    headers.get_all(name).iter().map(HeaderValue::as_bytes).collect::<Vec<_>>().join(&b","[..])
}

fn copy_value(value: &HeaderValue) -> Option<HeaderValue> {
    HeaderValue::from_bytes(value.as_bytes()).ok()
}

impl ResponseCopy {
    /// Adds a part of the body. Returns whether the copy can still be stored.
    pub(crate) fn push(&mut self, data: &[u8]) -> bool {
        let length = self.body.len().saturating_add(data.len());
        if length > MAX_BODY_BYTES {
            self.cache.targets.remove(&self.key);
            return false;
        }
        self.reserved += data.len();
        let copied = self.cache.copied_bytes.fetch_add(data.len(), Ordering::Relaxed);
        if copied.saturating_add(data.len()) > MAX_COPIED_BYTES {
            return false;
        }
        self.body.extend_from_slice(data);
        true
    }

    /// Stores the response, whose body is complete. A truncated body is not stored.
    pub(crate) fn store(mut self) {
        let body = mem::take(&mut self.body).into_boxed_slice();
        let Some(head) = self.head.take() else { return };
        if head.length.is_none_or(|length| length == body.len() as u64) {
            let stored = StoredResponse { head, body: body.into(), stored_at: self.cache.clock.now() };
            self.cache.insert(mem::take(&mut self.key), stored);
        }
    }
}

impl Drop for ResponseCopy {
    fn drop(&mut self) {
        self.cache.copied_bytes.fetch_sub(self.reserved, Ordering::Relaxed);
    }
}

impl fmt::Debug for ResponseCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseCopy").field("key", &self.key).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;
    use std::time::Duration;
    use tidegate_limiter::ManualClock;

    const MAX_AGE: Micros = Micros::from_secs(600);

    fn new_cache() -> (Arc<FallbackCache>, ManualClock) {
        let (clock, manual) = Clock::manual();
        let cache = FallbackCache::new(clock);
        cache.set_enabled(true);
        (Arc::new(cache), manual)
    }

    fn request_of(method: &str, target: &str, headers: &[(&str, &str)]) -> CacheableRequest {
        let mut builder = Request::builder().method(method).uri(target).header("host", "a.example");
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        CacheableRequest::new(&(&builder.body(()).unwrap().into_parts().0).into(), "app").unwrap()
    }

    fn copy(
        cache: &Arc<FallbackCache>,
        request: CacheableRequest,
        response: &response::Parts,
    ) -> Option<ResponseCopy> {
        cache.copy(request, response, |headers| headers.contains_key(header::AUTHORIZATION))
    }

    fn request(target: &str, headers: &[(&str, &str)]) -> CacheableRequest {
        request_of("GET", target, headers)
    }

    fn response(status: u16, headers: &[(&str, &str)]) -> response::Parts {
        let mut builder = Response::builder().status(status);
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        builder.body(()).unwrap().into_parts().0
    }

    /// Stores a response, if that is permitted.
    fn store(
        cache: &Arc<FallbackCache>,
        request: CacheableRequest,
        response: &response::Parts,
        body: &[u8],
    ) -> bool {
        let Some(mut copy) = copy(cache, request, response) else { return false };
        if !copy.push(body) {
            return false;
        }
        copy.store();
        true
    }

    fn body_of(cache: &FallbackCache, request: &CacheableRequest) -> Option<Bytes> {
        cache.find(Some(request), MAX_AGE).map(Response::into_body)
    }

    #[test]
    fn stored_response_is_sent_until_its_maximum_age() {
        let (cache, clock) = new_cache();
        let head = response(200, &[("content-type", "text/plain"), ("content-length", "4"), ("age", "5")]);
        assert!(store(&cache, request("/a?b", &[]), &head, b"good"));
        clock.advance(Duration::from_secs(600));
        let found = cache.find(Some(&request("/a?b", &[])), MAX_AGE).unwrap();
        assert_eq!((found.status(), found.body().as_ref()), (StatusCode::OK, b"good".as_slice()));
        assert_eq!(
            (&found.headers()["age"], &found.headers()["content-type"]),
            (&"605".parse().unwrap(), &"text/plain".parse().unwrap())
        );
        assert_eq!(found.headers()["cache-status"], "tidegate; hit");
        assert!(body_of(&cache, &request_of("HEAD", "/a?b", &[])).is_some());
        clock.advance(Duration::from_micros(1));
        assert!(body_of(&cache, &request("/a?b", &[])).is_none());
        assert!(body_of(&cache, &request("/a?c", &[])).is_none());
        let CacheCounts { hits, misses, bytes } = cache.counts();
        assert_eq!((hits, misses, bytes > 500), (2, 2, true));
    }

    #[test]
    fn only_responses_for_all_users_are_stored() {
        for (request_headers, status, response_headers, expected) in [
            (&[][..], 200, &[][..], true),
            (&[], 200, &[("cache-control", "max-age=60")], true),
            (&[], 500, &[], false),
            (&[], 304, &[], false),
            (&[], 206, &[], false),
            (&[], 200, &[("cache-control", "no-store")], false),
            (&[], 200, &[("cache-control", "max-age=5, NO-STORE")], false),
            (&[], 200, &[("cache-control", "Private")], false),
            (&[], 200, &[("cache-control", "private=\"set-cookie\"")], false),
            (&[], 200, &[("cache-control", "no-cache")], false),
            (&[], 200, &[("cache-control", "public, caf\u{e9}")], false),
            (&[], 200, &[("set-cookie", "a=b")], false),
            (&[], 200, &[("vary", "*")], false),
            (&[], 200, &[("content-type", "text/event-stream; charset=utf-8")], false),
            (&[], 200, &[("content-length", "5000000")], false),
            (&[("cache-control", "No-Store")], 200, &[], false),
            (&[("authorization", "Bearer x")], 200, &[], false),
            (&[("authorization", "Bearer x")], 200, &[("cache-control", "s-maxage=60")], false),
            (&[("authorization", "Bearer x")], 200, &[("cache-control", "max-age=60, Public")], true),
        ] {
            let (cache, _) = new_cache();
            assert_eq!(
                copy(&cache, request("/a", request_headers), &response(status, response_headers)).is_some(),
                expected,
                "{request_headers:?} {status} {response_headers:?}"
            );
        }
    }

    #[test]
    fn server_can_forbid_stale_responses() {
        for (cache_control, fresh_secs) in [
            ("max-age=60, must-revalidate", 60),
            ("max-age=60, Proxy-Revalidate", 60),
            ("s-maxage=30, max-age=60", 30),
            ("must-revalidate", 0),
            ("max-age=60", 600),
        ] {
            let (cache, clock) = new_cache();
            assert!(store(
                &cache,
                request("/", &[]),
                &response(200, &[("cache-control", cache_control)]),
                b"a"
            ));
            clock.advance(Duration::from_secs(fresh_secs));
            assert!(body_of(&cache, &request("/", &[])).is_some(), "{cache_control}");
            clock.advance(Duration::from_micros(1));
            assert!(body_of(&cache, &request("/", &[])).is_none(), "{cache_control}");
        }
    }

    #[test]
    fn any_age_of_a_server_is_accepted() {
        let (cache, clock) = new_cache();
        let head =
            response(200, &[("age", "18446744073709551615"), ("cache-control", "max-age=99999999999")]);
        assert!(store(&cache, request("/", &[]), &head, b"old"));
        clock.advance(Duration::from_secs(1));
        assert_eq!(body_of(&cache, &request("/", &[])).unwrap(), "old");
    }

    #[test]
    fn varying_responses_are_sent_to_the_same_kind_of_request() {
        let (cache, _) = new_cache();
        let head = response(200, &[("vary", "Accept-Language, accept-encoding")]);
        fn accepts(language: &str) -> [(&str, &str); 1] {
            [("accept-language", language)]
        }
        for (language, body) in [("de", "gut"), ("en", "good"), ("de", "besser")] {
            assert!(store(&cache, request("/", &accepts(language)), &head, body.as_bytes()));
        }
        assert_eq!(body_of(&cache, &request("/", &accepts("de"))).unwrap(), "besser");
        assert_eq!(body_of(&cache, &request("/", &accepts("en"))).unwrap(), "good");
        assert!(body_of(&cache, &request("/", &accepts("fr"))).is_none());
        let gzip = [accepts("de")[0], ("accept-encoding", "gzip")];
        assert!(body_of(&cache, &request("/", &gzip)).is_none());
        for number in 0..100 {
            let language = number.to_string();
            assert!(store(&cache, request("/", &accepts(&language)), &head, b"-"));
        }
        assert_eq!(cache.targets.get("app a.example /").unwrap().len(), MAX_VARIANTS);
    }

    #[test]
    fn stored_response_is_removed_when_its_target_changes() {
        for (method, status, headers, is_removed) in [
            ("DELETE", 204, &[][..], true),
            ("POST", 303, &[], true),
            ("PUT", 500, &[], false),
            ("GET", 404, &[], true),
            ("GET", 410, &[], true),
            ("GET", 200, &[("cache-control", "private")], true),
            ("GET", 200, &[("content-length", "5000000")], true),
            ("GET", 503, &[], false),
            ("GET", 429, &[], false),
            ("HEAD", 200, &[], false),
        ] {
            let (cache, _) = new_cache();
            assert!(store(&cache, request("/", &[]), &response(200, &[]), b"old"));
            assert!(copy(&cache, request_of(method, "/", &[]), &response(status, headers)).is_none());
            assert_eq!(body_of(&cache, &request("/", &[])).is_none(), is_removed, "{method} {status}");
        }
    }

    #[test]
    fn request_of_one_client_does_not_remove_the_stored_response() {
        let (cache, _) = new_cache();
        assert!(store(&cache, request("/", &[]), &response(200, &[]), b"good"));
        for header in
            [("authorization", "Bearer x"), ("cache-control", "no-store"), ("cache-control", "no-cache")]
        {
            for status in [200, 404] {
                assert!(
                    copy(&cache, request("/", &[header]), &response(status, &[])).is_none(),
                    "{header:?}"
                );
            }
        }
        assert_eq!(body_of(&cache, &request("/", &[])).unwrap(), "good");
    }

    #[test]
    fn get_with_a_body_is_not_cacheable() {
        let is_cacheable = |method: &str, name: &str, value: &str| {
            let request = Request::builder().method(method).header(name, value).body(()).unwrap();
            CacheableRequest::new(&(&request.into_parts().0).into(), "app").is_some()
        };
        assert!(is_cacheable("GET", "content-length", "0"));
        assert!(!is_cacheable("GET", "content-length", "2"));
        assert!(!is_cacheable("GET", "transfer-encoding", "chunked"));
        assert!(is_cacheable("POST", "content-length", "2"));
    }

    #[test]
    fn truncated_body_is_not_stored() {
        let (cache, _) = new_cache();
        let head = response(200, &[("content-length", "5")]);
        store(&cache, request("/", &[]), &head, b"four");
        assert!(body_of(&cache, &request("/", &[])).is_none());
        store(&cache, request("/", &[]), &head, b"fifth");
        assert_eq!(body_of(&cache, &request("/", &[])).unwrap(), "fifth");
    }

    #[test]
    fn size_is_bounded() {
        let (cache, _) = new_cache();
        let body = vec![0; MAX_BODY_BYTES];
        for number in 0..200 {
            assert!(store(&cache, request(&format!("/{number}"), &[]), &response(200, &[]), &body));
        }
        let stored =
            (0..200).filter(|number| body_of(&cache, &request(&format!("/{number}"), &[])).is_some());
        let stored = stored.count();
        assert!((32..=64).contains(&stored), "{stored}");
        assert!(cache.counts().bytes <= MAX_CACHE_BYTES, "{:?}", cache.counts());

        let mut large = copy(&cache, request("/large", &[]), &response(200, &[])).unwrap();
        assert!(large.push(&body));
        assert!(!large.push(b"1"));
        drop(large);
        let mut copies: Vec<_> = (0..MAX_COPIED_BYTES / MAX_BODY_BYTES)
            .map(|_| copy(&cache, request("/", &[]), &response(200, &[])).unwrap())
            .collect();
        assert!(copies.iter_mut().all(|copy| copy.push(&body)));
        let mut next = copy(&cache, request("/", &[]), &response(200, &[])).unwrap();
        assert!(!next.push(b"1"));
        copies.truncate(1);
        drop(next);
        assert!(copy(&cache, request("/", &[]), &response(200, &[])).unwrap().push(b"1"));
        drop(copies);
        assert_eq!(cache.copied_bytes.load(Ordering::Relaxed), 0);
    }

    /// Headers of the request are stored only if `Vary` names them.
    #[test]
    fn weight_is_that_of_the_stored_data() {
        let (cache, _) = new_cache();
        let long = "x".repeat(30_000);
        let weight_of = |target: &str, vary: &'static str| {
            let before = cache.counts().bytes;
            assert!(store(
                &cache,
                request(target, &[("x-long", &long)]),
                &response(200, &[("vary", vary)]),
                b"a"
            ));
            cache.counts().bytes - before
        };
        assert!((1..2_000).contains(&weight_of("/a", "x-short")));
        assert!((30_000..32_000).contains(&weight_of("/b", "x-long")));
    }

    #[test]
    fn disabled_cache_stores_nothing() {
        let (cache, _) = new_cache();
        assert!(store(&cache, request("/a", &[]), &response(200, &[]), b"a"));
        let pending = copy(&cache, request("/b", &[]), &response(200, &[])).unwrap();
        cache.set_enabled(false);
        pending.store();
        cache.set_enabled(true);
        assert!(body_of(&cache, &request("/a", &[])).is_none());
        assert!(body_of(&cache, &request("/b", &[])).is_none());
    }
}

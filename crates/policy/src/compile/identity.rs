//! The verified identities of a policy.

use super::{Compiler, error::ProblemCollector};
use crate::{
    matching::RequestView,
    model::{ApiKeysSpec, DEFAULT_INVALID_QUOTA, IdentitySpec, JwtSpec, KeySetLocation, Policy},
};
use std::{
    cell::{Cell, OnceCell},
    fmt,
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tidegate_core::{Micros, Quota, SettingError};
use tidegate_identity::{
    InvalidCredential,
    api_key::{ApiKey, ApiKeyAuthenticator, ApiKeyFile, MAX_API_KEY_FILE_SIZE},
    jwt::{JwtAlgorithm, JwtAuthenticator, JwtClaims, JwtKeySet, JwtSettings, JwtVerifier, MAX_KEY_SET_SIZE},
};
use tidegate_limiter::{Capacity, Limiter};
use tidegate_rule::request::{KeyValue, RequestHead, RequestKey};

/// How the clients of a policy prove who they are.
#[derive(Debug)]
pub(crate) struct CompiledIdentity {
    source: IdentitySpec,
    jwt: Option<JwtIdentity>,
    api_keys: Option<ApiKeyIdentity>,
    /// Counts the invalid credentials of each client address.
    invalid: Limiter,
    client: RequestKey,
    counts: Arc<ProblemCounts>,
}

#[derive(Clone, Debug)]
struct JwtIdentity {
    authenticator: Arc<JwtAuthenticator>,
    verifier: Arc<JwtVerifier>,
    /// The file with the keys; `None` if they are fetched.
    file: Option<PathBuf>,
}

#[derive(Clone, Debug)]
struct ApiKeyIdentity {
    authenticator: Arc<ApiKeyAuthenticator>,
    file: PathBuf,
}

/// Kinds of credentials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CredentialKinds {
    pub(crate) jwt: bool,
    pub(crate) api_key: bool,
    /// The certificate of the client, which TLS has verified.
    pub(crate) client_certificate: bool,
}

/// The reason why a request is rejected that has no valid credential.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unauthenticated {
    /// The value of `WWW-Authenticate` (RFC 6750); `None` if only a client certificate is accepted.
    pub(crate) challenge: Option<&'static str>,
    pub(crate) problem: CredentialProblem,
}

/// The results of the verification of the credentials of a request, so that rules and routes verify each one once.
#[derive(Default)]
pub(crate) struct CredentialResults {
    jwt: OnceCell<CredentialResult<JwtClaims>>,
    api_key: OnceCell<CredentialResult<ApiKey>>,
    is_jwt_recorded: Cell<bool>,
    is_api_key_recorded: Cell<bool>,
    is_guess_counted: Cell<bool>,
}

/// Why a request has no valid credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialProblem {
    /// It has none.
    Missing,
    /// It has an invalid one.
    Invalid(InvalidCredential),
    /// It was not verified, because its address sent too many invalid ones.
    Limited,
}

impl CredentialProblem {
    const LIMITED: &'static str = "limited";

    /// The reason, as in metrics.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Invalid(invalid) => invalid.reason(),
            Self::Limited => Self::LIMITED,
        }
    }
}

/// Completes the sentence `the request has …`.
impl fmt::Display for CredentialProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("no valid credential"),
            Self::Invalid(invalid) => write!(f, "no valid credential: {invalid}"),
            Self::Limited => {
                f.write_str("an unverified credential, because its address sent too many invalid ones")
            }
        }
    }
}

/// The number of problems by reason: those of [`InvalidCredential::REASONS`], and then [`CredentialProblem::Limited`].
#[derive(Debug, Default)]
struct ProblemCounts {
    counts: [AtomicU64; InvalidCredential::REASONS.len() + 1],
}

impl ProblemCounts {
    fn reasons() -> impl Iterator<Item = &'static str> {
        InvalidCredential::REASONS.into_iter().chain([CredentialProblem::LIMITED])
    }

    fn record(&self, problem: CredentialProblem) {
        let reason = problem.reason();
        if let Some((_, count)) = Self::reasons().zip(&self.counts).find(|(known, _)| *known == reason) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The result of the verification of a credential.
pub(crate) enum CredentialResult<T> {
    /// The request has none.
    Missing,
    Valid(Arc<T>),
    /// It is a guess if it was not accepted before.
    Invalid {
        reason: InvalidCredential,
        is_guess: bool,
    },
    /// It was not verified, because its address sent too many invalid ones. The next attempt is possible after this time.
    Unverified(Duration),
}

impl<T> CredentialResult<T> {
    /// The result for a credential that is no guess.
    fn known<E: Into<InvalidCredential>>(result: Result<Option<Arc<T>>, E>) -> Self {
        match result {
            Ok(None) => Self::Missing,
            Ok(Some(credential)) => Self::Valid(credential),
            Err(error) => Self::Invalid { reason: error.into(), is_guess: false },
        }
    }

    /// Why the credential is not accepted, and whether it counts as a guess.
    fn problem(&self) -> Option<(CredentialProblem, bool)> {
        match self {
            Self::Missing | Self::Valid(_) => None,
            Self::Invalid { reason, is_guess } => Some((CredentialProblem::Invalid(*reason), *is_guess)),
            Self::Unverified(_) => Some((CredentialProblem::Limited, false)),
        }
    }

    fn check_verified(&self) -> Result<(), Duration> {
        match self {
            Self::Unverified(wait) => Err(*wait),
            Self::Missing | Self::Valid(_) | Self::Invalid { .. } => Ok(()),
        }
    }
}

impl CredentialKinds {
    const NONE: Self = Self { jwt: false, api_key: false, client_certificate: false };
    pub(crate) const JWT: Self = Self { jwt: true, ..Self::NONE };
    pub(crate) const API_KEY: Self = Self { api_key: true, ..Self::NONE };
    pub(crate) const CLIENT_CERTIFICATE: Self = Self { client_certificate: true, ..Self::NONE };

    pub(crate) fn is_empty(self) -> bool {
        self == Self::NONE
    }

    pub(crate) fn union(self, other: Self) -> Self {
        Self {
            jwt: self.jwt || other.jwt,
            api_key: self.api_key || other.api_key,
            client_certificate: self.client_certificate || other.client_certificate,
        }
    }

    /// The error of a policy that uses this kind, and does not define it.
    pub(crate) fn undefined(self) -> SettingError {
        let (key, fix) = match self.jwt {
            true => ("jwt", "define it, as in `identity: { jwt: { keys: jwks.json } }`"),
            false => ("api-keys", "define it, as in `identity: { api-keys: api-keys.json }`"),
        };
        SettingError::new(format!("the policy does not define `identity.{key}`"), fix)
    }
}

/// A key set that must be fetched.
#[derive(Clone, Debug)]
pub struct RemoteKeySet {
    /// Where it is.
    pub url: String,
    /// How often it must be fetched.
    pub refresh: Duration,
    /// The verifier that uses it.
    pub verifier: Arc<JwtVerifier>,
}

/// The number of addresses whose invalid credentials are counted.
const MAX_ADDRESSES: u64 = 65_536;

impl CompiledIdentity {
    /// Compiles `identity`; `None` if the policy does not define it. While it is unchanged, verified tokens and counts stay.
    pub(super) fn build(
        policy: &Policy,
        compiler: &Compiler,
        client: RequestKey,
        before: Option<&Arc<Self>>,
        problems: &mut ProblemCollector,
    ) -> Option<Arc<Self>> {
        let source = &policy.identity;
        if *source == IdentitySpec::default() {
            return None;
        }
        // Each unchanged part stays, so that a change of another one loses no fetched keys and no counts.
        let before = before.map(|before| &**before);
        let jwt_before = before.filter(|before| before.source.jwt == source.jwt);
        let keys_before = before.filter(|before| before.source.api_keys == source.api_keys);
        let invalid_before = before.filter(|before| before.source.invalid_quota == source.invalid_quota);
        // What is invalid is empty here, so that the rules that use it cause no further errors.
        let mut record = |path: &[&str], result: Result<(), SettingError>| {
            if let Err(error) = result {
                problems.add_at(path, &error);
            }
        };
        let jwt = source.jwt.as_ref().map(|jwt| {
            let unchanged = jwt_before.and_then(|before| before.jwt.clone());
            let jwt = unchanged.unwrap_or_else(|| JwtIdentity::new(jwt, compiler));
            record(&["identity", "jwt", "keys"], jwt.reload());
            jwt
        });
        let api_keys = source.api_keys.as_ref().map(|keys| {
            let unchanged = keys_before.and_then(|before| before.api_keys.clone());
            let keys = unchanged.unwrap_or_else(|| ApiKeyIdentity::new(keys, compiler));
            record(&["identity", "api-keys"], keys.reload());
            keys
        });
        let invalid = match invalid_before {
            Some(before) => Ok(before.invalid.clone()),
            None => build_limiter(source.invalid_quota, compiler),
        };
        match invalid {
            Ok(invalid) => {
                let counts = before.map(|before| before.counts.clone()).unwrap_or_default();
                Some(Arc::new(Self { source: source.clone(), jwt, api_keys, invalid, client, counts }))
            }
            Err(error) => {
                record(&["identity", "invalid-quota"], Err(error));
                None
            }
        }
    }

    pub(super) fn jwt(&self) -> Option<&Arc<JwtAuthenticator>> {
        self.jwt.as_ref().map(|jwt| &jwt.authenticator)
    }

    pub(super) fn api_keys(&self) -> Option<&Arc<ApiKeyAuthenticator>> {
        self.api_keys.as_ref().map(|keys| &keys.authenticator)
    }

    /// Reads the files again. An invalid one changes nothing of its part.
    pub(super) fn reload(&self) -> Result<(), SettingError> {
        self.jwt.as_ref().map_or(Ok(()), JwtIdentity::reload)?;
        self.api_keys.as_ref().map_or(Ok(()), ApiKeyIdentity::reload)
    }

    pub(super) fn remote_key_set(&self) -> Option<RemoteKeySet> {
        match (&self.source.jwt, &self.jwt) {
            (Some(JwtSpec { keys: KeySetLocation::Url(url), refresh, .. }), Some(jwt)) => {
                Some(RemoteKeySet { url: url.clone(), refresh: *refresh, verifier: jwt.verifier.clone() })
            }
            _ => None,
        }
    }

    /// Whether it defines these kinds of credentials.
    pub(crate) fn defines(&self, kinds: CredentialKinds) -> bool {
        (!kinds.jwt || self.jwt.is_some()) && (!kinds.api_key || self.api_keys.is_some())
    }

    /// The claims of the token of a request.
    pub(crate) fn claims<'v>(&self, view: &'v RequestView<'_>) -> &'v CredentialResult<JwtClaims> {
        view.credentials().jwt.get_or_init(|| {
            let Some(jwt) = self.jwt() else { return CredentialResult::Missing };
            let head = view.head();
            match jwt.authenticate_known(head) {
                Some(known) => CredentialResult::known(known),
                None => self.verify(head, || jwt.authenticate(head)),
            }
        })
    }

    /// The API key of a request.
    pub(crate) fn api_key<'v>(&self, view: &'v RequestView<'_>) -> &'v CredentialResult<ApiKey> {
        view.credentials().api_key.get_or_init(|| {
            let Some(keys) = self.api_keys() else { return CredentialResult::Missing };
            let head = view.head();
            match keys.authenticate_known(head) {
                Some(known) => CredentialResult::known(known),
                None => self.verify(head, || keys.authenticate(head)),
            }
        })
    }

    /// Verifies a new credential, unless its address sent too many invalid ones.
    fn verify<T, E: Into<InvalidCredential>>(
        &self,
        head: &dyn RequestHead,
        authenticate: impl FnOnce() -> Result<Option<Arc<T>>, E>,
    ) -> CredentialResult<T> {
        let next = self.invalid.blocking().key(&self.address(head)).peek(1);
        match next.is_allowed() {
            true => match CredentialResult::known(authenticate()) {
                CredentialResult::Invalid { reason, .. } => {
                    CredentialResult::Invalid { reason, is_guess: reason.may_be_guess() }
                }
                result => result,
            },
            false => {
                CredentialResult::Unverified(next.retry_after().map_or(Duration::ZERO, Micros::to_duration))
            }
        }
    }

    fn address<'h>(&self, head: &'h dyn RequestHead) -> KeyValue<'h> {
        self.client.find(head).unwrap_or(KeyValue::All)
    }

    /// Verifies these credentials of a request, before rules use them. Returns the time until the next attempt if the address
    /// sent too many invalid ones.
    pub(super) fn limit_invalid(
        &self,
        view: &RequestView<'_>,
        kinds: CredentialKinds,
    ) -> Result<(), Duration> {
        let jwt = kinds.jwt.then(|| self.claims(view));
        let api_key = kinds.api_key.then(|| self.api_key(view));
        self.count_invalid(view);
        jwt.map_or(Ok(()), CredentialResult::check_verified)?;
        api_key.map_or(Ok(()), CredentialResult::check_verified)
    }

    /// Counts the invalid credentials of a request that was verified, once for all rules and routes.
    pub(super) fn count_invalid(&self, view: &RequestView<'_>) {
        let results = view.credentials();
        let problems = [
            (results.jwt.get().and_then(CredentialResult::problem), &results.is_jwt_recorded),
            (results.api_key.get().and_then(CredentialResult::problem), &results.is_api_key_recorded),
        ];
        for (problem, is_recorded) in problems {
            let Some((problem, is_guess)) = problem.filter(|_| !is_recorded.replace(true)) else { continue };
            self.counts.record(problem);
            if is_guess && !results.is_guess_counted.replace(true) {
                self.invalid.blocking().key(&self.address(view.head())).check(1);
            }
        }
    }

    /// The number of invalid credentials, by reason.
    pub(super) fn invalid_credentials(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.counts.counts.iter().map(|count| count.load(Ordering::Relaxed));
        ProblemCounts::reasons().zip(counts)
    }
}

impl CredentialKinds {
    /// Checks that a request has a valid credential of one of these kinds.
    pub(super) fn require(
        self,
        identity: Option<&CompiledIdentity>,
        head: &dyn RequestHead,
    ) -> Result<(), Unauthenticated> {
        if self.client_certificate && head.client_certificate().is_some() {
            return Ok(());
        }
        let api_keys = identity.and_then(CompiledIdentity::api_keys).filter(|_| self.api_key);
        let api_key = api_keys.map(|keys| keys.authenticate(head));
        if matches!(api_key, Some(Ok(Some(_)))) {
            return Ok(());
        }
        let mut problem = CredentialProblem::Missing;
        if let Some(Err(error)) = api_key {
            problem = CredentialProblem::Invalid(error.into());
        }
        let jwt = identity.and_then(CompiledIdentity::jwt).filter(|_| self.jwt);
        let challenge = match jwt.map(|jwt| jwt.authenticate(head)) {
            Some(Ok(Some(_))) => return Ok(()),
            Some(Ok(None)) => Some("Bearer"),
            Some(Err(error)) => {
                problem = CredentialProblem::Invalid(error.into());
                Some("Bearer error=\"invalid_token\"")
            }
            None => self.api_key.then_some("ApiKey"),
        };
        Err(Unauthenticated { challenge, problem })
    }
}

impl ApiKeyIdentity {
    /// Without keys, until it is reloaded.
    fn new(source: &ApiKeysSpec, compiler: &Compiler) -> Self {
        let mut authenticator = ApiKeyAuthenticator::new(source.from.clone(), ApiKeyFile::default());
        if let Some(clock) = &compiler.wall_clock {
            authenticator = authenticator.with_clock(clock.clone());
        }
        Self { authenticator: Arc::new(authenticator), file: compiler.base.join(&source.file) }
    }

    fn reload(&self) -> Result<(), SettingError> {
        self.authenticator.set_keys(read_api_keys(&self.file)?);
        Ok(())
    }
}

impl JwtIdentity {
    /// Without keys, until it is reloaded or they are fetched.
    fn new(source: &JwtSpec, compiler: &Compiler) -> Self {
        let settings = JwtSettings {
            issuers: source.issuers.clone(),
            audiences: source.audiences.clone(),
            algorithms: match source.algorithms.is_empty() {
                true => JwtAlgorithm::ALL.to_vec(),
                false => source.algorithms.clone(),
            },
            leeway: source.leeway,
        };
        let verifier = Arc::new(JwtVerifier::new(settings, JwtKeySet::default()));
        let mut authenticator = JwtAuthenticator::new(source.from.clone(), verifier.clone());
        if let Some(clock) = &compiler.wall_clock {
            authenticator = authenticator.with_clock(clock.clone());
        }
        let file = match &source.keys {
            KeySetLocation::File(file) => Some(compiler.base.join(file)),
            KeySetLocation::Url(_) => None,
        };
        Self { authenticator: Arc::new(authenticator), verifier, file }
    }

    fn reload(&self) -> Result<(), SettingError> {
        if let Some(file) = &self.file {
            self.verifier.set_keys(read_key_set(file)?);
        }
        Ok(())
    }
}

fn build_limiter(quota: Option<Quota>, compiler: &Compiler) -> Result<Limiter, SettingError> {
    let quota = match quota {
        Some(quota) => quota,
        None => DEFAULT_INVALID_QUOTA
            .parse()
            .map_err(|error: tidegate_core::QuotaError| SettingError::new(error.problem(), error.fix()))?,
    };
    let builder = Limiter::builder().name("invalid-credentials").capacity(Capacity::Keys(MAX_ADDRESSES));
    let builder = match &compiler.clock {
        Some(clock) => builder.clock(clock.clone()),
        None => builder,
    };
    builder.build(quota).map_err(|error| SettingError::new(error.to_string(), "use another quota"))
}

fn read_key_set(file: &Path) -> Result<JwtKeySet, SettingError> {
    JwtKeySet::parse(&read_file(file, MAX_KEY_SET_SIZE)?).map_err(|error| with_file(file, &error))
}

fn read_api_keys(file: &Path) -> Result<ApiKeyFile, SettingError> {
    ApiKeyFile::parse(&read_file(file, MAX_API_KEY_FILE_SIZE)?).map_err(|error| with_file(file, &error))
}

/// Reads at most one byte more than this size.
fn read_file(file: &Path, max_size: usize) -> Result<Vec<u8>, SettingError> {
    let read = || -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        let limit = u64::try_from(max_size).unwrap_or(u64::MAX).saturating_add(1);
        File::open(file)?.take(limit).read_to_end(&mut content)?;
        Ok(content)
    };
    read().map_err(|error| {
        let problem = format!("cannot read {}: {error}", file.display());
        SettingError::new(problem, "create the file, or correct its name")
    })
}

fn with_file(file: &Path, error: &SettingError) -> SettingError {
    SettingError::new(format!("{}: {}", file.display(), error.problem()), error.fix())
}

//! The verified identities of a policy.

use super::{Compiler, error::ProblemCollector};
use crate::model::{ApiKeysSpec, DEFAULT_INVALID_QUOTA, IdentitySpec, JwtSpec, KeySetLocation, Policy};
use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tidegate_core::{Micros, Quota, SettingError};
use tidegate_identity::{
    api_key::{ApiKeyAuthenticator, ApiKeyFile, MAX_API_KEY_FILE_SIZE},
    jwt::{JwtAlgorithm, JwtAuthenticator, JwtError, JwtKeySet, JwtSettings, JwtVerifier, MAX_KEY_SET_SIZE},
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
}

impl CredentialKinds {
    pub(crate) fn is_empty(self) -> bool {
        self == Self::default()
    }

    pub(crate) fn union(self, other: Self) -> Self {
        Self { jwt: self.jwt || other.jwt, api_key: self.api_key || other.api_key }
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
            Ok(invalid) => Some(Arc::new(Self { source: source.clone(), jwt, api_keys, invalid, client })),
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

    /// Verifies the credentials of a request once, before rules use them. Returns the time until the next attempt if the address
    /// sent too many invalid ones.
    pub(super) fn limit_invalid(
        &self,
        head: &dyn RequestHead,
        kinds: CredentialKinds,
    ) -> Result<(), Duration> {
        let jwt = self.jwt().filter(|jwt| kinds.jwt && jwt.must_verify(head));
        let api_keys = self.api_keys().filter(|keys| kinds.api_key && keys.must_verify(head));
        if jwt.is_none() && api_keys.is_none() {
            return Ok(());
        }
        let address = self.client.find(head).unwrap_or(KeyValue::All);
        let bucket = self.invalid.blocking().key(&address);
        let next = bucket.peek(1);
        if !next.is_allowed() {
            return Err(next.retry_after().map_or(Duration::ZERO, Micros::to_duration));
        }
        // A token with an unknown key costs nothing to reject, and its key may be fetched later.
        let is_invalid_token =
            jwt.is_some_and(|jwt| !matches!(jwt.authenticate(head), Ok(_) | Err(JwtError::UnknownKey)));
        if is_invalid_token || api_keys.is_some_and(|keys| keys.authenticate(head).is_err()) {
            bucket.check(1);
        }
        Ok(())
    }

    /// Checks that a request has a valid credential of one of these kinds. Otherwise returns the value of `WWW-Authenticate`
    /// (RFC 6750).
    pub(super) fn require(&self, head: &dyn RequestHead, kinds: CredentialKinds) -> Result<(), &'static str> {
        let has_api_key =
            || self.api_keys().is_some_and(|keys| matches!(keys.authenticate(head), Ok(Some(_))));
        if kinds.api_key && has_api_key() {
            return Ok(());
        }
        match self.jwt().filter(|_| kinds.jwt).map(|jwt| jwt.authenticate(head)) {
            None => Err("ApiKey"),
            Some(Ok(Some(_))) => Ok(()),
            Some(Ok(None)) => Err("Bearer"),
            Some(Err(_)) => Err("Bearer error=\"invalid_token\""),
        }
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

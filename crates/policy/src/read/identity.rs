//! Reads `identity`.

use super::{
    PolicyReader, ValueError,
    matching::header_name,
    upstream::{SCHEMES, check_authority},
    values::{unknown_word_error, write_duration, write_path},
};
use crate::{
    map_schema::{
        MapSchema, OutputValue, TextKind, ValueSchema, duration, field, key, with_default, with_example,
        without,
    },
    model::{ApiKeysSpec, DEFAULT_INVALID_QUOTA, IdentitySpec, JwtSpec, KeySetLocation},
    source::{SyntaxNode, SyntaxValue},
};
use std::path::Path;
use tidegate_core::Quota;
use tidegate_identity::CredentialSource;

pub(super) static IDENTITY: MapSchema<IdentitySpec> = MapSchema {
    name: "identity",
    required: &[],
    keys: &[
        without(
            field!("jwt": ValueSchema::Map(|| JWT.outline()), jwt = jwt => |jwt| JWT.write(jwt),
            "How signed tokens are verified, for keys such as `jwt sub`."),
            "Rules with a `jwt` key are an error.",
        ),
        without(
            key(
                "api-keys",
                "The accepted API keys: a file, or a map.",
                ValueSchema::AnyOf(&[API_KEY_FILE, ValueSchema::Map(|| API_KEYS.outline())]),
                |reader, node, it| it.api_keys = reader.api_keys(node),
                |it| it.api_keys.as_ref().map(|keys| API_KEYS.write(keys)),
            ),
            "Rules with an `api-key` key are an error.",
        ),
        with_default(
            field!("invalid-quota": ValueSchema::Text(TextKind::Quota, &["20/min"]), invalid_quota = rate_quota => OutputValue::text,
            "The number of invalid credentials that each client address may send. Beyond it, only credentials that were verified before are accepted from the address."),
            || OutputValue::text(DEFAULT_INVALID_QUOTA),
        ),
    ],
};

const API_KEY_FILE: ValueSchema = ValueSchema::Text(TextKind::File, &["api-keys.json"]);
const CREDENTIAL_SOURCE: ValueSchema = ValueSchema::Text(
    TextKind::CredentialSource,
    &["cookie session", "header authorization", "query access_token"],
);

static API_KEYS: MapSchema<ApiKeysSpec> = MapSchema {
    name: "api-keys",
    required: &["file"],
    keys: &[
        key(
            "file",
            "The file with the hashes of the keys, which `tidegate apikey` writes. It is reloaded when it changes.",
            API_KEY_FILE,
            |reader, node, it| it.file = reader.path(node).unwrap_or_default(),
            |it| Some(write_path(&it.file)),
        ),
        with_default(
            key(
                "from",
                "The part of the request that contains the API key.",
                CREDENTIAL_SOURCE,
                |reader, node, it| {
                    it.from = reader.read(node, parse_source).unwrap_or_else(|| ApiKeysSpec::default().from);
                },
                |it| (it.from != ApiKeysSpec::default().from).then(|| OutputValue::text(&it.from)),
            ),
            || OutputValue::text(ApiKeysSpec::default().from),
        ),
    ],
};

static JWT: MapSchema<JwtSpec> = MapSchema {
    name: "jwt",
    required: &["keys"],
    keys: &[
        key(
            "keys",
            "The JSON Web Key Set: a file, which is reloaded when it changes, or an `http` or `https` URL.",
            ValueSchema::AnyOf(&[
                ValueSchema::Text(TextKind::File, &["jwks.json"]),
                ValueSchema::Text(TextKind::Url, &["https://issuer.example/.well-known/jwks.json"]),
            ]),
            |reader, node, it| it.keys = reader.key_set(node).unwrap_or_default(),
            |it| Some(write_key_set(&it.keys)),
        ),
        without(
            field!("issuer": ValueSchema::OneOrMany(&ValueSchema::Scalar("https://issuer.example")), [issuers] = scalar,
            "The accepted values of `iss`."),
            "Tokens of any issuer are accepted, if a key verifies them.",
        ),
        without(
            field!("audience": ValueSchema::OneOrMany(&ValueSchema::Scalar("api")), [audiences] = scalar,
            "A token must have one of these as `aud`."),
            "Tokens for other services are accepted, too.",
        ),
        without(
            field!("algorithms": ValueSchema::OneOrMany(&ValueSchema::Keyword(&[
                "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA",
            ])), [algorithms] = parse, "The accepted algorithms."),
            "All algorithms that the type of a key supports are accepted; `none` never is.",
        ),
        field!("leeway": duration(&["30s"]), leeway = duration => write_duration, default JwtSpec::default(),
            "How much the clock of the issuer may differ."),
        with_default(
            key(
                "from",
                "The part of the request that contains the token.",
                CREDENTIAL_SOURCE,
                |reader, node, it| it.from = reader.read(node, parse_source).unwrap_or_default(),
                |it| (it.from != CredentialSource::default()).then(|| OutputValue::text(&it.from)),
            ),
            || OutputValue::text(CredentialSource::default()),
        ),
        with_example(
            field!("refresh": duration(&["1min"]), refresh = positive_duration => write_duration, default JwtSpec::default(),
            "How often a key set is fetched from a URL. A token with an unknown key fetches it earlier."),
            || OutputValue::text("1min"),
        ),
    ],
};

impl PolicyReader<'_> {
    fn jwt(&mut self, node: &SyntaxNode) -> Option<JwtSpec> {
        let mut jwt = JwtSpec::default();
        match &node.value {
            SyntaxValue::Map(_) => self.read_map(node, &JWT, &mut jwt),
            _ => jwt.keys = self.key_set(node)?,
        }
        Some(jwt)
    }

    /// Reads a quota that refills.
    fn rate_quota(&mut self, node: &SyntaxNode) -> Option<Quota> {
        let quota = self.quota(node)?;
        if quota.is_concurrency() || quota.is_total() {
            let problem = format!("`{quota}` never refills");
            self.report_error(node.span, problem, "write a rate, as in `20/min`");
            return None;
        }
        Some(quota)
    }

    fn api_keys(&mut self, node: &SyntaxNode) -> Option<ApiKeysSpec> {
        let mut keys = ApiKeysSpec::default();
        match &node.value {
            SyntaxValue::Map(_) => self.read_map(node, &API_KEYS, &mut keys),
            _ => keys.file = self.path(node)?,
        }
        Some(keys)
    }

    fn key_set(&mut self, node: &SyntaxNode) -> Option<KeySetLocation> {
        let text = self.text(node)?;
        if !text.contains("://") {
            return self.path(node).map(KeySetLocation::File);
        }
        if text.contains('@') {
            let fix = "remove them, as in `https://issuer.example/jwks.json`";
            self.report_secret_error(node.span, "user or password in the URL of a key set", fix);
            return None;
        }
        self.read(node, parse_url).map(KeySetLocation::Url)
    }
}

fn parse_url(text: &str) -> Result<String, ValueError> {
    let fix = "write a URL, as in `https://issuer.example/jwks.json`";
    if let Some(at) = text.find(|c: char| c == '#' || !c.is_ascii_graphic()) {
        let problem = "fragment or invalid character in a URL";
        return Err(ValueError::new(problem, fix).with_span(at..text.len()));
    }
    let Some(scheme) = SCHEMES.into_iter().find(|scheme| text.starts_with(scheme)).map(str::len) else {
        return Err(ValueError::new("expected an `http` or `https` URL", fix));
    };
    let authority = text[scheme..].split(['/', '?']).next().unwrap_or_default();
    check_authority(text, scheme, authority, fix)?;
    Ok(text.to_owned())
}

fn write_key_set(keys: &KeySetLocation) -> OutputValue {
    match keys {
        KeySetLocation::File(file) => OutputValue::text(Path::display(file)),
        KeySetLocation::Url(url) => OutputValue::text(url),
    }
}

const SOURCES: [&str; 3] = ["header", "cookie", "query"];

fn parse_source(text: &str) -> Result<CredentialSource, ValueError> {
    let (first, name) = text.split_once(' ').map_or((text, ""), |(first, rest)| (first, rest.trim()));
    if SOURCES.contains(&first) && (name.is_empty() || name.contains(char::is_whitespace)) {
        let problem = format!("expected a name after `{first}`");
        return Err(ValueError::new(problem, format!("write `{first} NAME`")));
    }
    match first {
        "header" => Ok(CredentialSource::Header(header_name(name)?.into())),
        "cookie" => Ok(CredentialSource::Cookie(name.into())),
        "query" => Ok(CredentialSource::Query(name.into())),
        _ => {
            let (problem, fix) = unknown_word_error(first, &SOURCES);
            Err(ValueError::new(problem, fix))
        }
    }
}

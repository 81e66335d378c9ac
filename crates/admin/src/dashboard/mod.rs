//! The dashboard: plain files that are compiled into the binary.
//!
//! | file | is |
//! |---|---|
//! | `index.html`, `style.css`, `icon.svg` | the frame around the views |
//! | `app.js` | routes to the current view |
//! | `live.js` | the stream of snapshots, and the numbers of the last hour |
//! | `alerts.js` | the alerts above every view, and the numbers in the navigation |
//! | `api.js`, `operator.js` | requests, and those that need the operator token |
//! | `dom.js`, `format.js`, `chart.js` | elements, numbers and charts |
//! | `language.js`, `chinese.js` | the language of the page, and its texts in Chinese |
//! | `shape.js`, `quota_result.js` | the drawn traffic of the playground, and its result under a quota |
//! | `views/` | one file per view; `overload.js` has the panels of load and features, `numbers.js` and `overrides.js` those of a rule |
//!
//! The dashboard uses only the endpoints in `docs/admin-api.md`.

use axum::{Router, body::Body, response::Response, routing::get};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// Allows resources and requests of this origin only, and forbids framing.
const CSP_VALUE: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                        base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file with its path and content type.
#[derive(Clone, Copy)]
struct Asset {
    path: &'static str,
    kind: &'static str,
    text: &'static str,
}

const PAGE: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

macro_rules! assets {
    ($($path:literal $kind:ident $file:literal,)*) => {
        [$(Asset { path: $path, kind: $kind, text: include_str!($file) }),*]
    };
}

const ASSETS: [Asset; 28] = assets! {
    "/" PAGE "index.html",
    "/dashboard/alerts.js" SCRIPT "alerts.js",
    "/dashboard/api.js" SCRIPT "api.js",
    "/dashboard/app.js" SCRIPT "app.js",
    "/dashboard/chart.js" SCRIPT "chart.js",
    "/dashboard/chinese.js" SCRIPT "chinese.js",
    "/dashboard/dom.js" SCRIPT "dom.js",
    "/dashboard/format.js" SCRIPT "format.js",
    "/dashboard/icon.svg" PICTURE "icon.svg",
    "/dashboard/language.js" SCRIPT "language.js",
    "/dashboard/quota_result.js" SCRIPT "quota_result.js",
    "/dashboard/live.js" SCRIPT "live.js",
    "/dashboard/operator.js" SCRIPT "operator.js",
    "/dashboard/shape.js" SCRIPT "shape.js",
    "/dashboard/style.css" STYLE "style.css",
    "/dashboard/views/bans.js" SCRIPT "views/bans.js",
    "/dashboard/views/denials.js" SCRIPT "views/denials.js",
    "/dashboard/views/health.js" SCRIPT "views/health.js",
    "/dashboard/views/keys.js" SCRIPT "views/keys.js",
    "/dashboard/views/numbers.js" SCRIPT "views/numbers.js",
    "/dashboard/views/overload.js" SCRIPT "views/overload.js",
    "/dashboard/views/overrides.js" SCRIPT "views/overrides.js",
    "/dashboard/views/playground.js" SCRIPT "views/playground.js",
    "/dashboard/views/policy.js" SCRIPT "views/policy.js",
    "/dashboard/views/rule.js" SCRIPT "views/rule.js",
    "/dashboard/views/shadow.js" SCRIPT "views/shadow.js",
    "/dashboard/views/traffic.js" SCRIPT "views/traffic.js",
    "/dashboard/views/denial.js" SCRIPT "views/denial.js",
};

/// Serves the page and its files.
pub(crate) fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    ASSETS.into_iter().fold(Router::new(), |router, asset| {
        let tag = asset.etag();
        router.route(asset.path, get(move |headers: HeaderMap| async move { asset.respond(&tag, &headers) }))
    })
}

impl Asset {
    /// The entity tag: a hash of the content.
    fn etag(&self) -> HeaderValue {
        let mut hasher = DefaultHasher::new();
        self.text.hash(&mut hasher);
        HeaderValue::try_from(format!("\"{:016x}\"", hasher.finish()))
            .unwrap_or(HeaderValue::from_static("\"\""))
    }

    /// Responds with the file, or with 304 if the client has it.
    fn respond(&self, tag: &HeaderValue, request_headers: &HeaderMap) -> Response {
        let known = request_headers.get_all(header::IF_NONE_MATCH).iter().any(|had| contains_etag(had, tag));
        let mut response = Response::new(if known { Body::empty() } else { Body::from(self.text) });
        if known {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        }
        let headers = response.headers_mut();
        headers.insert(header::ETAG, tag.clone());
        for (name, value) in [
            (header::CONTENT_TYPE, self.kind),
            (header::CACHE_CONTROL, "no-cache"),
            (header::CONTENT_SECURITY_POLICY, CSP_VALUE),
            (header::REFERRER_POLICY, "no-referrer"),
            (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

/// Whether a list of entity tags contains this one.
fn contains_etag(list: &HeaderValue, tag: &HeaderValue) -> bool {
    let (Ok(list), Ok(tag)) = (list.to_str(), tag.to_str()) else { return false };
    list.split(',').map(|one| one.trim().trim_start_matches("W/")).any(|one| one == tag || one == "*")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::BTreeSet, fs, path::Path};

    fn files(folder: &Path, under: &str) -> Vec<String> {
        let mut found = Vec::new();
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = format!("{under}{}", path.file_name().unwrap().to_string_lossy());
            match path.is_dir() {
                true => found.extend(files(&path, &format!("{name}/"))),
                false => found.push(name),
            }
        }
        found
    }

    #[test]
    fn every_file_is_served() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/dashboard");
        let expected: BTreeSet<_> = files(&folder, "/dashboard/")
            .into_iter()
            .filter(|file| file != "/dashboard/mod.rs")
            .map(|file| if file == "/dashboard/index.html" { "/".to_owned() } else { file })
            .collect();
        assert_eq!(ASSETS.iter().map(|asset| asset.path.to_owned()).collect::<BTreeSet<_>>(), expected);
    }

    /// A missing import would break the page, and no compiler checks it.
    #[test]
    fn every_import_is_a_file() {
        for asset in ASSETS.iter().filter(|asset| asset.kind == SCRIPT) {
            let folder = asset.path.rsplit_once('/').unwrap().0;
            for line in asset.text.lines().filter(|line| line.ends_with(".js';")) {
                let (_, name) = line.split_once(" from '").unwrap();
                let name = name.trim_end_matches("';");
                let path = match name.strip_prefix("../") {
                    Some(rest) => format!("{}/{rest}", folder.rsplit_once('/').unwrap().0),
                    None => format!("{folder}/{}", name.trim_start_matches("./")),
                };
                assert!(ASSETS.iter().any(|asset| asset.path == path), "{} imports {path}", asset.path);
            }
        }
    }

    #[test]
    fn matching_etag_returns_304() {
        let page = ASSETS[0];
        let tag = page.etag();
        let with = |tags: &str| {
            let headers = HeaderMap::from_iter([(header::IF_NONE_MATCH, tags.parse().unwrap())]);
            page.respond(&tag, &headers).status().as_u16()
        };
        assert_eq!(page.respond(&tag, &HeaderMap::new()).status(), 200);
        assert_eq!(with("\"0\""), 200);
        assert_eq!(with(&format!("\"0\", W/{}", tag.to_str().unwrap())), 304);
    }
}

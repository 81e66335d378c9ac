//! `docs/admin-api.md` lists the routes of the admin API, and no others.

use crate::root;
use std::{collections::BTreeSet, fs};

/// The methods, and the functions in the source that route them.
const METHODS: [(&str, &[&str]); 4] =
    [("GET", &["get", "query_route"]), ("POST", &["post"]), ("PUT", &["put"]), ("DELETE", &["delete"])];

/// The routes in the source, as `GET /api/v1/denials/ID`.
fn served_routes() -> BTreeSet<String> {
    let source = fs::read_to_string(root().join("crates/admin/src/routes.rs")).unwrap();
    let mut routes = BTreeSet::new();
    for route in source.split(".route(\"").skip(1) {
        let (path, handlers) = route.split_once('"').unwrap();
        let mut depth = 1;
        let end = handlers.find(|c: char| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            depth == 0
        });
        let handlers = &handlers[..end.unwrap()];
        let words: BTreeSet<_> = handlers.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        let path = path.replace("{id}", "ID").replace("{name}", "NAME");
        assert!(!path.contains('{'), "{path}: name this parameter here and in docs/admin-api.md");
        for (method, names) in METHODS {
            if names.iter().any(|name| words.contains(name)) {
                routes.insert(format!("{method} {path}"));
            }
        }
    }
    routes
}

#[test]
fn admin_api_page_lists_all_routes() {
    let page = fs::read_to_string(root().join("docs/admin-api.md")).unwrap();
    let (_, table) = page.split_once("| request | token | returns |\n|---|---|---|\n").unwrap();
    let mut listed = BTreeSet::new();
    for row in table.lines().take_while(|line| line.starts_with('|')) {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let request = cells[1].trim_matches('`').split('?').next().unwrap();
        let needs_token = request.contains(" /api/") || request.ends_with(" /reload");
        assert_eq!(cells[2], if needs_token { "yes" } else { "" }, "{request}");
        assert!(listed.insert(request.to_owned()), "{request} is listed twice");
    }
    let served = served_routes();
    assert!(served.len() > 20, "{served:?}");
    assert_eq!(served, listed, "crates/admin/src/routes.rs and the table of docs/admin-api.md");
    for code in page.split('`').skip(1).step_by(2) {
        let is_request = METHODS.iter().any(|(method, _)| code.starts_with(&format!("{method} /")));
        let request = code.split('?').next().unwrap();
        assert!(!is_request || served.contains(request), "`{code}` is not a route");
    }
}

//! `docs/http-api.md` lists the endpoints of `docs/openapi.json`.

use crate::{assert_current, root};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
};

const HEADER: &str = "# HTTP API of decisions

This page lists the endpoints of `decisions` in a policy. It is generated from [openapi.json](openapi.json);
`TIDEGATE_BLESS=1 cargo test -p tidegate-testkit --test reference` writes it. [decisions-over-http.md](decisions-over-http.md) explains how
to use them, and [admin-api.md](admin-api.md) documents the API for operators, which has another address.
";

#[test]
fn http_api_page_is_current() {
    let text = fs::read_to_string(root().join("docs/openapi.json")).unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    let mut page = Page { document: &document, text: HEADER.to_owned(), schemas: BTreeSet::new() };
    write!(page.text, "\n{}\n\n{}\n", string(&document["info"]["description"]), page.authentication())
        .unwrap();
    let mut operations = 0;
    for (path, methods) in object(&document["paths"]) {
        for (method, operation) in object(methods) {
            page.write_operation(&method.to_uppercase(), path, operation);
            operations += 1;
        }
    }
    assert!(operations >= 10, "{operations}");
    page.write_schemas();
    assert_current("http-api.md", &page.text);
}

struct Page<'a> {
    document: &'a Value,
    text: String,
    /// The schemas that endpoints refer to.
    schemas: BTreeSet<String>,
}

impl<'a> Page<'a> {
    /// Follows a reference within the document.
    fn resolve(&self, value: &'a Value) -> &'a Value {
        match value.get("$ref") {
            Some(reference) => self.document.pointer(string(reference).trim_start_matches('#')).unwrap(),
            None => value,
        }
    }

    fn authentication(&self) -> String {
        let schemes = &self.document["components"]["securitySchemes"];
        assert_eq!(schemes["bearer"]["scheme"], "bearer");
        let header = string(&schemes["token"]["name"]);
        format!(
            "With `tokens` in the policy, a caller sends a token as `Authorization: Bearer TOKEN` or `{header}: TOKEN`. Bodies are JSON."
        )
    }

    fn write_operation(&mut self, method: &str, path: &str, operation: &'a Value) {
        write!(self.text, "\n## `{method} {path}`\n\n{}", string(&operation["summary"])).unwrap();
        if let Some(description) = operation.get("description") {
            write!(self.text, " {}", string(description)).unwrap();
        }
        self.text.push('\n');
        let parameters = operation["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
        if !parameters.is_empty() {
            self.text.push_str("\n| parameter | in | type | meaning |\n|---|---|---|---|\n");
        }
        for parameter in parameters {
            let parameter = self.resolve(parameter);
            let kind = self.describe(&parameter["schema"]);
            let (name, place) = (string(&parameter["name"]), string(&parameter["in"]));
            writeln!(self.text, "| `{name}` | {place} | {kind} | {} |", string(&parameter["description"]))
                .unwrap();
        }
        if let Some(body) = operation.get("requestBody") {
            let content = &body["content"]["application/json"];
            let kind = self.describe(&content["schema"]);
            writeln!(self.text, "\nThe body is {kind}.").unwrap();
            let example =
                content.get("example").unwrap_or_else(|| panic!("{path}: no example in docs/openapi.json"));
            writeln!(self.text, "\n```sh\ncurl -d '{}' http://127.0.0.1:8090{path}\n```", compact(example))
                .unwrap();
        }
        self.text.push_str("\n| status | meaning | body | headers |\n|---|---|---|---|\n");
        for (status, response) in object(&operation["responses"]) {
            let response = self.resolve(response);
            let contents: Vec<_> = object(&response["content"])
                .into_iter()
                .map(|(kind, content)| format!("{} (`{kind}`)", self.describe(&content["schema"])))
                .collect();
            let headers: Vec<_> =
                object(&response["headers"]).into_keys().map(|name| format!("`{name}`")).collect();
            writeln!(
                self.text,
                "| {status} | {} | {} | {} |",
                string(&response["description"]),
                contents.join(", "),
                headers.join(", ")
            )
            .unwrap();
        }
    }

    fn write_schemas(&mut self) {
        let mut written = BTreeSet::new();
        self.text.push_str("\n## Objects\n");
        while let Some(name) = self.schemas.difference(&written).next().cloned() {
            let schema = &self.document["components"]["schemas"][&name];
            write!(self.text, "\n### `{name}`\n\n").unwrap();
            if let Some(description) = schema.get("description") {
                writeln!(self.text, "{}", string(description)).unwrap();
            }
            let required = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
            let fields = object(&schema["properties"]);
            if !fields.is_empty() {
                self.text.push_str("| field | type | default | meaning |\n|---|---|---|---|\n");
            }
            for (field, schema) in fields {
                let kind = self.describe(schema);
                let default = match schema.get("default") {
                    Some(default) => format!("`{default}`"),
                    None if required.contains(&Value::String(field.clone())) => "required".to_owned(),
                    None => String::new(),
                };
                let meaning = self.resolve(schema)["description"].as_str();
                let meaning =
                    meaning.unwrap_or_else(|| panic!("{name}.{field}: no description in docs/openapi.json"));
                writeln!(self.text, "| `{field}` | {kind} | {default} | {meaning} |").unwrap();
            }
            written.insert(name);
        }
        let headers = object(&self.document["components"]["headers"]);
        self.text.push_str("\n## Headers of responses\n\n| header | meaning |\n|---|---|\n");
        for (name, header) in headers {
            writeln!(self.text, "| `{name}` | {} |", string(&header["description"])).unwrap();
        }
    }

    /// Describes the type of a value.
    fn describe(&mut self, schema: &'a Value) -> String {
        if let Some(reference) = schema.get("$ref") {
            let name = string(reference).rsplit('/').next().unwrap().to_owned();
            let link = format!("[`{name}`](#{})", name.to_lowercase());
            self.schemas.insert(name);
            return link;
        }
        let alternatives = ["oneOf", "anyOf"].iter().find_map(|key| schema.get(key)?.as_array());
        if let (Some(all), None) = (alternatives, schema.get("type")) {
            return all.iter().map(|one| self.describe(one)).collect::<Vec<_>>().join(" or ");
        }
        if let Some(words) = schema.get("enum").and_then(Value::as_array) {
            return words.iter().map(|word| format!("`{}`", string(word))).collect::<Vec<_>>().join(", ");
        }
        if let Some(only) = schema.get("const") {
            return format!("`{only}`");
        }
        let kinds: Vec<_> = match &schema["type"] {
            Value::Array(kinds) => kinds.iter().map(string).filter(|kind| *kind != "null").collect(),
            kind => vec![string(kind)],
        };
        match (kinds.as_slice(), schema.get("items")) {
            (["array"], Some(items)) => format!("a list of {}", self.describe(items)),
            (["object"], _) if schema.get("properties").is_some() => {
                let fields = object(&schema["properties"]);
                let fields: Vec<_> = fields
                    .into_iter()
                    .map(|(name, field)| format!("`{name}`: {}", self.describe(field)))
                    .collect();
                format!("an object with {}", fields.join(" and "))
            }
            _ => {
                let bounds = ["minimum", "exclusiveMinimum", "maximum"]
                    .map(|key| schema.get(key).map(Value::to_string));
                match bounds {
                    [Some(min), _, Some(max)] => format!("{} from {min} to {max}", kinds.join(" or ")),
                    [_, Some(min), Some(max)] => format!("{} above {min}, up to {max}", kinds.join(" or ")),
                    _ => kinds.join(" or "),
                }
            }
        }
    }
}

/// The entries of an object by name, because the order of `serde_json` depends on its features; none if it is missing.
fn object(value: &Value) -> BTreeMap<&String, &Value> {
    value.as_object().into_iter().flatten().collect()
}

/// An object on one line.
fn compact(value: &Value) -> String {
    let entries: Vec<_> =
        object(value).into_iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    format!("{{{}}}", entries.join(","))
}

fn string(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("expected a string: {value}"))
}

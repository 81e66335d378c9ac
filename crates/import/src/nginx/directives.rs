//! Directives that are not imported: which ones are reported as a loss, and why.

use super::lexer::Directive;
use crate::LossKind;

/// Whether a directive is only valid in `http`.
pub(super) fn is_http_directive(name: &str) -> bool {
    const HTTP_DIRECTIVES: [&str; 12] = [
        "server",
        "upstream",
        "limit_req_zone",
        "limit_conn_zone",
        "geo",
        "map",
        "limit_req",
        "limit_conn",
        "client_max_body_size",
        "set_real_ip_from",
        "real_ip_header",
        "real_ip_recursive",
    ];
    HTTP_DIRECTIVES.contains(&name)
}

/// Directives about processes, I/O and buffers of nginx, which do not apply to the gateway and are not reported.
const IGNORED_DIRECTIVES: [&str; 66] = [
    "accept_mutex",
    "auth_basic_user_file",
    "auth_delay",
    "auth_request_set",
    "charset",
    "client_body_buffer_size",
    "client_body_temp_path",
    "client_header_buffer_size",
    "daemon",
    "default_type",
    "env",
    "error_log",
    "etag",
    "events",
    "fastcgi_temp_path",
    "geo_hash_max_size",
    "keepalive_requests",
    "large_client_header_buffers",
    "limit_conn_log_level",
    "limit_req_log_level",
    "lingering_close",
    "load_module",
    "lock_file",
    "log_format",
    "log_not_found",
    "log_subrequest",
    "map_hash_bucket_size",
    "map_hash_max_size",
    "master_process",
    "merge_slashes",
    "open_file_cache",
    "output_buffers",
    "pcre_jit",
    "pid",
    "postpone_output",
    "proxy_buffer_size",
    "proxy_buffering",
    "proxy_buffers",
    "proxy_busy_buffers_size",
    "proxy_http_version",
    "proxy_max_temp_file_size",
    "proxy_redirect",
    "proxy_request_buffering",
    "proxy_send_timeout",
    "proxy_temp_file_write_size",
    "proxy_temp_path",
    "reset_timedout_connection",
    "resolver",
    "resolver_timeout",
    "scgi_temp_path",
    "send_timeout",
    "sendfile",
    "server_names_hash_bucket_size",
    "server_names_hash_max_size",
    "server_tokens",
    "tcp_nodelay",
    "tcp_nopush",
    "thread_pool",
    "types",
    "types_hash_bucket_size",
    "types_hash_max_size",
    "user",
    "uwsgi_temp_path",
    "variables_hash_max_size",
    "worker_processes",
    "worker_rlimit_nofile",
];

/// Whether a directive of this name may restrict requests, on any level.
pub(super) fn can_protect(name: &str) -> bool {
    const PROTECTIVE_PREFIXES: [&str; 13] = [
        "auth_",
        "limit_",
        "access_by_",
        "rewrite_by_",
        "server_rewrite_by_",
        "js_access",
        "modsecurity",
        "naxsi",
        "secure_link",
        "ssl_verify_client",
        "satisfy",
        "perl",
        "waf",
    ];
    ["allow", "deny", "internal", "return", "if", "include"].contains(&name)
        || PROTECTIVE_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Response headers that protect users in browsers.
const SECURITY_HEADERS: [&str; 9] = [
    "strict-transport-security",
    "content-security-policy",
    "content-security-policy-report-only",
    "x-frame-options",
    "x-content-type-options",
    "referrer-policy",
    "permissions-policy",
    "cross-origin-opener-policy",
    "cross-origin-resource-policy",
];

/// Prefixes of directives that change only I/O, storage or logging.
const COSMETIC_PREFIXES: [&str; 29] = [
    "absolute_redirect",
    "add_",
    "aio",
    "ancient_browser",
    "chunked_transfer_encoding",
    "client_",
    "debug_",
    "directio",
    "disable_symlinks",
    "empty_gif",
    "error_",
    "http2",
    "http3",
    "if_modified_since",
    "ignore_invalid_headers",
    "image_filter",
    "keepalive",
    "log_",
    "max_ranges",
    "mirror",
    "open_",
    "port_in_redirect",
    "proxy_",
    "server_",
    "ssi",
    "stub_status",
    "sub_filter",
    "types",
    "worker_",
];

/// Returns why a directive is not imported, and the kind of the loss; `None` if it is not worth reporting.
pub(super) fn describe_loss(directive: &Directive) -> Option<(LossKind, &'static str)> {
    let name = directive.name.as_str();
    let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    if IGNORED_DIRECTIVES.contains(&name) || name == "listen" || name == "server_name" {
        return None;
    }
    let cosmetic = |reason| Some((LossKind::Cosmetic, reason));
    let protection = |reason| Some((LossKind::Protection, reason));
    match name {
        "root" | "alias" | "index" | "autoindex" | "try_files" | "expires" => {
            cosmetic("the gateway does not serve files; route these requests to a file server")
        }
        "rewrite" | "error_page" | "set" | "break" => {
            cosmetic("the gateway does not rewrite requests; do it in the upstream")
        }
        "return" | "if" | "limit_except" | "internal" => {
            protection("not imported on this level; write a route or a rule with `match`")
        }
        "location" => protection("`location` is only valid in `server`; this one is not imported"),
        "allow" | "deny" => protection("not imported on this level; write a rule with `deny`"),
        "satisfy" if directive.arg(0) == Some("all") => None,
        "satisfy" => protection("access lists apply to all requests, authenticated or not"),
        "auth_basic" | "auth_request" | "auth_jwt" | "ssl_verify_client"
            if directive.arg(0) == Some("off") =>
        {
            None
        }
        "ssl_verify_client" => protection("client certificates are verified per server, not per location"),
        "access_log" => cosmetic("write `log: combined` or `log: json`"),
        "real_ip_header" | "set_real_ip_from" | "real_ip_recursive" => {
            protection("trusted proxies apply to all requests; write `trusted-proxies`")
        }
        "stream" | "mail" => cosmetic("only the `http` block is imported"),
        "limit_zone" => protection("removed from nginx; write `limit_conn_zone` and import again"),
        "split_clients" => {
            cosmetic("random splits are not supported; write rules that `match` a header or a cookie")
        }
        "proxy_limit_rate" => cosmetic("write a rule with `bandwidth`"),
        "add_header" => {
            let header = directive.arg(0).unwrap_or_default().to_ascii_lowercase();
            match SECURITY_HEADERS.contains(&header.as_str()) {
                true => protection("responses are forwarded unchanged; add this header in the upstream"),
                false => cosmetic("responses are forwarded unchanged"),
            }
        }
        "proxy_hide_header" | "proxy_cookie_flags" => {
            protection("responses are forwarded unchanged; do it in the upstream")
        }
        _ if starts(&["auth_"]) => {
            protection("the gateway does not authenticate clients; do it in the upstream")
        }
        _ if can_protect(name) => protection("a policy does not support this directive"),
        _ if starts(&["ssl_", "http2"]) => cosmetic("the gateway has its own TLS settings"),
        _ if starts(&["gzip", "brotli", "sub_filter", "add_", "proxy_cookie", "proxy_pass_header"]) => {
            cosmetic("responses are forwarded unchanged")
        }
        _ if starts(&["proxy_cache", "proxy_store"]) => cosmetic("caching is not supported"),
        _ if starts(&["proxy_next_upstream"]) => cosmetic("write `retries` for the upstream"),
        _ if starts(&["fastcgi", "uwsgi", "scgi", "memcached", "grpc"]) => {
            cosmetic("only HTTP upstreams are imported")
        }
        _ if starts(&COSMETIC_PREFIXES) => cosmetic("a policy does not support this directive"),
        // An unknown directive, for example of a third-party module, may restrict access.
        _ => protection("unknown directive; it may restrict access"),
    }
}

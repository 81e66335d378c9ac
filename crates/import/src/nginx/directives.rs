//! Directives that are not carried over: of which that is worth a word, and of which it is not.

use super::lexer::Directive;
use crate::LossKind;

/// What stands in `http`.
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

/// How nginx runs, how it moves bytes and how much room it takes: a gateway has its own ways.
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

/// Whether a directive of this name may keep requests away, wherever it stands.
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

/// Headers of answers that browsers protect users by.
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

/// Starts of names of directives that only change how bytes are moved, stored or written down.
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

/// Why a directive is not carried over, and what that means; `None` if it is not worth a word.
pub(super) fn describe_loss(directive: &Directive) -> Option<(LossKind, &'static str)> {
    let name = directive.name.as_str();
    let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    if IGNORED_DIRECTIVES.contains(&name) || name == "listen" || name == "server_name" {
        return None;
    }
    let decoration = |reason| Some((LossKind::Cosmetic, reason));
    let protection = |reason| Some((LossKind::Protection, reason));
    match name {
        "root" | "alias" | "index" | "autoindex" | "try_files" | "expires" => {
            decoration("a gateway serves no files; route such requests to a server that does")
        }
        "rewrite" | "error_page" | "set" | "break" => {
            decoration("a gateway rewrites nothing; let the server behind it do so")
        }
        "return" | "if" | "limit_except" | "internal" => {
            protection("it stands where it is not carried over; write a route or a rule with `match`")
        }
        "location" => protection("a location is a block in a server; nothing of this one is carried over"),
        "allow" | "deny" => protection("it stands where it is not carried over; write a rule with `deny`"),
        "satisfy" if directive.arg(0) == Some("all") => None,
        "satisfy" => protection("lists of addresses hold for all requests, whoever they are by"),
        "auth_basic" | "auth_request" | "auth_jwt" | "ssl_verify_client"
            if directive.arg(0) == Some("off") =>
        {
            None
        }
        "ssl_verify_client" => protection("clients are asked for certificates by a server or by none"),
        "access_log" => decoration("write `log: combined`, or `log: json`"),
        "real_ip_header" | "set_real_ip_from" | "real_ip_recursive" => {
            protection("proxies are trusted for all requests or for none; write `trusted-proxies`")
        }
        "stream" | "mail" => decoration("only what stands in `http` is carried over"),
        "limit_zone" => {
            protection("nginx does not know this any more; write `limit_conn_zone`, and import again")
        }
        "split_clients" => {
            decoration("requests are not divided by chance; write rules that `match` a header or a cookie")
        }
        "proxy_limit_rate" => decoration("write a rule with `bandwidth`"),
        "add_header" => {
            let header = directive.arg(0).unwrap_or_default().to_ascii_lowercase();
            match SECURITY_HEADERS.contains(&header.as_str()) {
                true => {
                    protection("answers are passed on as they are; let the server behind it add this header")
                }
                false => decoration("answers are passed on as they are"),
            }
        }
        "proxy_hide_header" | "proxy_cookie_flags" => {
            protection("answers are passed on as they are; let the server behind it do so")
        }
        _ if starts(&["auth_"]) => {
            protection("a gateway asks nobody who they are; let the server behind it do so")
        }
        _ if can_protect(name) => protection("a policy has no word for it"),
        _ if starts(&["ssl_", "http2"]) => decoration("TLS is as the gateway has it"),
        _ if starts(&["gzip", "brotli", "sub_filter", "add_", "proxy_cookie", "proxy_pass_header"]) => {
            decoration("answers are passed on as they are")
        }
        _ if starts(&["proxy_cache", "proxy_store"]) => decoration("nothing is cached"),
        _ if starts(&["proxy_next_upstream"]) => decoration("write `retries` for the upstream"),
        _ if starts(&["fastcgi", "uwsgi", "scgi", "memcached", "grpc"]) => {
            decoration("only upstreams that speak HTTP are carried over")
        }
        _ if starts(&COSMETIC_PREFIXES) => decoration("a policy has no word for it"),
        // Nobody here knows what it does.
        _ => protection("a directive that is not known here, and may keep requests away"),
    }
}

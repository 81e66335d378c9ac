//! Directives that are not carried over: of which that is worth a word, and of which it is not.

use super::lexer::Directive;

/// What stands in `http`.
pub(super) fn is_of_http(name: &str) -> bool {
    const OF_HTTP: [&str; 12] = [
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
    OF_HTTP.contains(&name)
}

/// How nginx runs, how it moves bytes and how much room it takes: a gateway has its own ways.
const NOT_WORTH_A_WORD: [&str; 64] = [
    "accept_mutex",
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
    "internal",
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

/// Why a directive is not carried over; `None` if that is not worth a word.
pub(super) fn reason(directive: &Directive) -> Option<&'static str> {
    let name = directive.name.as_str();
    let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    if NOT_WORTH_A_WORD.contains(&name) || name == "listen" || name == "server_name" {
        return None;
    }
    Some(match name {
        "root" | "alias" | "index" | "autoindex" | "try_files" | "expires" => {
            "a gateway serves no files; route such requests to a server that does"
        }
        "return" | "rewrite" | "error_page" | "set" | "break" => {
            "a gateway answers nothing and rewrites nothing itself; let the server behind it do so"
        }
        "if" | "limit_except" => {
            "conditions are not carried over, and nothing that stands in them; write rules with `match`"
        }
        "location" => "a location is a block in a server; nothing of this one is carried over",
        "allow" | "deny" | "satisfy" => "write a rule with `deny` and `allow`",
        "access_log" => "write `log: combined`, or `log: json`",
        "real_ip_header" | "set_real_ip_from" | "real_ip_recursive" => {
            "proxies are trusted for all requests or for none; write `trusted-proxies`"
        }
        "stream" | "mail" => "only what stands in `http` is carried over",
        "limit_zone" => "nginx does not know this any more; write `limit_conn_zone`, and import again",
        "split_clients" => {
            "requests are not divided by chance; write rules that `match` a header or a cookie"
        }
        "proxy_limit_rate" => "write a rule with `bandwidth`",
        _ if starts(&["ssl_", "http2"]) => "TLS is as the gateway has it",
        _ if starts(&["gzip", "brotli", "sub_filter", "add_header", "expires", "proxy_hide_header"]) => {
            "answers are passed on as they are"
        }
        _ if starts(&["auth_"]) => "a gateway asks nobody who they are; let the server behind it do so",
        _ if starts(&["proxy_cache", "proxy_store"]) => "nothing is cached",
        _ if starts(&["proxy_next_upstream"]) => "write `retries` for the upstream",
        _ if starts(&["fastcgi", "uwsgi", "scgi", "memcached", "grpc"]) => {
            "only upstreams that speak HTTP are carried over"
        }
        _ => "a policy has no word for it",
    })
}

//! A generated access log, with recurring clients and paths that match the rules.

use std::io::{self, Read};

/// A log in the combined format, generated as it is read.
pub(crate) struct GeneratedLog {
    random: fastrand::Rng,
    bytes_left: u64,
    /// The number of lines so far; a thousand lines are one second.
    lines: u64,
    chunk: Vec<u8>,
    position: usize,
}

/// The number of clients. All of them appear within the first megabytes.
const CLIENT_COUNT: u32 = 50_000;

const PATHS: [&str; 8] =
    ["/", "/login", "/api/users/", "/api/orders/", "/search?q=", "/static/app.js", "/blog/", "/images/"];
const AGENT: &str =
    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0.0.0 Safari/537.36";

/// Ten rules: two for all requests, the others for some of them. Each rule denies some requests.
pub(crate) const POLICY: &str = "\
rules:
  - { name: everybody, key: ip, quota: 60/min burst 20 }
  - { name: in-all, quota: 900/s burst 2000 }
  - { name: login, match: { path: /login }, key: ip, quota: 5/min }
  - { name: users, match: { path: '/api/users/{id}' }, key: ip, quota: 30/min sliding-window }
  - { name: orders, match: { path: /api/orders/** }, key: ip, quota: 20/min fixed-window }
  - { name: search, match: { method: GET, path: /search }, key: ip, quota: 10/min }
  - { name: static, match: { path: /static/** }, key: ip, quota: 100/min burst 50 }
  - { name: blog, match: { path: /blog/** }, key: ip, quota: 40/min }
  - { name: images, match: { path: /images/**, method: [GET, HEAD] }, key: ip, quota: 100/min burst 100 }
  - { name: writes, match: { method: [POST, PUT, DELETE] }, key: ip, quota: 10/min }
";

impl GeneratedLog {
    pub(crate) fn new(bytes: u64) -> Self {
        Self {
            random: fastrand::Rng::with_seed(7),
            bytes_left: bytes,
            lines: 0,
            chunk: Vec::new(),
            position: 0,
        }
    }

    fn write_line(&mut self) {
        let random = &mut self.random;
        // Some clients are far more frequent than others.
        let (a, b) = (random.u32(0..CLIENT_COUNT), random.u32(0..CLIENT_COUNT));
        let client = (u64::from(a) * u64::from(b) / u64::from(CLIENT_COUNT)) as u32;
        let path = PATHS[random.usize(0..PATHS.len())];
        let method = if random.u8(0..10) == 0 { "POST" } else { "GET" };
        let number = random.u32(0..100_000);
        let second = self.lines / 1_000;
        let (day, of_day) = (1 + second / 86_400, second % 86_400);
        let tail = if path.ends_with(['/', '=']) && path != "/" { number.to_string() } else { String::new() };
        // Writing to a vector does not fail.
        let _ = io::Write::write_fmt(
            &mut self.chunk,
            format_args!(
                "10.{}.{}.{} - - [{day:02}/Feb/2024:{:02}:{:02}:{:02} +0000] \"{method} {path}{tail} HTTP/1.1\" 200 {number} \
                 \"https://example.com/\" \"{AGENT}\"\n",
                client >> 16,
                client >> 8 & 255,
                client & 255,
                of_day / 3_600,
                of_day / 60 % 60,
                of_day % 60
            ),
        );
        self.lines += 1;
    }
}

impl Read for GeneratedLog {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.position == self.chunk.len() {
            self.chunk.clear();
            self.position = 0;
            while self.chunk.len() < 1 << 16 && (self.chunk.len() as u64) < self.bytes_left {
                self.write_line();
            }
            self.bytes_left = self.bytes_left.saturating_sub(self.chunk.len() as u64);
        }
        let count = into.len().min(self.chunk.len() - self.position);
        into[..count].copy_from_slice(&self.chunk[self.position..self.position + count]);
        self.position += count;
        Ok(count)
    }
}

//! A log that is made up while it is read: clients that come again and again, and paths that rules are about.

use std::io::{self, Read};

/// A log of so many bytes in the combined format, made up as it is read.
pub(crate) struct Traffic {
    random: fastrand::Rng,
    left: u64,
    /// Lines so far; a thousand are one second.
    lines: u64,
    piece: Vec<u8>,
    given: usize,
}

/// How many clients there are. All of them come within the first megabytes.
const CLIENTS: u32 = 50_000;

const PATHS: [&str; 8] =
    ["/", "/login", "/api/users/", "/api/orders/", "/search?q=", "/static/app.js", "/blog/", "/images/"];
const AGENT: &str =
    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0.0.0 Safari/537.36";

/// Ten rules: two for all requests, the others for parts of them. Some of each are denied.
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

impl Traffic {
    pub(crate) fn new(bytes: u64) -> Self {
        Self { random: fastrand::Rng::with_seed(7), left: bytes, lines: 0, piece: Vec::new(), given: 0 }
    }

    fn line(&mut self) {
        let random = &mut self.random;
        // Some come far more often than others.
        let (a, b) = (random.u32(0..CLIENTS), random.u32(0..CLIENTS));
        let client = (u64::from(a) * u64::from(b) / u64::from(CLIENTS)) as u32;
        let path = PATHS[random.usize(0..PATHS.len())];
        let method = if random.u8(0..10) == 0 { "POST" } else { "GET" };
        let number = random.u32(0..100_000);
        let second = self.lines / 1_000;
        let (day, of_day) = (1 + second / 86_400, second % 86_400);
        let tail = if path.ends_with(['/', '=']) && path != "/" { number.to_string() } else { String::new() };
        // Writing to a vector does not fail.
        let _ = io::Write::write_fmt(
            &mut self.piece,
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

impl Read for Traffic {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.given == self.piece.len() {
            self.piece.clear();
            self.given = 0;
            while self.piece.len() < 1 << 16 && (self.piece.len() as u64) < self.left {
                self.line();
            }
            self.left = self.left.saturating_sub(self.piece.len() as u64);
        }
        let count = into.len().min(self.piece.len() - self.given);
        into[..count].copy_from_slice(&self.piece[self.given..self.given + count]);
        self.given += count;
        Ok(count)
    }
}

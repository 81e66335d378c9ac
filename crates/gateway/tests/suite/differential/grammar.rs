//! Generates requests and responses: valid ones, and ones with errors that servers handle differently.

use fastrand::Rng;

/// Generates the bytes of one exchange. The same number gives the same bytes.
pub(super) struct Generator {
    seed: u64,
    rng: Rng,
    out: Vec<u8>,
    /// The probability of an unusual element.
    oddity: f64,
}

/// The last request of each exchange. It closes the connection.
pub(super) const LAST_REQUEST: &[u8] = b"GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

const METHODS: &[&str] = &["GET", "POST", "POST", "PUT", "HEAD", "DELETE", "OPTIONS"];
const ODD_METHODS: &[&str] =
    &["get", "G(T", "CONNECT", "TRACE", "", "M-SEARCH", "G\0T", "P\u{f6}ST", " GET", "GET\t"];
const TARGETS: &[&str] = &["/a", "/b/c?d=e", "/", "/%7ea", "/a?b?c", "/a%20b", "/a;b=c", "/x/y.z?q=%2f"];
const ODD_TARGETS: &[&str] = &[
    "*",
    "http://b/x",
    "http://b",
    "http://b?x",
    "https://b:443/x",
    "http://u@b/x",
    "b:80",
    "",
    "/a b",
    "/a\tb",
    "/%zz",
    "/%",
    "/a/../b",
    "/../a",
    "//a",
    "/a#b",
    "/\u{7f}",
    "/\u{e9}",
    "/a\0",
    "/a|b",
    "/\"",
    "/<a>",
    "/a?<b>",
    "foo://b/x",
    "http:///x",
    "/a%2fb",
    "/a\\b",
    "?x",
    "x/y",
    "a/b://c/d",
    "/a^b",
    "/a?^`",
    "/a%00",
    "http://:80/x",
    "http://b:x/",
    "/a\u{b}b",
    "://b/x",
    "http://b/a/./b",
    "http:/b/x",
    "/http://b/x",
    "HTTP://b/x",
    "/{a}",
];
const ODD_VERSIONS: &[&str] = &[
    "HTTP/1.0",
    "HTTP/1.0",
    "HTTP/0.9",
    "HTTP/1.2",
    "HTTP/2.0",
    "",
    "http/1.1",
    "HTTP/1.1 ",
    "HTTP/01.1",
    "HTTP/1.10",
    "HTTP/1",
    "HTTP/1.1x",
    "HTTP/ 1.1",
    "ICY/1.1",
];
const ODD_LINE_ENDS: &[&str] = &["\n", "\r", "\r\r\n", "\n\r\n", " \r\n", "\0\r\n", "\r\n \r\n"];
const ODD_SPACES: &[&str] = &["  ", "\t", "", "\u{b}", "\r"];
const HOSTS: &[&str] = &["a", "example.org", "a:8080", "A.Example"];
const ODD_HOSTS: &[&str] = &[
    "", "a b", "a/b", "a@b", "a,b", "[::1]", "[::1]:80", "a:b", "a\tb", "a\0", "a?b", "a#b", "\u{e9}",
    "a..b", ":80", "a:", "-",
];
const ODD_LENGTHS: &[&str] = &[
    "+5",
    "05",
    "5, 5",
    "5,6",
    "5;",
    "0x5",
    "-5",
    "",
    "5 5",
    "5\0",
    "99999999999999999999",
    "18446744073709551621",
    "5.0",
    "5,",
    ",5",
    "\t5",
    "5\t",
    "5\u{b}",
    "\"5\"",
    "5e0",
    "00000000000000000000000005",
    "4",
    "6",
    "500",
];
const ODD_CODINGS: &[&str] = &[
    "Chunked",
    "xchunked",
    "chunked ",
    "\tchunked",
    "\u{b}chunked",
    "chunked\u{b}",
    "\"chunked\"",
    "'chunked'",
    "chunked, identity",
    "identity, chunked",
    "gzip, chunked",
    "chunked, chunked",
    ", chunked",
    "chunked,",
    "identity",
    "",
    "chunked;q=1",
    "chunk",
    "x, chunked",
    "chunked\0",
    "\u{a0}chunked",
    "chu\u{17f}ked",
    "cHuNkEd",
    "chunked\t",
    "deflate",
    "chunked gzip",
];
const ODD_CODING_NAMES: &[&str] = &[
    "Transfer-Encoding ",
    "Transfer_Encoding",
    " Transfer-Encoding",
    "Transfer-Encoding\t",
    "Transfer-Encoding\0",
    "X: y\nTransfer-Encoding",
    "X: y\rTransfer-Encoding",
    "Transfer-Encoding\r",
    "Transfer\u{2010}Encoding",
    "\tTransfer-Encoding",
    "Transfer-Encoding\u{b}",
    "\0Transfer-Encoding",
    "Transfer Encoding",
    "X-Transfer-Encoding",
    "Content-Encoding",
];
const ODD_CHUNK_SIZES: &[&str] = &[
    "05",
    "5;a=b",
    "5 ;a",
    "5 ",
    " 5",
    "5;a=\"x\"",
    "5;a=\"\r\n\"",
    "5\t",
    "0x5",
    "+5",
    "-5",
    "5;\n",
    "5,",
    "g",
    "",
    "ffffffffffffffff5",
    "10000000000000005",
    "5\n",
    "5;\r",
    "5;a\0",
    "5;;",
    "5 a",
    "0000000000000005",
    "00000000000000005",
    "5;\u{e9}",
    "5;a=b;c",
    "5\r",
    "4",
    "6",
    "5_0",
    "5.0",
    "fffffffffffffffb",
];
const ODD_CHUNK_ENDS: &[&str] = &["\n", "", "x\r\n", "\r", "\r\r\n", "\n\r", "\r\n\r\n", " \r\n"];
const ODD_LAST_CHUNKS: &[&str] =
    &["00", "0;x", "0 ", "0\n", "-0", "000000000000000000", "0;\n", "0x0", "", "0 ;a=b"];
const TRAILERS: &[&str] = &["X-Sum: 1\r\n", "x-sum: 1\r\nx-t: 2\r\n"];
const ODD_TRAILERS: &[&str] = &[
    "Content-Length: 5\r\n",
    "x: y\n",
    "x\r\n",
    "host: b\r\n",
    "transfer-encoding: chunked\r\n",
    " x\r\n",
    "x : y\r\n",
    "x: \0\r\n",
    "\n",
    ": y\r\n",
    "x-sum: 1\r\n fold\r\n",
    "x_b: 1\r\n",
    "x: y\rz\r\n",
    "authorization: b\r\n",
];
const FIELDS: &[&str] =
    &["X-A: 1\r\n", "x-b:2\r\n", "X-C:\t a b \r\n", "Accept: */*\r\n", "x-empty:\r\n", "Cookie: a=b\r\n"];
const ODD_FIELDS: &[&str] = &[
    "x_b: 1\r\n",
    "content_length: 50\r\n",
    "Connection: close\r\n",
    "Connection: keep-alive\r\n",
    "Connection: x-a\r\n",
    "Connection: transfer-encoding\r\n",
    "Connection: content-length, host\r\n",
    "Expect: 100-continue\r\n",
    "Expect: x\r\n",
    "Upgrade: h2c\r\nConnection: upgrade\r\n",
    "Upgrade: websocket\r\nConnection: Upgrade\r\n",
    "X-A: 1\r\n folded\r\n",
    "X-A: \0\r\n",
    "X-A: 1\r2\r\n",
    "X A: 1\r\n",
    ": 1\r\n",
    "X-A\r\n",
    "X-A : 1\r\n",
    "X-A\0: 1\r\n",
    "X-A: \u{e9}\r\n",
    "X-A: 1\nX-B: 2\r\n",
    "TE: trailers\r\n",
    "Cookie: c=d\r\n",
    "X-A: \u{7f}\r\n",
    "X(A: 1\r\n",
    "X-\u{e9}: 1\r\n",
    " X-A: 1\r\n",
    "\tX-A: 1\r\n",
    "Keep-Alive: 5\r\n",
    "Proxy-Connection: close\r\n",
    "X-A: 1\r\r\n",
    "X-Forwarded-For: 1.2.3.4\r\n",
    "Trailer: x-sum\r\n",
    "X-A: \u{1}\r\n",
    "X-A: \u{b}1\r\n",
    "Content-Length : 5\r\n",
    "Content-Length\r\n",
    "\r",
    "\0",
    "X-A:1:2\r\n",
    "Range: bytes=0-1\r\n",
    "HTTP2-Settings: AAMAAABkAAQAAP__\r\n",
];
const BODY: &str = "hello";
const BYTES: &[u8] = b"\r\n \t\0\x7f\x80\xff:;,0\x0b/";

const ODD_STATUS_LINES: &[&str] = &[
    "HTTP/1.0 200 OK",
    "HTTP/1.1 200",
    "HTTP/1.1 200 ",
    "HTTP/1.1  200 OK",
    "HTTP/2.0 200 OK",
    "HTTP/1.1 99 OK",
    "HTTP/1.1 600 OK",
    "HTTP/1.1 2000 OK",
    "HTTP/1.1 200OK",
    "HTTP/1.1 +20 OK",
    "http/1.1 200 OK",
    "HTTP/1.1 101 Switching",
    "HTTP/1.1 204 None",
    "HTTP/1.1 304 Same",
    "HTTP/1.1 200 \u{e9}",
    "HTTP/1.1 200 \0",
    "HTTP/1.1 200 a\rb",
    "",
    " HTTP/1.1 200 OK",
    "HTTP/1.1\t200\tOK",
    "HTTP/1.1 205 Reset",
    "HTTP/1.1 100 Continue",
    "HTTP/1.1 103 Hints\r\n\r\nHTTP/1.1 200 OK",
    "\r\nHTTP/1.1 200 OK",
    "HTTP/1.2 200 OK",
    "HTTP/1.1 100 Continue\r\nContent-Length: 5\r\n\r\nHTTP/1.1 200 OK",
    "HTTP/1.1 500 Error",
    "HTTP/1.1 404 Not Found",
    "ICY 200 OK",
    "\nHTTP/1.1 200 OK",
];

impl Generator {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let oddity = [0.0, 0.03, 0.08, 0.2][rng.usize(..4)];
        Self { seed, rng, out: Vec::new(), oddity }
    }

    /// One to three requests, and the last one.
    pub(super) fn requests(mut self) -> Vec<u8> {
        for _ in 0..self.rng.usize(1..4) {
            self.request();
        }
        self.mutate();
        self.out.extend_from_slice(LAST_REQUEST);
        self.out
    }

    /// A response with its number, and sometimes bytes that follow it.
    pub(super) fn response(mut self) -> Vec<u8> {
        self.pick(&["HTTP/1.1 200 OK", "HTTP/1.1 404 Not Found"], ODD_STATUS_LINES);
        self.line_end();
        self.out.extend_from_slice(format!("x-number: {}\r\n", self.seed).as_bytes());
        self.fields();
        self.body();
        if self.is_odd() {
            self.out.extend_from_slice(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx-extra: 1\r\n\r\n");
        }
        self.mutate();
        self.out
    }

    fn is_odd(&mut self) -> bool {
        self.rng.f64() < self.oddity
    }

    fn pick(&mut self, usual: &[&str], odd: &[&str]) {
        let list = if self.is_odd() { odd } else { usual };
        let text = list[self.rng.usize(..list.len())];
        // Two bytes for each character would make all high bytes valid UTF-8.
        let is_latin = self.rng.bool() && text.chars().all(|character| u32::from(character) < 256);
        match is_latin {
            true => self.out.extend(text.chars().map(|character| character as u8)),
            false => self.out.extend_from_slice(text.as_bytes()),
        }
    }

    fn line_end(&mut self) {
        self.pick(&["\r\n"], ODD_LINE_ENDS);
    }

    fn request(&mut self) {
        if self.is_odd() {
            self.pick(&["\r\n"], &["\r\n\r\n", "\n", "\r", " \r\n", "\0"]);
        }
        self.pick(METHODS, ODD_METHODS);
        self.pick(&[" "], ODD_SPACES);
        self.pick(TARGETS, ODD_TARGETS);
        self.pick(&[" "], ODD_SPACES);
        self.pick(&["HTTP/1.1"], ODD_VERSIONS);
        self.line_end();
        if !self.is_odd() {
            self.host();
        }
        if self.is_odd() {
            self.host();
        }
        self.fields();
        self.body();
    }

    fn host(&mut self) {
        self.pick(&["Host: "], &["host:", "HOST:\t", "Host : ", "Host:  "]);
        self.pick(HOSTS, ODD_HOSTS);
        self.line_end();
    }

    fn fields(&mut self) {
        for _ in 0..self.rng.usize(..4) {
            self.pick(FIELDS, ODD_FIELDS);
        }
    }

    /// The fields with the length, the empty line, and the body.
    fn body(&mut self) {
        match (self.rng.usize(..8), self.is_odd()) {
            (0..3, false) => self.line_end(),
            (3..5, false) => self.length_and(BODY),
            (5..8, false) => self.chunked_and("", ""),
            (0, _) => self.chunked_and("Content-Length: 5\r\n", ""),
            (1, _) => self.chunked_and("", "Content-Length: 3\r\n"),
            (2, _) => self.chunked_and("", "Transfer-Encoding: chunked\r\n"),
            (3, _) => self.chunked_and("Transfer-Encoding: identity\r\n", ""),
            (4, _) => self.chunked_and("", "Transfer-Encoding: x\r\n"),
            (5, _) => {
                self.pick(&["Content-Length: 5\r\n"], &["Content-Length: 6\r\n", "Content-Length: 05\r\n"]);
                self.length_and(BODY);
            }
            (6, _) => self.length_and("GET /inner HTTP/1.1\r\nHost: a\r\n\r\n"),
            _ => {
                self.line_end();
                self.out.extend_from_slice(b"0\r\n\r\n");
            }
        }
    }

    fn length_and(&mut self, body: &str) {
        self.pick(
            &["Content-Length: ", "content-length:"],
            &["Content-Length : ", "Content_Length: ", "Content-Length\t:"],
        );
        let length = body.len().to_string();
        self.pick(&[&length], ODD_LENGTHS);
        self.line_end();
        self.line_end();
        self.out.extend_from_slice(body.as_bytes());
    }

    fn chunked_and(&mut self, before: &str, after: &str) {
        self.out.extend_from_slice(before.as_bytes());
        self.pick(&["Transfer-Encoding"], ODD_CODING_NAMES);
        self.pick(&[": "], &[":", ":\t", " :", ":  "]);
        self.pick(&["chunked"], ODD_CODINGS);
        self.line_end();
        self.out.extend_from_slice(after.as_bytes());
        self.line_end();
        for _ in 0..self.rng.usize(..3) {
            self.pick(&["5"], ODD_CHUNK_SIZES);
            self.line_end();
            self.out.extend_from_slice(BODY.as_bytes());
            self.pick(&["\r\n"], ODD_CHUNK_ENDS);
        }
        self.pick(&["0"], ODD_LAST_CHUNKS);
        self.line_end();
        if self.rng.usize(..4) == 0 {
            self.pick(TRAILERS, ODD_TRAILERS);
        }
        self.line_end();
    }

    /// Changes a few bytes.
    fn mutate(&mut self) {
        while self.is_odd() {
            let at = self.rng.usize(..self.out.len());
            let byte = BYTES[self.rng.usize(..BYTES.len())];
            match self.rng.usize(..4) {
                0 => self.out.insert(at, byte),
                1 => self.out[at] = byte,
                2 => drop(self.out.remove(at)),
                _ => {
                    let end = (at + self.rng.usize(..40)).min(self.out.len());
                    let piece = self.out[at..end].to_vec();
                    self.out.splice(at..at, piece);
                }
            }
        }
    }
}

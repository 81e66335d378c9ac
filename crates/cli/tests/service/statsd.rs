//! E7: metrics over statsd and DogStatsD, received on real sockets.

use crate::common::ServiceProcess;
use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    net::{TcpListener, UdpSocket},
    sync::mpsc,
    thread,
    time::Duration,
};

const LIMITS: &str =
    "domain: shop\ndescriptors:\n  - { key: user, rate_limit: { unit: year, requests_per_unit: 3 } }\n";
/// A timeout that only a failing test reaches.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Sends five requests of one user, of which three are within the limit.
fn start_with_requests(more: &[(&str, &str)]) -> ServiceProcess {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("shop.yaml"), LIMITS).unwrap();
    let service = ServiceProcess::start(
        folder.path(),
        &[&[("HOST", "127.0.0.1"), ("STATSD_HOST", "127.0.0.1")], more].concat(),
    );
    let statuses: Vec<_> = (0..5).map(|_| service.check(&[("user", "ann")])).collect();
    assert_eq!(statuses, ["200", "200", "200", "429", "429"]);
    service
}

/// The sums of counters by name and tags; gauges are ignored.
#[derive(Default)]
struct CounterSums(BTreeMap<String, u64>);

impl CounterSums {
    fn add(&mut self, text: &str) {
        for line in text.lines() {
            let (name, rest) = line.split_once(':').unwrap_or_else(|| panic!("{line}"));
            let mut parts = rest.split('|');
            let (value, kind) = (parts.next().unwrap(), parts.next().unwrap_or_else(|| panic!("{line}")));
            let tags = parts.find(|part| part.starts_with('#')).unwrap_or_default();
            match kind {
                "c" => *self.0.entry(format!("{name}{tags}")).or_default() += value.parse::<u64>().unwrap(),
                "ms" => assert!(value.parse::<f64>().unwrap() > 0.0, "{line}"),
                "g" => {}
                _ => panic!("{line}"),
            }
        }
    }

    fn wait_for(&mut self, received: &mpsc::Receiver<String>, expected: &[(&str, u64)]) {
        while expected.iter().any(|(name, count)| self.0.get(*name) != Some(count)) {
            let text = received.recv_timeout(TEST_TIMEOUT);
            self.add(&text.unwrap_or_else(|_| panic!("{expected:?} is not received: {:#?}", self.0)));
        }
    }
}

/// Receives complete lines over TCP.
fn receive_tcp(listener: TcpListener) -> mpsc::Receiver<String> {
    let (send, received) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut text, mut bytes) = (stream.unwrap(), String::new(), [0; 4_096]);
            while let Ok(read @ 1..) = stream.read(&mut bytes) {
                text.push_str(std::str::from_utf8(&bytes[..read]).unwrap());
                let end = text.rfind('\n').map_or(0, |end| end + 1);
                let _ = send.send(text.drain(..end).collect());
            }
        }
    });
    received
}

#[test]
fn statsd_counters_are_sent_over_tcp() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let received = receive_tcp(listener);
    let service = start_with_requests(&[
        ("STATSD_PORT", &port),
        ("STATS_FLUSH_INTERVAL", "50ms"),
        ("EXTRA_TAGS", "zone:eu.1,app:a"),
    ]);
    let mut sums = CounterSums::default();
    sums.wait_for(
        &received,
        &[
            ("ratelimit.service.rate_limit.shop.user.total_hits.__app=a.__zone=eu_1", 5),
            ("ratelimit.service.rate_limit.shop.user.over_limit.__app=a.__zone=eu_1", 2),
            ("ratelimit.service.rate_limit.shop.user.within_limit.__app=a.__zone=eu_1", 3),
            ("ratelimit_server.ShouldRateLimit.total_requests.__app=a.__zone=eu_1", 5),
        ],
    );
    assert!(service.stop().success());
}

/// Counts during an outage are sent later, and the last ones at shutdown.
#[test]
fn counters_survive_statsd_outage() {
    let reserved = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = reserved.local_addr().unwrap();
    drop(reserved);
    let service = start_with_requests(&[
        ("STATSD_PORT", &address.port().to_string()),
        ("STATS_FLUSH_INTERVAL", "20ms"),
    ]);
    let received = receive_tcp(TcpListener::bind(address).unwrap());
    let hits = "ratelimit.service.rate_limit.shop.user.total_hits";
    let mut sums = CounterSums::default();
    sums.wait_for(&received, &[(hits, 5)]);
    service.check(&[("user", "ann")]);
    assert!(service.stop().success());
    sums.wait_for(&received, &[(hits, 6)]);
}

#[test]
fn dogstatsd_tags_are_sent_over_udp() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port().to_string();
    let (send, received) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = [0; 65_536];
        while let Ok(read) = socket.recv(&mut bytes) {
            let _ = send.send(String::from_utf8(bytes[..read].to_vec()).unwrap());
        }
    });
    let pattern = r"^ratelimit\.service\.rate_limit\.([^.]+)\.(.*)\.([^.]+)$";
    let service = start_with_requests(&[
        ("USE_STATSD", "false"),
        ("USE_DOG_STATSD", "true"),
        ("STATSD_PORT", &port),
        ("STATS_FLUSH_INTERVAL", "50ms"),
        ("EXTRA_TAGS", "zone:eu"),
        ("USE_DOG_STATSD_MOGRIFIERS", "HITS"),
        ("DOG_STATSD_MOGRIFIER_HITS_PATTERN", pattern),
        ("DOG_STATSD_MOGRIFIER_HITS_NAME", "ratelimit.service.rate_limit.$3"),
        ("DOG_STATSD_MOGRIFIER_HITS_TAGS", "domain:$1,descriptor:$2"),
    ]);
    let mut sums = CounterSums::default();
    sums.wait_for(
        &received,
        &[
            ("ratelimit.service.rate_limit.total_hits#zone:eu,domain:shop,descriptor:user", 5),
            ("ratelimit.service.rate_limit.over_limit#zone:eu,domain:shop,descriptor:user", 2),
            ("ratelimit_server.ShouldRateLimit.total_requests#zone:eu", 5),
        ],
    );
    assert!(service.stop().success());
}

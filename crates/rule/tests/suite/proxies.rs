//! The client address from forwarded headers, and that no client can impersonate another.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use crate::common::TestRequest;
use proptest::prelude::*;
use std::net::IpAddr;
use tidegate_rule::{
    RequestContext,
    request::{ClientIpHeader, TrustedProxies},
};

/// The proxies of these tests.
fn proxies() -> TrustedProxies {
    TrustedProxies::new(["10.0.0.0/8", "2001:db8:ffff::/48", "::1"]).unwrap()
}

fn client_text(proxies: &TrustedProxies, request: &TestRequest) -> String {
    proxies.client_address(request).map_or("none".to_owned(), |address| address.to_string())
}

const CLIENT: &str = "203.0.113.7";
const PROXY: &str = "10.0.0.1";

#[test]
fn x_forwarded_for_client() {
    for (peer, lines, found) in [
        // A peer that is not trusted is the client, whatever it sends.
        (CLIENT, &[][..], CLIENT),
        (CLIENT, &["198.51.100.1"], CLIENT),
        (CLIENT, &["198.51.100.1, 10.0.0.1"], CLIENT),
        (CLIENT, &["10.0.0.1"], CLIENT),
        ("2001:db8::7", &["198.51.100.1"], "2001:db8::7"),
        // The entry of a trusted peer is used, and what the client wrote before it is not.
        (PROXY, &["203.0.113.7"], CLIENT),
        (PROXY, &["198.51.100.1, 203.0.113.7"], CLIENT),
        (PROXY, &["10.0.0.9, 203.0.113.7"], CLIENT),
        (PROXY, &["127.0.0.1, ::1, 203.0.113.7"], CLIENT),
        (PROXY, &["unknown, 203.0.113.7"], CLIENT),
        (PROXY, &["\", 203.0.113.7"], CLIENT),
        ("::1", &["203.0.113.7"], CLIENT),
        // A chain of trusted proxies, in one line or in several.
        (PROXY, &["198.51.100.1, 203.0.113.7, 10.0.0.3, 10.0.0.2"], CLIENT),
        (PROXY, &["198.51.100.1", "203.0.113.7", "10.0.0.3, 10.0.0.2"], CLIENT),
        (PROXY, &["198.51.100.1,203.0.113.7 ,\t10.0.0.2"], CLIENT),
        // If all are trusted, the left-most.
        (PROXY, &["10.0.0.4, 10.0.0.3, 10.0.0.2"], "10.0.0.4"),
        (PROXY, &["10.0.0.1"], PROXY),
        // A trusted proxy that did not report an address is the client.
        (PROXY, &[], PROXY),
        (PROXY, &[""], PROXY),
        (PROXY, &[","], PROXY),
        (PROXY, &["203.0.113.7,"], PROXY),
        (PROXY, &["203.0.113.7, , 10.0.0.2"], "10.0.0.2"),
        (PROXY, &["203.0.113.7", "", "10.0.0.2"], "10.0.0.2"),
        (PROXY, &["203.0.113.7, unknown"], PROXY),
        (PROXY, &["203.0.113.7, garbage, 10.0.0.2"], "10.0.0.2"),
        (PROXY, &["203.0.113.7 198.51.100.1"], PROXY),
        (PROXY, &["203.0.113.7.1"], PROXY),
        (PROXY, &["203.0.113.007"], PROXY),
        (PROXY, &["0x7f000001"], PROXY),
        (PROXY, &["2130706433"], PROXY),
        (PROXY, &["_hidden"], PROXY),
        (PROXY, &["for=203.0.113.7"], PROXY),
        (PROXY, &["fe80::1%eth0"], PROXY),
        (PROXY, &["\u{661}\u{662}"], PROXY),
        // Ports and brackets.
        (PROXY, &["203.0.113.7:4711"], CLIENT),
        (PROXY, &["203.0.113.7:"], PROXY),
        (PROXY, &["203.0.113.7:http"], PROXY),
        (PROXY, &["203.0.113.7:123456"], PROXY),
        (PROXY, &["2001:db8::7"], "2001:db8::7"),
        (PROXY, &["[2001:db8::7]"], "2001:db8::7"),
        (PROXY, &["[2001:db8::7]:4711"], "2001:db8::7"),
        (PROXY, &["[2001:db8::7"], PROXY),
        (PROXY, &["[2001:db8::7]4711"], PROXY),
        (PROXY, &["[203.0.113.7]"], PROXY),
        (PROXY, &["[]"], PROXY),
        // IPv4-mapped IPv6 addresses are IPv4, on either side.
        (PROXY, &["::ffff:203.0.113.7"], CLIENT),
        (PROXY, &["[::ffff:203.0.113.7]:4711"], CLIENT),
        (PROXY, &["203.0.113.7, ::ffff:10.0.0.2"], CLIENT),
        ("::ffff:10.0.0.1", &["203.0.113.7"], CLIENT),
        ("::ffff:203.0.113.7", &["198.51.100.1"], CLIENT),
        ("2001:db8:ffff::1", &["2001:db8::7, 2001:db8:ffff::2"], "2001:db8::7"),
    ] {
        let request = lines
            .iter()
            .fold(TestRequest::from_peer(peer), |request, line| request.header("x-forwarded-for", line));
        assert_eq!(client_text(&proxies(), &request), found, "from {peer}: {lines:?}");
    }
}

#[test]
fn forwarded_client() {
    for (lines, found) in [
        (&["for=203.0.113.7"][..], CLIENT),
        (&["For=\"203.0.113.7\";proto=https;by=10.0.0.1"], CLIENT),
        (&["by=10.0.0.1; for=203.0.113.7 ;host=example.com"], CLIENT),
        (&["for=\"203.0.113.7:4711\""], CLIENT),
        (&["for=203.0.113.7:_port"], CLIENT),
        (&["for=\"[2001:db8::7]\""], "2001:db8::7"),
        (&["for=\"[2001:db8::7]:4711\""], "2001:db8::7"),
        (&["for=\"[2001:db8::7]:_x-y.z\""], "2001:db8::7"),
        (&["for=[2001:db8::7]"], "2001:db8::7"),
        (&["for=\"20\\3.0.113.7\""], CLIENT),
        (&["for=198.51.100.1, for=203.0.113.7, for=10.0.0.2"], CLIENT),
        (&["for=198.51.100.1", "for=203.0.113.7", "for=10.0.0.2"], CLIENT),
        (&["for=\"[::ffff:203.0.113.7]\""], CLIENT),
        // A comma or a semicolon in quotes is not a separator.
        (&["for=203.0.113.7;host=\"a,for=198.51.100.1\""], CLIENT),
        (&["for=203.0.113.7;host=\"a;for=198.51.100.1\""], CLIENT),
        (&["for=203.0.113.7;host=\"a\\\", for=198.51.100.1;b=\\\"\""], CLIENT),
        (&["for=203.0.113.7;host=\"a\\\\\", for=10.0.0.2"], CLIENT),
        // What a client wrote ends at the comma after it.
        (&["for=\"198.51.100.1, for=203.0.113.7"], CLIENT),
        (&["for=\"198.51.100.1\\, for=203.0.113.7"], CLIENT),
        (&["\"\"\", for=203.0.113.7, for=10.0.0.2"], CLIENT),
        (&["for=\"", "for=203.0.113.7"], CLIENT),
        // A proxy that reports no address, or an obfuscated one, counts as the client.
        (&["for=203.0.113.7, for=unknown"], PROXY),
        (&["for=203.0.113.7, for=_hidden, for=10.0.0.2"], "10.0.0.2"),
        (&["for=203.0.113.7, proto=https"], PROXY),
        (&["for=203.0.113.7,"], PROXY),
        (&["for=203.0.113.7;for=198.51.100.1"], PROXY),
        (&["for=203.0.113.7;for=203.0.113.7"], PROXY),
        (&["for=\"203.0.113.7"], PROXY),
        (&["for=203.0.113.7\""], PROXY),
        (&["for=\"203.0.113.7\\\""], PROXY),
        (&["for="], PROXY),
        (&["for"], PROXY),
        (&["for = 203.0.113.7"], PROXY),
        (&["203.0.113.7"], PROXY),
        (&[""], PROXY),
        (&[], PROXY),
    ] {
        let request = lines
            .iter()
            .fold(TestRequest::from_peer(PROXY), |request, line| request.header("forwarded", line));
        assert_eq!(client_text(&proxies().forwarded(), &request), found, "{lines:?}");
    }
}

#[test]
fn single_address_header() {
    let proxies = proxies().custom_header("X-Real-IP").unwrap();
    for (peer, lines, found) in [
        (PROXY, &["203.0.113.7"][..], CLIENT),
        (PROXY, &[" 203.0.113.7 "], CLIENT),
        (PROXY, &["10.0.0.2"], "10.0.0.2"),
        (PROXY, &["[2001:db8::7]:80"], "2001:db8::7"),
        (CLIENT, &["198.51.100.1"], CLIENT),
        (PROXY, &["198.51.100.1, 203.0.113.7"], PROXY),
        (PROXY, &["198.51.100.1", "203.0.113.7"], PROXY),
        (PROXY, &["unknown"], PROXY),
        (PROXY, &[""], PROXY),
        (PROXY, &[], PROXY),
    ] {
        let request = lines
            .iter()
            .fold(TestRequest::from_peer(peer), |request, line| request.header("x-real-ip", line));
        assert_eq!(client_text(&proxies, &request), found, "from {peer}: {lines:?}");
    }
}

#[test]
fn only_the_declared_header_is_read() {
    let request = TestRequest::from_peer(PROXY)
        .header("x-forwarded-for", "198.51.100.1")
        .header("forwarded", "for=198.51.100.2")
        .header("x-real-ip", "198.51.100.3")
        .header("client-ip", "198.51.100.4");
    for (header, found) in [
        (ClientIpHeader::XForwardedFor, "198.51.100.1"),
        (ClientIpHeader::Forwarded, "198.51.100.2"),
        (ClientIpHeader::Custom("x-real-ip".into()), "198.51.100.3"),
        (ClientIpHeader::Custom("true-client-ip".into()), PROXY),
    ] {
        assert_eq!(client_text(&proxies().header(header), &request), found);
    }
}

#[test]
fn no_client_without_peer() {
    let request =
        TestRequest { peer: None, ..TestRequest::from_peer(PROXY) }.header("x-forwarded-for", CLIENT);
    assert_eq!(proxies().client_address(&request), None);
    assert_eq!(
        RequestContext::from_head(&request, &proxies(), Some("alice".into())),
        RequestContext::default().with_user("alice")
    );
}

#[test]
fn presets() {
    for (proxies, trusted, others) in [
        (TrustedProxies::none(), &[][..], &["127.0.0.1", "::1", "10.0.0.1"][..]),
        (TrustedProxies::loopback(), &["127.0.0.1", "::1", "::ffff:127.0.0.1"], &["10.0.0.1", "fc00::1"]),
        (
            TrustedProxies::private(),
            &[
                "127.9.9.9",
                "::1",
                "10.1.2.3",
                "172.31.0.1",
                "192.168.1.1",
                "169.254.1.1",
                "fd00::1",
                "fe80::1",
            ],
            &["172.32.0.1", "8.8.8.8", "2001:db8::1", "::", "0.0.0.0"],
        ),
        (
            TrustedProxies::loopback().with_networks(["192.0.2.0/24"]).unwrap(),
            &["127.0.0.1", "192.0.2.9"],
            &["192.0.3.9"],
        ),
    ] {
        for address in trusted {
            assert!(proxies.is_trusted(address.parse().unwrap()), "{address} in {proxies:?}");
        }
        for address in others {
            assert!(!proxies.is_trusted(address.parse().unwrap()), "{address} in {proxies:?}");
        }
    }
}

#[test]
fn many_networks_use_table() {
    let networks: Vec<_> = (0..1_000).map(|n| format!("10.{}.{}.0/24", n / 250, n % 250)).collect();
    let proxies = TrustedProxies::new(networks.iter().chain(&networks)).unwrap();
    assert!(proxies.is_trusted([10, 3, 249, 7].into()) && !proxies.is_trusted([10, 3, 250, 7].into()));
    let request =
        TestRequest::from_peer("10.3.0.1").header("x-forwarded-for", "198.51.100.1, 203.0.113.7, 10.0.0.1");
    assert_eq!(client_text(&proxies, &request), CLIENT);
}

#[test]
fn invalid_network_error_names_entry_and_fix() {
    let error = TrustedProxies::new(["10.0.0.0/8", "10.0.0.1/8"]).unwrap_err().to_string();
    assert!(error.contains("10.0.0.1/8") && error.contains("write `10.0.0.0/8`"), "{error}");
    let error = TrustedProxies::none().custom_header("x real ip").unwrap_err().to_string();
    assert!(error.contains("`x real ip`"), "{error}");
}

#[test]
fn long_headers_are_read_from_the_end() {
    let megabyte = |part: &str| part.repeat(1_000_000 / part.len());
    for (line, found) in [
        (format!("{}, 203.0.113.7", megabyte("a")), CLIENT),
        (format!("{}, 203.0.113.7", megabyte("198.51.100.1, ")), CLIENT),
        (megabyte("a"), PROXY),
        (megabyte(","), PROXY),
        // At most 32 proxies in a row are trusted, and the last of them counts as the client.
        (format!("203.0.113.7{}", megabyte(", 10.0.0.2")), "10.0.0.2"),
    ] {
        let request = TestRequest::from_peer(PROXY).header("x-forwarded-for", &line);
        assert_eq!(client_text(&proxies(), &request), found);
    }
    for (line, found) in [
        (format!("{}, for=203.0.113.7", megabyte("\"")), CLIENT),
        (megabyte("\""), PROXY),
        (megabyte("\\\""), PROXY),
        (format!("for=203.0.113.7;a=\"{}\"", megabyte(",")), PROXY),
    ] {
        let request = TestRequest::from_peer(PROXY).header("forwarded", &line);
        assert_eq!(client_text(&proxies().forwarded(), &request), found);
    }
    let lines = (0..1_000)
        .fold(TestRequest::from_peer(PROXY), |request, _| request.header("x-forwarded-for", "10.0.0.2"));
    assert_eq!(client_text(&proxies(), &lines), "10.0.0.2");
    assert_eq!(client_text(&proxies(), &lines.header("x-forwarded-for", CLIENT)), CLIENT);
}

#[test]
fn non_utf8_headers_are_ignored() {
    for (line, found) in
        [(b"\xff\xfe, 203.0.113.7".as_slice(), CLIENT), (b"203.0.113.7\xff", PROXY), (b"\0", PROXY)]
    {
        let request = TestRequest::from_peer(PROXY).header("x-forwarded-for", line);
        assert_eq!(client_text(&proxies(), &request), found);
        let forwarded = [b"for=", line].concat();
        let request = TestRequest::from_peer(PROXY).header("forwarded", forwarded);
        let expected = if line.starts_with(b"\xff") { PROXY } else { found };
        assert_eq!(client_text(&proxies().forwarded(), &request), expected);
    }
}

/// Spoofed headers, from noise to nearly valid ones.
fn spoofed_header() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..40),
        "[-for=\"\\\\,;:. \\[\\]0-9a-f_]{0,40}".prop_map(String::into_bytes),
        "(for=)?\"?(10\\.0\\.0\\.1|198\\.51\\.100\\.1|unknown|::1)\"?,?".prop_map(String::into_bytes),
    ]
}

/// How the outermost proxy appends its entry to that of the client.
#[derive(Clone, Copy, Debug)]
enum AppendStyle {
    Comma,
    CommaNoSpace,
    Line,
}

proptest! {
    /// Behind any number of trusted proxies, the client is the address that the outermost one saw, whatever
    /// the client wrote.
    #[test]
    fn spoofed_headers_never_change_client(
        lines in proptest::collection::vec(spoofed_header(), 0..3),
        append in prop_oneof![Just(AppendStyle::Comma), Just(AppendStyle::CommaNoSpace), Just(AppendStyle::Line)],
        client in prop_oneof![any::<IpAddr>(), Just("203.0.113.7".parse().unwrap())],
        hops in 0_u8..20,
        format in 0_u8..3,
    ) {
        let client = client.to_canonical();
        prop_assume!(!proxies().is_trusted(client));
        let is_forwarded = format > 0;
        let entry = |address: IpAddr| match (format, address) {
            (0, address) => address.to_string(),
            (1, IpAddr::V4(address)) => format!("for={address}"),
            (_, IpAddr::V4(address)) => format!("by=_x;for=\"{address}:80\";host=\"a,b;c\\\"\""),
            (1, IpAddr::V6(address)) => format!("for=\"[{address}]\""),
            (_, IpAddr::V6(address)) => format!("host=\"\\\",\";for=\"[{address}]:_p\";proto=http"),
        };
        let mut lines = lines;
        for address in std::iter::once(client).chain((0..hops).map(|hop| IpAddr::from([10, 0, 1, hop]))) {
            let entry = entry(address).into_bytes();
            match (append, lines.last_mut()) {
                (AppendStyle::Comma, Some(last)) => last.extend([b", ".to_vec(), entry].concat()),
                (AppendStyle::CommaNoSpace, Some(last)) => last.extend([b",".to_vec(), entry].concat()),
                _ => lines.push(entry),
            }
        }
        let name = if is_forwarded { "forwarded" } else { "x-forwarded-for" };
        let proxies = if is_forwarded { proxies().forwarded() } else { proxies() };
        let request = lines.iter().fold(TestRequest::from_peer(PROXY), |request, line| request.header(name, line));
        prop_assert_eq!(proxies.client_address(&request), Some(client));
    }

    /// Whatever the headers, a trusted peer has a client, and an untrusted peer is the client.
    #[test]
    fn any_header_resolves_a_client(lines in proptest::collection::vec(spoofed_header(), 0..5)) {
        for proxies in [proxies(), proxies().forwarded(), proxies().custom_header("x-forwarded-for").unwrap()] {
            let with = |peer| lines.iter().fold(TestRequest::from_peer(peer), |request, line| {
                request.header("x-forwarded-for", line).header("forwarded", line)
            });
            prop_assert!(proxies.client_address(&with(PROXY)).is_some());
            prop_assert_eq!(proxies.client_address(&with(CLIENT)), Some(CLIENT.parse().unwrap()));
        }
    }
}

//! The test servers work as documented and clean up after themselves.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::{self, Command, Stdio},
    time::Duration,
};
use tidegate_testkit::servers::{
    NetworkFault, NginxServer, Proxy, RedisCluster, RedisSentinel, RedisServer, RedisServerState,
    RespConnection, RespValue, ServerVersion, wait_until,
};

#[test]
fn server_answers_and_cleans_up() {
    let server = RedisServer::start().unwrap();
    assert_eq!(server.url(), format!("redis://127.0.0.1:{}", server.port()));
    assert_eq!(server.command(&["SET", "a", "b"]).unwrap(), "OK");
    assert_eq!(server.command(&["GET", "a"]).unwrap(), "b");
    assert_eq!(server.command(&["GET", "c"]).unwrap(), RespValue::Nil);
    assert_eq!(server.command(&["INCR", "n"]).unwrap(), RespValue::Integer(1));
    assert_eq!(server.command(&["MGET", "a", "c"]).unwrap().items().len(), 2);
    assert!(server.command(&["INCR", "a"]).unwrap_err().starts_with("ERR"));
    assert!(server.directory().exists());

    let (address, directory) = (server.address(), server.directory().to_owned());
    drop(server);
    assert_eq!(check_removed(address, &directory), Ok(()));
}

#[test]
fn nginx_answers_and_cleans_up() {
    let nginx = NginxServer::start("server { listen 127.0.0.1:PORT; location /gif { empty_gif; } }").unwrap();
    assert_eq!(nginx.get("/gif").unwrap().status().unwrap(), Some(200));
    assert_eq!(nginx.get("/none").unwrap().wait().unwrap(), 404);
    let (address, directory) = (nginx.address(), nginx.config().parent().unwrap().to_owned());
    drop(nginx);
    assert_eq!(check_removed(address, &directory), Ok(()));

    let error = NginxServer::start("no_such_directive;").unwrap_err();
    assert!(error.contains("no_such_directive"), "{error}");
}

/// A delayed request waits until the clock reaches its time, and not a millisecond longer.
#[test]
fn nginx_clock_is_set_manually() {
    let limited = "limit_req_zone $host zone=one:1m rate=10r/s;
        server { listen 127.0.0.1:PORT; location / { limit_req zone=one burst=1; empty_gif; } }";
    let Some(nginx) = NginxServer::start_with_manual_clock(limited).unwrap() else {
        tidegate_testkit::servers::skip_without("faketime");
        return;
    };
    assert_eq!(nginx.get("/").unwrap().status().unwrap(), Some(200));
    let mut pending = nginx.get("/").unwrap();
    assert_eq!(pending.poll().unwrap(), None);
    nginx.set_clock(Duration::from_millis(99)).unwrap();
    assert_eq!(pending.poll().unwrap(), None);
    nginx.set_clock(Duration::from_millis(100)).unwrap();
    assert_eq!(pending.poll().unwrap(), Some(200));
}

#[test]
fn config_is_applied() {
    let server = RedisServer::builder().config("maxmemory", "2mb").start().unwrap();
    let reply = server.command(&["CONFIG", "GET", "maxmemory"]).unwrap();
    assert_eq!(reply.items()[1], "2097152");
    if server.version().major >= 7 {
        assert_eq!(server.command(&["DEBUG", "SLEEP", "0"]).unwrap(), "OK");
    }

    let error = RedisServer::builder().config("no-such-thing", "1").start().unwrap_err();
    assert!(error.contains("no-such-thing"), "{error}");
    let error = RedisServer::builder().binary("no-such-server").start().unwrap_err();
    assert_eq!(error, "no-such-server is not installed; run apt-get install no-such-server");
}

#[test]
fn passwords_and_users_are_required() {
    let server = RedisServer::builder().password("s3cret/@").start().unwrap();
    assert_eq!(server.url(), format!("redis://:s3cret%2F%40@127.0.0.1:{}", server.port()));
    assert_eq!(server.command(&["PING"]).unwrap(), "PONG");
    let mut other = RespConnection::connect_tcp(server.address()).unwrap();
    assert!(other.command(&["PING"]).unwrap_err().starts_with("NOAUTH"));

    let server = RedisServer::builder().user("reader", "pass", "~* +@read").start().unwrap();
    assert_eq!(server.url(), format!("redis://reader:pass@127.0.0.1:{}", server.port()));
    let mut reader = RespConnection::connect_tcp(server.address()).unwrap();
    reader.command(&["AUTH", "reader", "pass"]).unwrap();
    assert_eq!(reader.command(&["GET", "a"]).unwrap(), RespValue::Nil);
    assert!(reader.command(&["SET", "a", "b"]).unwrap_err().starts_with("NOPERM"));
}

#[test]
fn unix_socket_reaches_server() {
    let server = RedisServer::builder().unix_socket().start().unwrap();
    let mut connection = RespConnection::connect_unix(server.socket().unwrap()).unwrap();
    assert_eq!(connection.command(&["PING"]).unwrap(), "PONG");
}

#[test]
fn tls_certificate_is_signed_by_own_ca() {
    let server = RedisServer::builder().tls().start().unwrap();
    let url = server.tls_url().unwrap();
    let ping = |authority: &Path| {
        let mut client = Command::new("openssl")
            .args(["s_client", "-quiet", "-verify_return_error", "-verify_hostname", "localhost"])
            .args(["-no-CApath", "-connect", url.strip_prefix("rediss://").unwrap(), "-CAfile"])
            .arg(authority)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // A client that does not trust the server may have exited.
        let _ = client.stdin.take().unwrap().write_all(b"PING\r\nQUIT\r\n");
        String::from_utf8(client.wait_with_output().unwrap().stdout).unwrap()
    };

    let other = RedisServer::builder().tls().start().unwrap();
    assert_eq!(ping(&server.certificates().unwrap().authority), "+PONG\r\n+OK\r\n");
    assert_eq!(ping(&other.certificates().unwrap().authority), "");
}

#[test]
fn restarted_server_keeps_port_and_data() {
    let server = RedisServer::builder().append_only().start().unwrap();
    let (port, pid) = (server.port(), server.pid());
    server.command(&["SET", "a", "1"]).unwrap();
    server.kill();
    assert_eq!((server.state(), server.pid()), (RedisServerState::Down, None));
    assert!(server.command(&["GET", "a"]).unwrap_err().contains("refused"));

    server.restart().unwrap();
    assert_eq!((server.state(), server.port()), (RedisServerState::Running, port));
    assert_ne!(server.pid(), pid);
    assert_eq!(server.command(&["GET", "a"]).unwrap(), "1");
    server.stop().unwrap();
    server.stop().unwrap();
    server.restart().unwrap();
    assert!(server.command(&["SHUTDOWN"]).is_err());
    wait_until("the server has exited by itself", || match server.state() {
        RedisServerState::Down => Ok(()),
        state => Err(format!("{state:?}")),
    })
    .unwrap();
    server.restart().unwrap();
    assert_eq!(server.command(&["GET", "a"]).unwrap(), "1");

    let volatile = RedisServer::start().unwrap();
    volatile.command(&["SET", "a", "1"]).unwrap();
    volatile.restart().unwrap();
    assert_eq!(volatile.command(&["GET", "a"]).unwrap(), RespValue::Nil);
}

#[test]
fn paused_server_accepts_but_does_not_answer() {
    let server = RedisServer::start().unwrap();
    server.pause().unwrap();
    assert_eq!(server.state(), RedisServerState::Paused);
    let stream = TcpStream::connect(server.address()).unwrap();
    send(&stream, "PING\r\n");
    assert_silent(&stream);

    server.resume().unwrap();
    assert_eq!(receive(&stream), pong_reply());
    server.pause().unwrap();
    server.stop().unwrap();
    assert!(server.pause().unwrap_err().ends_with("is down"));
}

/// The server is never dropped: the test process aborts, like one that a timeout kills.
#[test]
fn aborted_test_cleans_up() {
    const TEST_NAME: &str = "aborted_test_cleans_up";
    if std::env::var_os(TEST_NAME).is_some() {
        let server = RedisServer::start().unwrap();
        println!("\nstarted {} {}", server.address(), server.directory().display());
        process::abort();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", TEST_NAME, "--nocapture"])
        .env(TEST_NAME, "")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("started ")).unwrap();
    let (address, directory) = line.split_once(' ').unwrap();
    wait_until("the guard has cleaned up", || check_removed(address.parse().unwrap(), directory.as_ref()))
        .unwrap();
}

#[test]
fn valkey_is_supported() {
    let Some(version) = ServerVersion::detect("valkey-server") else {
        tidegate_testkit::servers::skip_without("valkey-server");
        return;
    };
    let server = RedisServer::builder().binary("valkey-server").password("secret").start().unwrap();
    assert_eq!(server.version(), version);
    let reply = server.command(&["INFO", "server"]).unwrap();
    assert!(reply.text().unwrap().contains(&format!("valkey_version:{version}")), "{reply}");
}

#[test]
fn cluster_redirects_and_migrates_slots() {
    let cluster = RedisCluster::start().unwrap();
    assert_eq!((cluster.nodes().len(), cluster.urls().len()), (6, 6));
    let slot = RedisCluster::slot_of("{user}.a");
    assert_eq!(slot, RedisCluster::slot_of("{user}.b"));
    let reply = cluster.nodes()[0].command(&["CLUSTER", "KEYSLOT", "{user}.a"]).unwrap();
    assert_eq!(reply, RespValue::Integer(slot.into()));

    let from = cluster.primary_of(slot).unwrap();
    let [to, other] = cluster.primaries_without(slot).unwrap()[..] else { panic!("not three primaries") };
    from.command(&["SET", "{user}.a", "1"]).unwrap();
    from.command(&["SET", "{user}.b", "2"]).unwrap();
    let moved = format!("MOVED {slot} {}", from.address());
    assert_eq!(other.command(&["GET", "{user}.a"]), Err(moved));

    let migration = cluster.begin_migration(slot, to).unwrap();
    assert_eq!((migration.source().port(), migration.target().port()), (from.port(), to.port()));
    migration.move_key("{user}.a").unwrap();
    let ask = format!("ASK {slot} {}", to.address());
    assert_eq!(from.command(&["GET", "{user}.a"]), Err(ask));
    assert_eq!(from.command(&["GET", "{user}.b"]).unwrap(), "2");
    if from.version().major >= 7 {
        let half = from.command(&["MGET", "{user}.a", "{user}.b"]).unwrap_err();
        assert!(half.starts_with("TRYAGAIN"), "{half}");
    }

    migration.finish().unwrap();
    assert_eq!(cluster.primary_of(slot).unwrap().port(), to.port());
    assert_eq!(to.command(&["GET", "{user}.a"]).unwrap(), "1");
    assert_eq!(to.command(&["GET", "{user}.b"]).unwrap(), "2");
    cluster.migrate_slot(slot, from).unwrap();
    assert_eq!(from.command(&["GET", "{user}.b"]).unwrap(), "2");
}

#[test]
fn cluster_survives_primary_loss_and_restart() {
    let cluster = RedisCluster::start_with(&RedisServer::builder().password("secret").append_only()).unwrap();
    let slot = RedisCluster::slot_of("a");
    let before = cluster.primary_of(slot).unwrap();
    set_and_replicate(before, "a", "1");

    let killed = cluster.kill_primary_of(slot).unwrap();
    assert_eq!(killed.port(), before.port());
    cluster.wait_until_ok().unwrap();
    let after = cluster.primary_of(slot).unwrap();
    assert_ne!(after.port(), before.port());
    assert_eq!(after.command(&["GET", "a"]).unwrap(), "1");

    killed.restart().unwrap();
    cluster.wait_until_ok().unwrap();
    assert_eq!(cluster.primary_of(slot).unwrap().port(), after.port());
    cluster.restart_all().unwrap();
    assert_eq!(cluster.primary_of(slot).unwrap().command(&["GET", "a"]).unwrap(), "1");
}

#[test]
fn sentinels_fail_over_on_request_and_on_crash() {
    let sentinel = RedisSentinel::start_with(&RedisServer::builder().password("secret")).unwrap();
    assert_eq!(sentinel.sentinel_urls().len(), 3);
    let first = sentinel.primary().unwrap();
    set_and_replicate(first, "a", "1");

    sentinel.fail_over().unwrap();
    let second = sentinel.primary().unwrap();
    assert_ne!(second.port(), first.port());
    assert_eq!(second.command(&["GET", "a"]).unwrap(), "1");

    let killed = sentinel.kill_primary().unwrap();
    assert_eq!(killed.port(), second.port());
    sentinel.wait_until_ok().unwrap();
    assert_eq!(sentinel.primary().unwrap().port(), first.port());
    assert_eq!(first.command(&["GET", "a"]).unwrap(), "1");
}

#[test]
fn proxy_without_fault_is_transparent() {
    let server = RedisServer::builder().password("secret").start().unwrap();
    let proxy = Proxy::for_server(&server).unwrap();
    assert_eq!(proxy.url(), format!("redis://:secret@{}", proxy.address()));
    let mut connection = RespConnection::connect_tcp(proxy.address()).unwrap();
    connection.command(&["AUTH", "secret"]).unwrap();
    let long = "x".repeat(1_000_000);
    connection.command(&["SET", "long", &long]).unwrap();
    assert_eq!(connection.command(&["GET", "long"]).unwrap(), long.as_str());
    assert_eq!((proxy.accepted_count(), proxy.open_connections()), (1, 1));

    drop(connection);
    wait_until("the connection is closed", || {
        (proxy.open_connections() == 0).then_some(()).ok_or("still open".into())
    })
    .unwrap();
    server.kill();
    assert!(RespConnection::connect_tcp(proxy.address()).unwrap().command(&["PING"]).is_err());
    assert_eq!((proxy.accepted_count(), proxy.open_connections()), (2, 0));
}

#[test]
fn proxy_faults_apply_to_open_connections() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::for_server(&server).unwrap();
    let old = TcpStream::connect(proxy.address()).unwrap();
    assert_eq!(ping(&old), pong_reply());

    proxy.inject(NetworkFault::Stall);
    let new = TcpStream::connect(proxy.address()).unwrap();
    for stream in [&old, &new] {
        send(stream, "PING\r\n");
        assert_silent(stream);
    }
    proxy.heal();
    assert_eq!((receive(&old), receive(&new)), (pong_reply(), pong_reply()));

    proxy.inject(NetworkFault::DropRequests);
    send(&old, "ECHO lost\r\n");
    wait_until("the request is lost", || (proxy.lost_bytes() == 11).then_some(()).ok_or("not yet".into()))
        .unwrap();
    proxy.heal();
    assert_eq!(ping(&old), pong_reply());

    proxy.inject(NetworkFault::Delay(Duration::from_secs(600)));
    send(&old, "PING\r\n");
    assert_silent(&old);
    proxy.inject(NetworkFault::Delay(Duration::from_millis(1)));
    assert_eq!(receive(&old), pong_reply());

    proxy.inject(NetworkFault::CutReplies { after: 9 });
    assert_eq!(ping(&old), pong_reply());
    assert_eq!(ping(&old), ReadEvent::Text("+P".into()));
    assert_eq!(receive(&old), ReadEvent::Eof);
    proxy.heal();
    assert_eq!(ping(&new), pong_reply());

    proxy.inject(NetworkFault::RejectConnections);
    let error = TcpStream::connect(proxy.address()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(ping(&new), pong_reply());
    proxy.heal();
    let newest = TcpStream::connect(proxy.address()).unwrap();
    assert_eq!(ping(&newest), pong_reply());

    proxy.inject(NetworkFault::Reset);
    assert_eq!((receive(&new), receive(&newest)), (ReadEvent::Reset, ReadEvent::Reset));
    assert_eq!(receive(&TcpStream::connect(proxy.address()).unwrap()), ReadEvent::Reset);
    assert_eq!((proxy.accepted_count(), proxy.open_connections()), (4, 0));
}

/// The next event on a connection.
#[derive(Debug, PartialEq)]
enum ReadEvent {
    Text(String),
    Eof,
    Reset,
}

fn send(mut stream: &TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).unwrap();
}

fn receive(mut stream: &TcpStream) -> ReadEvent {
    let mut bytes = [0; 64];
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    match stream.read(&mut bytes) {
        Ok(0) => ReadEvent::Eof,
        Ok(length) => ReadEvent::Text(String::from_utf8(bytes[..length].to_vec()).unwrap()),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => ReadEvent::Reset,
        Err(error) => panic!("cannot read: {error}"),
    }
}

fn ping(stream: &TcpStream) -> ReadEvent {
    send(stream, "PING\r\n");
    receive(stream)
}

fn pong_reply() -> ReadEvent {
    ReadEvent::Text("+PONG\r\n".into())
}

/// Asserts that nothing arrives for 30 ms. A slow machine may miss late data, but never reports false data.
fn assert_silent(mut stream: &TcpStream) {
    stream.set_read_timeout(Some(Duration::from_millis(30))).unwrap();
    let error = stream.read(&mut [0; 64]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
}

/// Writes a key and waits for the replica, because a primary replies before its replica has the write.
fn set_and_replicate(primary: &RedisServer, key: &str, value: &str) {
    let mut connection = primary.connect().unwrap();
    connection.command(&["SET", key, value]).unwrap();
    assert_eq!(connection.command(&["WAIT", "1", "5000"]).unwrap(), RespValue::Integer(1));
}

fn check_removed(address: SocketAddr, directory: &Path) -> Result<(), String> {
    match (TcpStream::connect(address), directory.exists()) {
        (Err(_), false) => Ok(()),
        (connected, exists) => Err(format!("{address}: {connected:?}, directory: {exists}")),
    }
}

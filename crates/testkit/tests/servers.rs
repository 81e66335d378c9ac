//! The servers that other tests lean on: each does what it says, and leaves nothing behind.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run its subject has failed")]

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::{self, Command, Stdio},
    time::Duration,
};
use tidegate_testkit::servers::{
    Connection, Fault, NginxServer, Proxy, RedisCluster, RedisSentinel, RedisServer, State, Value, Version,
    until,
};

#[test]
fn a_server_answers_and_leaves_nothing_behind() {
    let server = RedisServer::start().unwrap();
    assert_eq!(server.url(), format!("redis://127.0.0.1:{}", server.port()));
    assert_eq!(server.command(&["SET", "a", "b"]).unwrap(), "OK");
    assert_eq!(server.command(&["GET", "a"]).unwrap(), "b");
    assert_eq!(server.command(&["GET", "c"]).unwrap(), Value::Nil);
    assert_eq!(server.command(&["INCR", "n"]).unwrap(), Value::Integer(1));
    assert_eq!(server.command(&["MGET", "a", "c"]).unwrap().items().len(), 2);
    assert!(server.command(&["INCR", "a"]).unwrap_err().starts_with("ERR"));
    assert!(server.directory().exists());

    let (address, directory) = (server.address(), server.directory().to_owned());
    drop(server);
    assert_eq!(gone(address, &directory), Ok(()));
}

#[test]
fn an_nginx_answers_and_leaves_nothing_behind() {
    let nginx = NginxServer::start("server { listen 127.0.0.1:PORT; location /gif { empty_gif; } }").unwrap();
    assert_eq!(nginx.get("/gif").unwrap().status().unwrap(), Some(200));
    assert_eq!(nginx.get("/none").unwrap().wait().unwrap(), 404);
    let (address, directory) = (nginx.address(), nginx.config().parent().unwrap().to_owned());
    drop(nginx);
    assert_eq!(gone(address, &directory), Ok(()));

    let refusal = NginxServer::start("no_such_directive;").unwrap_err();
    assert!(refusal.contains("no_such_directive"), "{refusal}");
}

/// Who has to wait waits until the clock is moved, and not a millisecond longer.
#[test]
fn an_nginx_can_have_a_clock_that_is_moved_by_hand() {
    let limited = "limit_req_zone $host zone=one:1m rate=10r/s;
        server { listen 127.0.0.1:PORT; location / { limit_req zone=one burst=1; empty_gif; } }";
    let Some(nginx) = NginxServer::start_by_hand(limited).unwrap() else {
        tidegate_testkit::servers::skip_without("faketime");
        return;
    };
    assert_eq!(nginx.get("/").unwrap().status().unwrap(), Some(200));
    let mut waits = nginx.get("/").unwrap();
    assert_eq!(waits.poll().unwrap(), None);
    nginx.set_clock(Duration::from_millis(99)).unwrap();
    assert_eq!(waits.poll().unwrap(), None);
    nginx.set_clock(Duration::from_millis(100)).unwrap();
    assert_eq!(waits.poll().unwrap(), Some(200));
}

#[test]
fn a_configuration_is_what_was_asked_for() {
    let server = RedisServer::builder().config("maxmemory", "2mb").start().unwrap();
    let told = server.command(&["CONFIG", "GET", "maxmemory"]).unwrap();
    assert_eq!(told.items()[1], "2097152");
    if server.version().major >= 7 {
        assert_eq!(server.command(&["DEBUG", "SLEEP", "0"]).unwrap(), "OK");
    }

    let refusal = RedisServer::builder().config("no-such-thing", "1").start().unwrap_err();
    assert!(refusal.contains("no-such-thing"), "{refusal}");
    let absent = RedisServer::builder().binary("no-such-server").start().unwrap_err();
    assert_eq!(absent, "no-such-server is not installed: apt-get install no-such-server");
}

#[test]
fn passwords_and_users_are_asked_for() {
    let server = RedisServer::builder().password("s3cret/@").start().unwrap();
    assert_eq!(server.url(), format!("redis://:s3cret%2F%40@127.0.0.1:{}", server.port()));
    assert_eq!(server.command(&["PING"]).unwrap(), "PONG");
    let mut stranger = Connection::tcp(server.address()).unwrap();
    assert!(stranger.command(&["PING"]).unwrap_err().starts_with("NOAUTH"));

    let server = RedisServer::builder().user("reader", "pass", "~* +@read").start().unwrap();
    assert_eq!(server.url(), format!("redis://reader:pass@127.0.0.1:{}", server.port()));
    let mut reader = Connection::tcp(server.address()).unwrap();
    reader.command(&["AUTH", "reader", "pass"]).unwrap();
    assert_eq!(reader.command(&["GET", "a"]).unwrap(), Value::Nil);
    assert!(reader.command(&["SET", "a", "b"]).unwrap_err().starts_with("NOPERM"));
}

#[test]
fn a_socket_file_leads_to_the_server() {
    let server = RedisServer::builder().unix_socket().start().unwrap();
    let mut connection = Connection::unix(server.socket().unwrap()).unwrap();
    assert_eq!(connection.command(&["PING"]).unwrap(), "PONG");
}

#[test]
fn tls_is_signed_by_the_authority_alone() {
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
        // A client that does not trust the server may be gone by now.
        let _ = client.stdin.take().unwrap().write_all(b"PING\r\nQUIT\r\n");
        String::from_utf8(client.wait_with_output().unwrap().stdout).unwrap()
    };

    let stranger = RedisServer::builder().tls().start().unwrap();
    assert_eq!(ping(&server.certificates().unwrap().authority), "+PONG\r\n+OK\r\n");
    assert_eq!(ping(&stranger.certificates().unwrap().authority), "");
}

#[test]
fn a_server_comes_back_where_it_was() {
    let server = RedisServer::builder().append_only().start().unwrap();
    let (port, pid) = (server.port(), server.pid());
    server.command(&["SET", "a", "1"]).unwrap();
    server.kill();
    assert_eq!((server.state(), server.pid()), (State::Down, None));
    assert!(server.command(&["GET", "a"]).unwrap_err().contains("refused"));

    server.restart().unwrap();
    assert_eq!((server.state(), server.port()), (State::Running, port));
    assert_ne!(server.pid(), pid);
    assert_eq!(server.command(&["GET", "a"]).unwrap(), "1");
    server.stop().unwrap();
    server.stop().unwrap();
    server.restart().unwrap();
    assert!(server.command(&["SHUTDOWN"]).is_err());
    until("the server has ended by itself", || match server.state() {
        State::Down => Ok(()),
        state => Err(format!("{state:?}")),
    })
    .unwrap();
    server.restart().unwrap();
    assert_eq!(server.command(&["GET", "a"]).unwrap(), "1");

    let forgetful = RedisServer::start().unwrap();
    forgetful.command(&["SET", "a", "1"]).unwrap();
    forgetful.restart().unwrap();
    assert_eq!(forgetful.command(&["GET", "a"]).unwrap(), Value::Nil);
}

#[test]
fn a_paused_server_takes_connections_and_says_nothing() {
    let server = RedisServer::start().unwrap();
    server.pause().unwrap();
    assert_eq!(server.state(), State::Paused);
    let wire = TcpStream::connect(server.address()).unwrap();
    say(&wire, "PING\r\n");
    assert_silent(&wire);

    server.resume().unwrap();
    assert_eq!(hear(&wire), pong());
    server.pause().unwrap();
    server.stop().unwrap();
    assert!(server.pause().unwrap_err().ends_with("is down"));
}

/// A server that is never dropped: the process of this test aborts, as one that is killed by a time limit does.
#[test]
fn a_test_that_dies_leaves_nothing_behind() {
    const STORY: &str = "a_test_that_dies_leaves_nothing_behind";
    if std::env::var_os(STORY).is_some() {
        let server = RedisServer::start().unwrap();
        println!("\nstarted {} {}", server.address(), server.directory().display());
        process::abort();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", STORY, "--nocapture"])
        .env(STORY, "")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("started ")).unwrap();
    let (address, directory) = line.split_once(' ').unwrap();
    until("the guard has done its work", || gone(address.parse().unwrap(), directory.as_ref())).unwrap();
}

#[test]
fn valkey_is_a_server_too() {
    let Some(version) = Version::of("valkey-server") else {
        tidegate_testkit::servers::skip_without("valkey-server");
        return;
    };
    let server = RedisServer::builder().binary("valkey-server").password("secret").start().unwrap();
    assert_eq!(server.version(), version);
    let told = server.command(&["INFO", "server"]).unwrap();
    assert!(told.text().unwrap().contains(&format!("valkey_version:{version}")), "{told}");
}

#[test]
fn a_cluster_redirects_and_moves_slots() {
    let cluster = RedisCluster::start().unwrap();
    assert_eq!((cluster.nodes().len(), cluster.urls().len()), (6, 6));
    let slot = RedisCluster::slot_of("{user}.a");
    assert_eq!(slot, RedisCluster::slot_of("{user}.b"));
    let told = cluster.nodes()[0].command(&["CLUSTER", "KEYSLOT", "{user}.a"]).unwrap();
    assert_eq!(told, Value::Integer(slot.into()));

    let from = cluster.primary_of(slot).unwrap();
    let [to, other] = cluster.primaries_without(slot).unwrap()[..] else { panic!("not three primaries") };
    from.command(&["SET", "{user}.a", "1"]).unwrap();
    from.command(&["SET", "{user}.b", "2"]).unwrap();
    let moved = format!("MOVED {slot} {}", from.address());
    assert_eq!(other.command(&["GET", "{user}.a"]), Err(moved));

    let migration = cluster.begin_migration(slot, to).unwrap();
    assert_eq!((migration.from().port(), migration.to().port()), (from.port(), to.port()));
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
fn a_cluster_outlives_a_primary_and_a_restart() {
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
fn sentinels_change_the_primary_when_told_and_when_it_dies() {
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
fn a_good_wire_changes_nothing() {
    let server = RedisServer::builder().password("secret").start().unwrap();
    let proxy = Proxy::before(&server).unwrap();
    assert_eq!(proxy.url(), format!("redis://:secret@{}", proxy.address()));
    let mut connection = Connection::tcp(proxy.address()).unwrap();
    connection.command(&["AUTH", "secret"]).unwrap();
    let long = "x".repeat(1_000_000);
    connection.command(&["SET", "long", &long]).unwrap();
    assert_eq!(connection.command(&["GET", "long"]).unwrap(), long.as_str());
    assert_eq!((proxy.accepted(), proxy.open()), (1, 1));

    drop(connection);
    until("the connection is closed", || (proxy.open() == 0).then_some(()).ok_or("it is open".into()))
        .unwrap();
    server.kill();
    assert!(Connection::tcp(proxy.address()).unwrap().command(&["PING"]).is_err());
    assert_eq!((proxy.accepted(), proxy.open()), (2, 0));
}

#[test]
fn faults_come_and_go_while_a_wire_is_in_use() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::before(&server).unwrap();
    let old = TcpStream::connect(proxy.address()).unwrap();
    assert_eq!(ping(&old), pong());

    proxy.inject(Fault::Stall);
    let new = TcpStream::connect(proxy.address()).unwrap();
    for wire in [&old, &new] {
        say(wire, "PING\r\n");
        assert_silent(wire);
    }
    proxy.heal();
    assert_eq!((hear(&old), hear(&new)), (pong(), pong()));

    proxy.inject(Fault::LoseRequests);
    say(&old, "ECHO lost\r\n");
    until("the request is lost", || (proxy.lost() == 11).then_some(()).ok_or("it is on its way".into()))
        .unwrap();
    proxy.heal();
    assert_eq!(ping(&old), pong());

    proxy.inject(Fault::Delay(Duration::from_secs(600)));
    say(&old, "PING\r\n");
    assert_silent(&old);
    proxy.inject(Fault::Delay(Duration::from_millis(1)));
    assert_eq!(hear(&old), pong());

    proxy.inject(Fault::CutReplies { after: 9 });
    assert_eq!(ping(&old), pong());
    assert_eq!(ping(&old), Heard::Text("+P".into()));
    assert_eq!(hear(&old), Heard::End);
    proxy.heal();
    assert_eq!(ping(&new), pong());

    proxy.inject(Fault::Refuse);
    let refused = TcpStream::connect(proxy.address()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(ping(&new), pong());
    proxy.heal();
    let newest = TcpStream::connect(proxy.address()).unwrap();
    assert_eq!(ping(&newest), pong());

    proxy.inject(Fault::Reset);
    assert_eq!((hear(&new), hear(&newest)), (Heard::Reset, Heard::Reset));
    assert_eq!(hear(&TcpStream::connect(proxy.address()).unwrap()), Heard::Reset);
    assert_eq!((proxy.accepted(), proxy.open()), (4, 0));
}

/// What comes over a wire next.
#[derive(Debug, PartialEq)]
enum Heard {
    Text(String),
    End,
    Reset,
}

fn say(mut wire: &TcpStream, text: &str) {
    wire.write_all(text.as_bytes()).unwrap();
}

fn hear(mut wire: &TcpStream) -> Heard {
    let mut bytes = [0; 64];
    wire.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    match wire.read(&mut bytes) {
        Ok(0) => Heard::End,
        Ok(length) => Heard::Text(String::from_utf8(bytes[..length].to_vec()).unwrap()),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Heard::Reset,
        Err(error) => panic!("nothing was heard: {error}"),
    }
}

fn ping(wire: &TcpStream) -> Heard {
    say(wire, "PING\r\n");
    hear(wire)
}

fn pong() -> Heard {
    Heard::Text("+PONG\r\n".into())
}

/// Silence for a moment: on a slow machine this may miss a sound, and never hears one that is not there.
fn assert_silent(mut wire: &TcpStream) {
    wire.set_read_timeout(Some(Duration::from_millis(30))).unwrap();
    let error = wire.read(&mut [0; 64]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
}

/// A primary answers before its replica knows; what must outlive it waits for that.
fn set_and_replicate(primary: &RedisServer, key: &str, value: &str) {
    let mut connection = primary.connect().unwrap();
    connection.command(&["SET", key, value]).unwrap();
    assert_eq!(connection.command(&["WAIT", "1", "5000"]).unwrap(), Value::Integer(1));
}

fn gone(address: SocketAddr, directory: &Path) -> Result<(), String> {
    match (TcpStream::connect(address), directory.exists()) {
        (Err(_), false) => Ok(()),
        (connected, exists) => Err(format!("{address}: {connected:?}, directory: {exists}")),
    }
}

//! Clients that send a byte now and then, many at a time.

use crate::stage::{Client, Gateway, LONG, Server, get};
use std::time::Duration;
use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    time::{interval, timeout},
};

const MANY: usize = 200;

#[tokio::test]
async fn those_who_never_finish_a_head_are_cut_while_others_are_served() {
    let server = Server::ok().await;
    let policy =
        format!("listen: 127.0.0.1:0\nconnections: {{ header-timeout: 500ms }}\n{}", server.upstream());
    let gateway = Gateway::serve(&policy).await;

    let mut slow = Vec::new();
    for _ in 0..MANY {
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        slow.push(tokio::spawn(async move {
            stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nx-slow: ").await?;
            // As long as it is listened to.
            let mut beat = interval(Duration::from_millis(20));
            loop {
                beat.tick().await;
                stream.write_all(b"a").await?;
            }
            #[allow(unreachable_code, reason = "it says what the errors are")]
            Ok::<(), std::io::Error>(())
        }));
    }
    let mut client = Client::to(gateway.address).await;
    let mut served = 0;
    let all = async {
        for slow in slow {
            while !slow.is_finished() {
                assert_eq!(client.get("/").await.unwrap().0, 200);
                served += 1;
            }
            assert!(slow.await.unwrap().is_err());
        }
    };
    timeout(LONG, all).await.expect("all are cut");
    assert!(served > 0);
    // Their places are free again.
    assert_eq!(get(gateway.address, "/").await.0, 200);
}

//! Many clients that send their requests byte by byte.

use crate::common::{GatewayProcess, HttpClient, TEST_TIMEOUT, TestUpstream, get};
use std::time::Duration;
use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    time::{interval, timeout},
};

const SLOW_CLIENTS: usize = 200;

#[tokio::test]
async fn slow_request_heads_time_out() {
    let server = TestUpstream::start_ok().await;
    let policy = format!(
        "listen: 127.0.0.1:0\nconnections: {{ header-timeout: 500ms }}\n{}",
        server.upstream_config()
    );
    let gateway = GatewayProcess::start(&policy).await;

    let mut slow = Vec::new();
    for _ in 0..SLOW_CLIENTS {
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        slow.push(tokio::spawn(async move {
            stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nx-slow: ").await?;
            // Until the gateway closes the connection.
            let mut beat = interval(Duration::from_millis(20));
            loop {
                beat.tick().await;
                stream.write_all(b"a").await?;
            }
            #[allow(unreachable_code, reason = "declares the error type")]
            Ok::<(), std::io::Error>(())
        }));
    }
    let mut client = HttpClient::connect(gateway.address).await;
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
    timeout(TEST_TIMEOUT, all).await.expect("all slow connections are closed");
    assert!(served > 0);
    // Their connection slots are free again.
    assert_eq!(get(gateway.address, "/").await.0, 200);
}

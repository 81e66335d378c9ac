//! Bodies that exceed the memory limit of the gateway.

use crate::common::{GatewayProcess, TestUpstream, read_head, run_curl};
use std::io;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

const BODY_SIZE: u64 = 100_000_000;
/// Much more than the gateway needs, much less than a body.
const MAX_MEMORY: u64 = 64 << 20;

/// Sends a large body in response to `/down`, and as one event to `/event`, and counts the bytes of all other requests.
async fn start_large_body_server() -> TestUpstream {
    TestUpstream::start(|mut stream| async move {
        while let Some(head) = read_head(&mut stream).await? {
            if head[0].starts_with("get /down ") {
                send_large_body(&mut stream, "text/plain", "").await?;
                continue;
            }
            if head[0].starts_with("get /event ") {
                send_large_body(&mut stream, "text/event-stream", "data: {\"text\": \"").await?;
                continue;
            }
            let length = head.iter().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            let came = match length {
                Some(length) => skip_body(&mut stream, length).await?,
                None => skip_chunked_body(&mut stream).await?,
            };
            let text = came.to_string();
            let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}", text.len());
            stream.write_all(response.as_bytes()).await?;
        }
        Ok(())
    })
    .await
}

async fn send_large_body(stream: &mut BufReader<TcpStream>, kind: &str, start: &str) -> io::Result<()> {
    let length = BODY_SIZE + start.len() as u64;
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n{start}");
    stream.write_all(head.as_bytes()).await?;
    let piece = vec![b'a'; 1_000_000];
    for _ in 0..BODY_SIZE / 1_000_000 {
        stream.write_all(&piece).await?;
    }
    Ok(())
}

async fn skip_body(stream: &mut BufReader<TcpStream>, length: u64) -> io::Result<u64> {
    let mut left = length;
    while left > 0 {
        let buffered = stream.fill_buf().await?.len();
        if buffered == 0 {
            break;
        }
        let taken = buffered.min(usize::try_from(left).unwrap_or(usize::MAX));
        stream.consume(taken);
        left -= taken as u64;
    }
    Ok(length - left)
}

async fn skip_chunked_body(stream: &mut BufReader<TcpStream>) -> io::Result<u64> {
    let mut came = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let length = u64::from_str_radix(line.trim(), 16).map_err(io::Error::other)?;
        came += skip_body(stream, length).await?;
        stream.read_exact(&mut [0; 2]).await?;
        if length == 0 {
            return Ok(came);
        }
    }
}

#[tokio::test]
async fn large_bodies_pass_in_constant_memory() {
    let server = start_large_body_server().await;
    let gateway = GatewayProcess::start(&format!("listen: 127.0.0.1:0\n{}", server.upstream_config())).await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("large");
    // A sparse file, which takes no disk space.
    std::fs::File::create(&file).unwrap().set_len(BODY_SIZE).unwrap();
    let file = file.to_str().unwrap();

    for how in ["--http1.1", "--http2-prior-knowledge"] {
        let down = gateway.url("/down");
        let (code, size) = run_curl(&[how, "-o", "/dev/null", "-w", "%{size_download}", &down]).await;
        assert_eq!((code, size), (0, BODY_SIZE.to_string()), "down, {how}");
        let up = gateway.url("/up");
        let (code, size) = run_curl(&[how, "--upload-file", file, &up]).await;
        assert_eq!((code, size), (0, BODY_SIZE.to_string()), "up, {how}");
        let pieces = ["--upload-file", file, "-H", "transfer-encoding: chunked"];
        if how == "--http1.1" {
            let (code, size) = run_curl(&[&[how], &pieces[..], &[&up]].concat()).await;
            assert_eq!((code, size), (0, BODY_SIZE.to_string()), "up in pieces, {how}");
        }
        let peak = gateway.peak_memory();
        assert!(peak < MAX_MEMORY, "{peak} bytes after {how}");
    }
}

/// A rule reads the stream without storing it, and charges its estimate. The log has the missing cost once.
#[tokio::test]
async fn event_that_never_ends_passes_in_constant_memory() {
    let server = start_large_body_server().await;
    let rules = "rules: [{ name: tokens, quota: 100 per 1000h, cost: 10, settle: openai }]";
    let policy = format!("listen: 127.0.0.1:0\n{}{rules}", server.upstream_config());
    let gateway = GatewayProcess::start(&policy).await;
    let url = gateway.url("/event");
    for how in ["--http1.1", "--http2-prior-knowledge"] {
        let (code, size) = run_curl(&[how, "-o", "/dev/null", "-w", "%{size_download}", &url]).await;
        assert_eq!((code, size), (0, (BODY_SIZE + "data: {\"text\": \"".len() as u64).to_string()), "{how}");
        let peak = gateway.peak_memory();
        assert!(peak < MAX_MEMORY, "{peak} bytes after {how}");
    }
    let up = gateway.url("/up");
    let (_, head) = run_curl(&["-D", "-", "-o", "/dev/null", "-d", "x", &up]).await;
    assert!(head.contains("\"tokens\";r=70;"), "{head}");
    gateway.wait_for_output("response states no cost", 1).await;
    assert_eq!(gateway.count_output("response states no cost"), 1);
}

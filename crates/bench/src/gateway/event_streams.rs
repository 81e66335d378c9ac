//! The processor time of event streams whose cost is settled, compared with the same streams without rules.

use crate::{BenchResult, Measurement};
use std::{
    env,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::Command,
    sync::{Arc, Barrier},
    thread,
};
use tidegate_bench::{
    process::LOAD_CORE,
    proxy::{BenchServer, ClientProtocol, compare_servers},
};

pub(crate) const ABOUT: &str =
    "processor time per event stream with `settle: openai`, over the same streams without rules";

/// The streams at a time. The server sends one event of each in turn, so that each event is a message of its own.
const STREAMS: usize = 32;
const EVENTS: usize = 100;
/// The times that a round repeats the streams.
const REPETITIONS: usize = 10;
const REQUEST: &[u8] = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 20\r\n\r\n{\"max_tokens\": 1000}";

pub(crate) fn measure() -> BenchResult<Measurement> {
    let backend = BenchServer::start_program("events")?;
    let rule = "name: tokens, key: ip, quota: 1000000000/s, cost: 1000, settle: openai";
    let policy = format!("headers: none\nrules: {{ {rule} }}");
    let settled = BenchServer::start_gateway(&backend, ClientProtocol::Http, &policy)?;
    let plain = BenchServer::start_gateway(&backend, ClientProtocol::Http, "")?;
    compare_servers(&settled, &plain, "ns per stream", |server| {
        let before = server.cpu_time()?;
        let output = Command::new("taskset")
            .args(["-c", LOAD_CORE])
            .arg(env::current_exe()?)
            .args(["read-events", &server.address.to_string()])
            .output()?;
        if !output.status.success() {
            return Err(format!("the client failed: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        Ok((server.cpu_time()? - before) as f64 / (STREAMS * REPETITIONS) as f64)
    })
}

/// Reads the streams, in a child process.
pub(crate) fn read(address: &str) -> BenchResult<()> {
    let address: SocketAddr = address.parse()?;
    let connect = |_| TcpStream::connect(address).map(BufReader::new);
    let mut streams = (0..STREAMS).map(connect).collect::<Result<Vec<_>, _>>()?;
    for _ in 0..REPETITIONS {
        for stream in &mut streams {
            stream.get_mut().write_all(REQUEST)?;
        }
        for stream in &mut streams {
            let mut last = String::new();
            while last != "0\r\n" {
                last.clear();
                if stream.read_line(&mut last)? == 0 {
                    return Err("the server closed a connection".into());
                }
            }
            stream.read_line(&mut last)?;
        }
    }
    Ok(())
}

/// Sends the streams, in a child process.
pub(crate) fn serve(address: &str) -> BenchResult<()> {
    let listener = TcpListener::bind(address)?;
    let barrier = Arc::new(Barrier::new(STREAMS));
    loop {
        let (stream, _) = listener.accept()?;
        let barrier = barrier.clone();
        // A client that disconnects ends its thread.
        thread::spawn(move || send_streams(stream, &barrier));
    }
}

fn send_streams(mut stream: TcpStream, barrier: &Barrier) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut received = vec![0; 4_096];
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let event = chunk(
        "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"m\",\
         \"choices\":[{\"index\":0,\"delta\":{\"content\":\" token\"},\"finish_reason\":null}],\"usage\":null}\n\n",
    );
    let last = chunk(
        "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"m\",\
         \"choices\":[],\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":100,\"total_tokens\":112}}\n\n\
         data: [DONE]\n\n",
    );
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"}") {
            match stream.read(&mut received)? {
                0 => return Ok(()),
                length => head.extend_from_slice(&received[..length]),
            }
        }
        stream.write_all(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
        )?;
        for _ in 0..EVENTS {
            barrier.wait();
            stream.write_all(event.as_bytes())?;
        }
        stream.write_all(format!("{last}0\r\n\r\n").as_bytes())?;
    }
}

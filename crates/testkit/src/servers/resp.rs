//! A minimal Redis client, to inspect a server without a driver.

use std::{
    fmt,
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

/// A reply of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RespValue {
    /// A null reply.
    Nil,
    /// An integer.
    Integer(i64),
    /// A simple or bulk string.
    Text(String),
    /// An error inside a list; one that is the whole reply is an `Err`.
    Error(String),
    /// An array.
    List(Vec<Self>),
}

impl RespValue {
    /// The text, if this is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The number, if this is one.
    pub fn integer(&self) -> Option<i64> {
        match self {
            Self::Integer(number) => Some(*number),
            _ => None,
        }
    }

    /// The items of a list; empty for any other value.
    pub fn items(&self) -> &[Self] {
        match self {
            Self::List(items) => items,
            _ => &[],
        }
    }
}

/// Compares with a string, for assertions.
impl PartialEq<str> for RespValue {
    fn eq(&self, text: &str) -> bool {
        self.text() == Some(text)
    }
}

impl PartialEq<&str> for RespValue {
    fn eq(&self, text: &&str) -> bool {
        self.text() == Some(text)
    }
}

impl fmt::Display for RespValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nil => f.write_str("(nil)"),
            Self::Integer(number) => write!(f, "{number}"),
            Self::Text(text) | Self::Error(text) => f.write_str(text),
            Self::List(items) => items.iter().try_for_each(|item| writeln!(f, "{item}")),
        }
    }
}

/// A connection to a server, over TCP or a Unix socket.
pub struct RespConnection {
    stream: BufReader<Box<dyn ReadWrite>>,
}

trait ReadWrite: Read + Write + Send {}

impl<S: Read + Write + Send> ReadWrite for S {}

/// The time limit for connecting and for one reply.
const IO_TIMEOUT: Duration = Duration::from_secs(60);

impl RespConnection {
    /// Connects over TCP.
    pub fn connect_tcp(address: SocketAddr) -> Result<Self, String> {
        let open = || {
            let stream = TcpStream::connect_timeout(&address, IO_TIMEOUT)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(IO_TIMEOUT))?;
            Ok(Self { stream: BufReader::new(Box::new(stream)) })
        };
        open().map_err(|error: io::Error| format!("{address}: {error}"))
    }

    /// Connects over a Unix socket.
    pub fn connect_unix(path: &Path) -> Result<Self, String> {
        let open = || {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(IO_TIMEOUT))?;
            Ok(Self { stream: BufReader::new(Box::new(stream)) })
        };
        open().map_err(|error: io::Error| format!("{}: {error}", path.display()))
    }

    /// Sends a command and reads its reply; errors of the server and of the connection are both an `Err`.
    pub fn command(&mut self, words: &[&str]) -> Result<RespValue, String> {
        let mut line = format!("*{}\r\n", words.len());
        for word in words {
            line += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.stream.get_mut().write_all(line.as_bytes()).map_err(|error| error.to_string())?;
        match self.read_reply().map_err(|error| error.to_string())? {
            RespValue::Error(error) => Err(error),
            value => Ok(value),
        }
    }

    /// Reads the next reply to a command, or the next message of a subscription.
    pub fn read_reply(&mut self) -> io::Result<RespValue> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let Some(line) = line.strip_suffix("\r\n") else {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"));
        };
        let malformed = || io::Error::new(io::ErrorKind::InvalidData, format!("malformed reply `{line}`"));
        let (kind, rest) = line.split_at_checked(1).ok_or_else(malformed)?;
        let number = || rest.parse::<i64>().map_err(|_| malformed());
        match kind {
            "+" => Ok(RespValue::Text(rest.to_owned())),
            "-" => Ok(RespValue::Error(rest.to_owned())),
            ":" => Ok(RespValue::Integer(number()?)),
            "$" => match usize::try_from(number()?) {
                Ok(length) => self.read_text(length),
                Err(_) => Ok(RespValue::Nil),
            },
            "*" => match number()? {
                ..0 => Ok(RespValue::Nil),
                length => {
                    Ok(RespValue::List((0..length).map(|_| self.read_reply()).collect::<io::Result<_>>()?))
                }
            },
            _ => Err(malformed()),
        }
    }

    fn read_text(&mut self, length: usize) -> io::Result<RespValue> {
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes)?;
        bytes.truncate(length);
        Ok(RespValue::Text(String::from_utf8_lossy(&bytes).into_owned()))
    }
}

impl fmt::Debug for RespConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

//! A small HTTP server on loopback whose answers a closure gives, good ones and bad ones.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// What a client asked.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Path and query.
    pub(crate) path: String,
    /// By lower-case name.
    pub(crate) headers: BTreeMap<String, String>,
}

/// What the server answers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Send only so much of the body, then close the connection.
    pub(crate) cut: Option<usize>,
}

pub(crate) struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    seen: Arc<Mutex<Vec<Request>>>,
    thread: Option<JoinHandle<()>>,
}

type Handler = dyn Fn(&Request) -> Reply + Send + Sync;

impl Request {
    /// The first byte that is asked for, if a range is.
    pub(crate) fn range_start(&self) -> Option<usize> {
        self.headers.get("range")?.strip_prefix("bytes=")?.split('-').next()?.parse().ok()
    }
}

impl Reply {
    pub(crate) fn status(status: u16) -> Reply {
        Reply { status, ..Reply::default() }
    }

    pub(crate) fn bytes(body: impl Into<Vec<u8>>) -> Reply {
        Reply { status: 200, body: body.into(), ..Reply::default() }
    }

    /// The bytes that the request asks for: all, or those of its range.
    pub(crate) fn range(request: &Request, body: &[u8]) -> Reply {
        let Some(first) = request.range_start() else { return Reply::bytes(body) };
        if first >= body.len() {
            return Reply::status(416);
        }
        let range = format!("bytes {first}-{}/{}", body.len() - 1, body.len());
        Reply { status: 206, body: body[first..].to_vec(), ..Reply::default() }.header("Content-Range", &range)
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Reply {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn cut(mut self, bytes: usize) -> Reply {
        self.cut = Some(bytes);
        self
    }
}

impl Server {
    pub(crate) fn start(handler: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let handler: Arc<Handler> = Arc::new(handler);
        let (stopped, noted) = (stop.clone(), seen.clone());
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    break;
                }
                let (handler, noted) = (handler.clone(), noted.clone());
                // A client that goes away early is part of the tests.
                std::thread::spawn(move || stream.and_then(|stream| answer(stream, &*handler, &noted)));
            }
        });
        Server { address, stop, seen, thread: Some(thread) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer(mut stream: TcpStream, handler: &Handler, seen: &Mutex<Vec<Request>>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().unwrap_or(Ok(String::new()))?;
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut headers = BTreeMap::new();
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let request = Request { path, headers };
    seen.lock().unwrap().push(request.clone());
    let reply = handler(&request);
    let mut head =
        format!("HTTP/1.1 {} Reply\r\nContent-Length: {}\r\nConnection: close\r\n", reply.status, reply.body.len());
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    stream.write_all(format!("{head}\r\n").as_bytes())?;
    let sent = reply.cut.unwrap_or(usize::MAX).min(reply.body.len());
    stream.write_all(&reply.body[..sent])?;
    stream.shutdown(std::net::Shutdown::Write)?;
    // Closing before the client has read everything would reset the connection and lose what is under way.
    let _ = stream.read(&mut [0]);
    Ok(())
}

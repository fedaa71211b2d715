//! Length-prefixed frames over a TCP connection: a length (u32, little-endian), then that many bytes.

use std::io::ErrorKind;
use std::time::Instant;

use rustix::event::PollFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Cause, FabricError};
use crate::timed::{Connection, wait_ready, write_all};

/// The longest frame that travels over the rendezvous' connections, in bytes.
pub const MAX_FRAME: usize = 16 << 20;
/// A frame's buffer grows by this much at most before the bytes to fill it have come, so that a wrong length costs
/// no memory.
const GROWTH_BYTES: usize = 64 << 10;

/// Reads frames, and keeps what it has of one when time runs out in the middle of it.
#[derive(Debug, Default)]
pub(crate) struct FrameReader {
    prefix: [u8; 4],
    /// Bytes of prefix and body that have come.
    filled: usize,
    body: Vec<u8>,
}

impl FrameReader {
    /// The next frame, or `None` when it is not complete at `by`.
    pub(crate) fn read(&mut self, stream: &impl Connection, by: Instant) -> Result<Option<Vec<u8>>, Cause> {
        loop {
            let target = if self.filled < 4 {
                &mut self.prefix[self.filled..]
            } else {
                let length = u32::from_le_bytes(self.prefix) as usize;
                if length > MAX_FRAME {
                    return Err(Cause::corrupt(format!("a frame of {length} bytes; {MAX_FRAME} are allowed")));
                }
                let have = self.filled - 4;
                if have == length {
                    self.filled = 0;
                    return Ok(Some(std::mem::take(&mut self.body)));
                }
                self.body.resize(length.min(have + GROWTH_BYTES), 0);
                &mut self.body[have..]
            };
            match stream.receive(target) {
                Ok(0) => return Err(Cause::Closed),
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if !wait_ready(stream, PollFlags::IN, by)? {
                        return Ok(None);
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Checks that a message can travel as one frame.
pub(crate) fn check_length(what: &str, length: usize) -> Result<(), FabricError> {
    if length <= MAX_FRAME {
        return Ok(());
    }
    Err(FabricError::Invalid(format!("{what} of {length} bytes; {MAX_FRAME} are possible")))
}

/// Reads one frame, which must come in time.
pub(crate) fn read_frame(stream: &impl Connection, by: Instant) -> Result<Vec<u8>, Cause> {
    let started = Instant::now();
    FrameReader::default().read(stream, by)?.ok_or_else(|| Cause::Silent(started.elapsed()))
}

/// Writes one frame.
pub(crate) fn write_frame(stream: &impl Connection, body: &[u8], by: Instant) -> Result<(), Cause> {
    let length = u32::try_from(body.len()).ok().filter(|_| body.len() <= MAX_FRAME);
    let length = length.ok_or_else(|| {
        Cause::corrupt(format!("this side wanted to send a frame of {} bytes; {MAX_FRAME} are allowed", body.len()))
    })?;
    // A small frame goes out in one packet.
    if body.len() <= GROWTH_BYTES {
        let mut bytes = Vec::with_capacity(4 + body.len());
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(body);
        return write_all(stream, &bytes, by);
    }
    write_all(stream, &length.to_le_bytes(), by)?;
    write_all(stream, body, by)
}

/// Reads one frame of JSON.
pub(crate) fn read_json<T: DeserializeOwned>(stream: &impl Connection, by: Instant) -> Result<T, Cause> {
    let bytes = read_frame(stream, by)?;
    serde_json::from_slice(&bytes).map_err(|error| Cause::corrupt(format!("a message that cannot be read: {error}")))
}

/// Writes one frame of JSON.
pub(crate) fn write_json(stream: &impl Connection, message: &impl Serialize, by: Instant) -> Result<(), Cause> {
    let bytes = serde_json::to_vec(message).map_err(|error| Cause::corrupt(error.to_string()))?;
    write_frame(stream, &bytes, by)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Duration;

    use super::*;
    use crate::local::local_sockets;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    #[test]
    fn time_that_runs_out_costs_no_bytes() {
        let (mut writer, reader) = local_sockets().unwrap();
        let mut frames = FrameReader::default();
        let bytes = [&5u32.to_le_bytes()[..], b"ropes", &0u32.to_le_bytes(), &3u32.to_le_bytes(), b"end"].concat();
        let mut received = Vec::new();
        for byte in bytes {
            writer.write_all(&[byte]).unwrap();
            received.extend(frames.read(&reader, Instant::now() + Duration::from_millis(1)).unwrap());
        }
        while received.len() < 3 {
            received.push(frames.read(&reader, soon()).unwrap().unwrap());
        }
        assert_eq!(received, [&b"ropes"[..], b"", b"end"]);
        assert!(frames.read(&reader, Instant::now()).unwrap().is_none());
        drop(writer);
        assert!(matches!(frames.read(&reader, soon()), Err(Cause::Closed)));
    }

    #[test]
    fn long_frames_arrive_and_longer_ones_are_refused() {
        let (writer, reader) = local_sockets().unwrap();
        let body: Vec<u8> = (0..MAX_FRAME).map(|index| (index / 3) as u8).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| write_frame(&writer, &body, soon()).unwrap());
            assert!(read_frame(&reader, soon()).unwrap() == body);
        });
        assert!(write_frame(&writer, &vec![0; MAX_FRAME + 1], soon()).is_err());
        write_all(&writer, &u32::MAX.to_le_bytes(), soon()).unwrap();
        assert!(matches!(read_frame(&reader, soon()), Err(Cause::Corrupt(_))));
    }

    #[test]
    fn a_promised_length_takes_no_memory() {
        let (writer, reader) = local_sockets().unwrap();
        write_all(&writer, &(MAX_FRAME as u32).to_le_bytes(), soon()).unwrap();
        let mut frames = FrameReader::default();
        assert!(frames.read(&reader, Instant::now() + Duration::from_millis(1)).unwrap().is_none());
        assert!(frames.body.capacity() <= 2 * GROWTH_BYTES);
    }
}

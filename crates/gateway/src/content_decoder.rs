//! Decodes a copy of a body with a content coding.

use brotli_decompressor::DecompressorWriter;
use flate2::write::{MultiGzDecoder, ZlibDecoder};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use std::{
    fmt,
    io::{self, Read as _, Write},
};
use tidegate_rule::body::{BodyScanner, BodyValues};

/// Decodes a body that arrives in pieces, and passes it to a scanner.
///
/// A small body can decode to a huge one, so the size of the decoded body is limited in proportion to the encoded one.
pub(crate) enum ContentDecoder {
    Identity(BodyScanner),
    Gzip(Box<MultiGzDecoder<LimitedScanner>>),
    Deflate(Box<ZlibDecoder<LimitedScanner>>),
    Brotli(Box<DecompressorWriter<LimitedScanner>>),
    Zstd(Box<ZstdDecoder>),
}

/// A scanner of decoded bytes.
pub(crate) struct LimitedScanner {
    /// `None` after it was taken.
    scanner: Option<BodyScanner>,
    /// The number of bytes that may still be decoded.
    remaining: u64,
}

/// The body is invalid, or too large.
#[derive(Debug)]
pub(crate) struct DecodeError;

/// The size of the decoded body that is always allowed.
const MIN_DECODED: u64 = 1 << 20;
/// The number of decoded bytes for each encoded one.
const MAX_RATIO: u64 = 200;
/// The size of the buffers of decoders.
const BUFFER_SIZE: usize = 4_096;

impl ContentDecoder {
    /// A decoder for this `Content-Encoding`; `None` for an unknown one, or for several.
    pub(crate) fn new(coding: Option<&[u8]>, scanner: BodyScanner) -> Option<Self> {
        let coding = coding.unwrap_or_default().trim_ascii().to_ascii_lowercase();
        let limited = |scanner| LimitedScanner { scanner: Some(scanner), remaining: MIN_DECODED };
        Some(match &coding[..] {
            b"" | b"identity" => Self::Identity(scanner),
            b"gzip" | b"x-gzip" => Self::Gzip(Box::new(MultiGzDecoder::new(limited(scanner)))),
            b"deflate" => Self::Deflate(Box::new(ZlibDecoder::new(limited(scanner)))),
            b"br" => Self::Brotli(Box::new(DecompressorWriter::new(limited(scanner), BUFFER_SIZE))),
            b"zstd" => Self::Zstd(Box::new(ZstdDecoder::new(limited(scanner)))),
            _ => return None,
        })
    }

    /// Decodes the next piece.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), DecodeError> {
        let more = (bytes.len() as u64).saturating_mul(MAX_RATIO);
        let decoded = match self {
            Self::Identity(scanner) => {
                scanner.push(bytes);
                return Ok(());
            }
            Self::Gzip(decoder) => {
                decoder.get_mut().remaining += more;
                decoder.write_all(bytes)
            }
            Self::Deflate(decoder) => {
                decoder.get_mut().remaining += more;
                decoder.write_all(bytes)
            }
            Self::Brotli(decoder) => {
                decoder.get_mut().remaining += more;
                decoder.write_all(bytes)
            }
            Self::Zstd(decoder) => {
                decoder.scanner.remaining += more;
                decoder.push(bytes)
            }
        };
        decoded.map_err(|_| DecodeError)
    }

    /// The values of the body. A body that is cut off has those before the cut.
    pub(crate) fn finish(self) -> BodyValues {
        let scanner = match self {
            Self::Identity(scanner) => return scanner.finish(),
            Self::Gzip(mut decoder) => {
                // Passes on what is decoded. An error means that the body is cut off.
                let _ = decoder.flush();
                decoder.get_mut().scanner.take()
            }
            Self::Deflate(mut decoder) => {
                let _ = decoder.flush();
                decoder.get_mut().scanner.take()
            }
            Self::Brotli(mut decoder) => {
                let _ = decoder.flush();
                decoder.get_mut().scanner.take()
            }
            Self::Zstd(decoder) => decoder.finish(),
        };
        scanner.map(BodyScanner::finish).unwrap_or_default()
    }
}

impl fmt::Debug for ContentDecoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Identity(_) => "Identity",
            Self::Gzip(_) => "Gzip",
            Self::Deflate(_) => "Deflate",
            Self::Brotli(_) => "Brotli",
            Self::Zstd(_) => "Zstd",
        })
    }
}

impl Write for LimitedScanner {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.remaining = self
            .remaining
            .checked_sub(bytes.len() as u64)
            .ok_or_else(|| io::Error::other("decoded body too large"))?;
        // After the scanner is taken, a decoder that is dropped may write its rest.
        if let Some(scanner) = &mut self.scanner {
            scanner.push(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Decodes Zstandard, one block at a time: one call for many blocks could decode to any size.
pub(crate) struct ZstdDecoder {
    frame: FrameDecoder,
    phase: ZstdPhase,
    input: Vec<u8>,
    scanner: LimitedScanner,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ZstdPhase {
    FrameHeader,
    Blocks,
    /// After the first frame. Others are not decoded.
    Ended,
}

/// The largest window (RFC 9659).
const MAX_ZSTD_WINDOW: u64 = 8 << 20;
/// The largest head of a frame.
const MAX_ZSTD_HEADER: usize = 18;
const ZSTD_BLOCK_HEADER: usize = 3;
/// The header of a block without content that is the last one.
const EMPTY_LAST_BLOCK: [u8; ZSTD_BLOCK_HEADER] = [1, 0, 0];
/// The largest block.
const MAX_ZSTD_BLOCK: usize = 128 * 1_024;

impl ZstdDecoder {
    fn new(scanner: LimitedScanner) -> Self {
        let mut frame = FrameDecoder::new();
        frame.set_max_window_size(MAX_ZSTD_WINDOW);
        Self { frame, phase: ZstdPhase::FrameHeader, input: Vec::new(), scanner }
    }

    fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.phase == ZstdPhase::Ended {
            return Ok(());
        }
        self.input.extend_from_slice(bytes);
        let mut read = 0;
        if self.phase == ZstdPhase::FrameHeader {
            let mut rest = &self.input[..];
            match self.frame.init(&mut rest) {
                Ok(()) => read = self.input.len() - rest.len(),
                Err(_) if self.input.len() < MAX_ZSTD_HEADER => return Ok(()),
                Err(error) => return Err(io::Error::other(error)),
            }
            self.phase = ZstdPhase::Blocks;
        }
        while let Some(length) = block_length(&self.input[read..])? {
            let Some(block) = self.input.get(read..read + length) else { break };
            decode_block(&mut self.frame, block, &mut self.scanner)?;
            read += length;
            if self.frame.is_finished() {
                self.phase = ZstdPhase::Ended;
                self.input = Vec::new();
                return Ok(());
            }
        }
        self.input.drain(..read);
        Ok(())
    }

    fn finish(mut self) -> Option<BodyScanner> {
        if self.phase == ZstdPhase::Blocks {
            // A decoder retains the window until the last block.
            let _ = decode_block(&mut self.frame, &EMPTY_LAST_BLOCK, &mut self.scanner);
        }
        self.scanner.scanner.take()
    }
}

/// Decodes one block with its header.
fn decode_block(frame: &mut FrameDecoder, block: &[u8], scanner: &mut LimitedScanner) -> io::Result<()> {
    // The checksum after the last block is not verified.
    let source = block.chain(&[0; 4][..]);
    frame.decode_blocks(source, BlockDecodingStrategy::UptoBlocks(1)).map_err(io::Error::other)?;
    frame.collect_to_writer(scanner)?;
    Ok(())
}

/// The length of the first block with its header; `None` if the header is incomplete.
fn block_length(input: &[u8]) -> io::Result<Option<usize>> {
    let Some([first, second, third]) = input.first_chunk::<ZSTD_BLOCK_HEADER>() else { return Ok(None) };
    let header = usize::from(*first) | usize::from(*second) << 8 | usize::from(*third) << 16;
    let size = header >> 3;
    let length = match header >> 1 & 3 {
        // One byte that is repeated.
        1 => 1,
        0 | 2 if size <= MAX_ZSTD_BLOCK => size,
        _ => return Err(io::Error::other("invalid block")),
    };
    Ok(Some(ZSTD_BLOCK_HEADER + length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{
        Compression,
        write::{GzEncoder, ZlibEncoder},
    };
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    use std::sync::Arc;
    use tidegate_rule::body::{BodyFormat, BodyValue, JsonPointer};

    const BODY: &str = "data: {\"n\": 1}\n\ndata: {\"n\": 27}\n\ndata: [DONE]\n\n";
    /// The same body, compressed by brotli at quality 5.
    const BROTLI: &str =
        "1b2e0000c4ced6af24131ac526535937a10ae5f73dc825ba042587e26464594e8f8f9de403542b135db900";

    fn decoder(coding: &str) -> (JsonPointer, ContentDecoder) {
        let pointer: JsonPointer = "/n".parse().unwrap();
        let scanner = BodyScanner::new(Arc::new([pointer.clone()]), BodyFormat::EventStream);
        (pointer, ContentDecoder::new(Some(coding.as_bytes()), scanner).unwrap())
    }

    fn gzip(body: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(body).unwrap();
        encoder.finish().unwrap()
    }

    fn encoded() -> Vec<(&'static str, Vec<u8>)> {
        let mut deflate = ZlibEncoder::new(Vec::new(), Compression::default());
        deflate.write_all(BODY.as_bytes()).unwrap();
        let brotli =
            (0..BROTLI.len()).step_by(2).map(|at| u8::from_str_radix(&BROTLI[at..at + 2], 16).unwrap());
        vec![
            ("identity", BODY.as_bytes().to_vec()),
            ("gzip", gzip(BODY.as_bytes())),
            ("X-GZIP", gzip(BODY.as_bytes())),
            ("deflate", deflate.finish().unwrap()),
            ("br", brotli.collect()),
            ("zstd", compress_to_vec(BODY.as_bytes(), CompressionLevel::Fastest)),
        ]
    }

    #[test]
    fn codings_are_decoded_in_pieces() {
        for (coding, bytes) in encoded() {
            for size in [1, 2, 7, 1_000] {
                let (pointer, mut decoder) = decoder(coding);
                bytes.chunks(size).for_each(|piece| decoder.push(piece).unwrap());
                let values = decoder.finish();
                assert_eq!(values.get(&pointer).and_then(BodyValue::to_count), Some(27), "{coding} {size}");
            }
        }
    }

    #[test]
    fn body_that_is_cut_off_has_the_values_before_the_cut() {
        let body = format!("data: {{\"n\": 5}}\n\n{}", "data: {\"m\": 12345}\n\n".repeat(20_000));
        for (coding, bytes) in [
            ("gzip", gzip(body.as_bytes())),
            ("zstd", compress_to_vec(body.as_bytes(), CompressionLevel::Fastest)),
        ] {
            let (pointer, mut decoder) = decoder(coding);
            decoder.push(&bytes[..bytes.len() * 9 / 10]).unwrap();
            assert_eq!(decoder.finish().get(&pointer).and_then(BodyValue::to_count), Some(5), "{coding}");
        }
    }

    #[test]
    fn invalid_and_huge_bodies_are_rejected() {
        for coding in ["gzip", "deflate", "br", "zstd"] {
            let (_, mut decoder) = decoder(coding);
            let garbage: Vec<u8> = (0..200_000_u32).map(|number| (number * 7 + 13) as u8).collect();
            let _ = decoder.push(&garbage);
            assert!(decoder.push(&garbage).is_err(), "{coding}");
        }
        let zeros = vec![0; 64 << 20];
        for (coding, bomb) in
            [("gzip", gzip(&zeros)), ("zstd", compress_to_vec(&zeros[..], CompressionLevel::Fastest))]
        {
            let (_, mut decoder) = decoder(coding);
            assert!(bomb.chunks(10).any(|piece| decoder.push(piece).is_err()), "{coding}");
        }
        assert!(
            ContentDecoder::new(Some(b"gzip, br"), BodyScanner::new(Arc::new([]), BodyFormat::Json))
                .is_none()
        );
    }
}

//! Reads the cost of a request from its response, while the response passes.

use crate::{content_decoder::ContentDecoder, http1::ParsedResponse};
use bytes::Bytes;
use http::HeaderMap;
use hyper::body::Frame;
use std::sync::Arc;
use tidegate_rule::{
    BodyCost, ResponseValues,
    body::{BodyFormat, BodyScanner, JsonPointer},
};

/// Reads the values of a response that state the cost of its request. It neither changes nor delays the response.
#[derive(Debug)]
pub struct ResponseReader {
    /// `None` if no value of the body is needed, or if it cannot be decoded.
    body: Option<ContentDecoder>,
    /// The names of the needed trailers.
    trailer_names: Vec<String>,
    trailers: Vec<(String, Vec<u8>)>,
}

impl ResponseReader {
    /// A reader of the response with this head, for these costs.
    pub(crate) fn new<'c>(costs: impl Iterator<Item = &'c BodyCost>, head: &ParsedResponse) -> Self {
        let (mut pointers, mut trailer_names): (Vec<Arc<[JsonPointer]>>, Vec<String>) = Default::default();
        for cost in costs {
            if !cost.pointers.is_empty() {
                pointers.push(cost.pointers.clone());
            }
            trailer_names.extend(cost.trailer.clone());
        }
        let pointers = match &pointers[..] {
            [] => None,
            [only] => Some(only.clone()),
            several => Some(several.iter().flat_map(|some| some.iter().cloned()).collect()),
        };
        let field = |name: &[u8]| head.fields.get(name);
        let body = pointers.and_then(|pointers| {
            let format = BodyFormat::from_content_type(field(b"content-type"));
            ContentDecoder::new(field(b"content-encoding"), BodyScanner::new(pointers, format))
        });
        Self { body, trailer_names, trailers: Vec::new() }
    }

    /// Reads a frame of the body.
    pub(crate) fn push_frame(&mut self, frame: &Frame<Bytes>) {
        if let Some(data) = frame.data_ref() {
            self.push(data);
        } else if let Some(trailers) = frame.trailers_ref() {
            self.push_trailers(trailers);
        }
    }

    /// Reads a part of the body.
    pub(crate) fn push(&mut self, data: &[u8]) {
        self.body.take_if(|body| body.push(data).is_err());
    }

    fn push_trailers(&mut self, trailers: &HeaderMap) {
        for name in &self.trailer_names {
            if let Some(value) = trailers.get(name.as_str()) {
                self.trailers.push((name.clone(), value.as_bytes().to_vec()));
            }
        }
    }

    /// The values that the response had so far.
    pub(crate) fn finish(self) -> ResponseValues {
        ResponseValues { body: self.body.map(ContentDecoder::finish), trailers: self.trailers }
    }
}

//! Bodies that move no faster than a bandwidth allows.

mod body;
mod service;
mod transform;

pub use body::ShapedBody;
pub use service::{BandwidthFuture, BandwidthService, UploadService};
pub use transform::{BandwidthMiddleware, UploadMiddleware};

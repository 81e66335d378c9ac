//! Bodies that move no faster than a bandwidth allows.

mod future;
mod layer;
mod service;

pub use future::DownloadFuture;
pub use layer::{BandwidthLayer, UploadLayer};
pub use service::{Downloads, Uploads};

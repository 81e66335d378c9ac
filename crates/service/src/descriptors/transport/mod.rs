//! The transports: gRPC, and JSON over HTTP.
//!
//! | result | gRPC | `/json` |
//! |---|---|---|
//! | allowed | `OK`, code `OK` | 200 |
//! | over a limit | `OK`, code `OVER_LIMIT` | 429 |
//! | an invalid or too large request | `INVALID_ARGUMENT` | 400 |
//! | an undecodable message | `INTERNAL` | 400 |
//! | a message of more than 4 MiB | `OUT_OF_RANGE` | 413 |
//! | no configuration, or store unavailable | `UNAVAILABLE` | 503 |
//! | missing or invalid token | `UNAUTHENTICATED` | 401 |
//! | unknown method | `UNIMPLEMENTED` | |

mod convert;
mod grpc;
mod health;
mod json;
mod reservations;

pub use convert::MAX_MESSAGE_SIZE;
pub use grpc::{GrpcServer, GrpcSettings};
pub use health::{GrpcHealth, ServingState};
pub use json::JsonHandler;
pub(crate) use reservations::{ReservationApi, router as settle_router};

//! What clients speak: gRPC, and JSON over HTTP.
//!
//! | client sees | gRPC | `/json` |
//! |---|---|---|
//! | let through | `OK`, code `OK` | 200 |
//! | over a limit | `OK`, code `OVER_LIMIT` | 429 |
//! | a request that makes no sense, or too much in it | `INVALID_ARGUMENT` | 400 |
//! | no message at all | `INTERNAL` | 400 |
//! | a message of more than 4 MiB | `OUT_OF_RANGE` | 413 |
//! | nothing loaded, or no store | `UNAVAILABLE` | 503 |
//! | a token is needed, and not sent | `UNAUTHENTICATED` | 401 |
//! | a method that there is not | `UNIMPLEMENTED` | |

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

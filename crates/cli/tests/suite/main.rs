//! Stories of the binary, in one program: it is built and linked once.

mod closed_loop;
mod simulate;
mod verify;

//! Policies, in one program: it is built and linked once.

mod code;
mod counting;
mod descriptors;
mod edits;
mod errors;
mod explain;
mod forms;
mod fuzz;
mod gate_law;
mod import;
mod index;
mod lint;
mod losses;
mod matching;
mod named;
mod nginx;
mod passages;
mod policies;
mod print;
mod reloads;
mod requests;
mod rules;
mod schema;
mod told;

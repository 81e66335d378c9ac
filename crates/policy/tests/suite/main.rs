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
mod index;
mod lint;
mod matching;
mod named;
mod passages;
mod policies;
mod print;
mod reloads;
mod requests;
mod rules;
mod schema;

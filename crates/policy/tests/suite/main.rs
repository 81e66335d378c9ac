//! Policies, in one program: it is built and linked once.

mod code;
mod counting;
mod descriptors;
mod edits;
mod errors;
mod evaluation;
mod explain;
mod fuzz;
mod gate_properties;
mod index;
mod lint;
mod matching;
mod named_rules;
mod print;
mod reload;
mod requests;
mod rules;
mod schema;
mod short_forms;
mod strategies;

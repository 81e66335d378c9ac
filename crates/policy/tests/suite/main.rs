//! The tests of this crate as one program, which is compiled and linked once.

mod code;
mod counting;
mod descriptor_requests;
mod descriptors;
mod edits;
mod errors;
mod evaluation;
mod explain;
mod fuzz;
mod gate_properties;
mod identity;
mod index;
mod lint;
mod matching;
mod named_rules;
mod overload;
mod print;
mod priority;
mod reference;
mod rejections;
mod reload;
mod requests;
mod rules;
mod schema;
mod short_forms;
mod strategies;

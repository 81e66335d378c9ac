//! Policies, in one program: it is built and linked once.

mod counting;
mod explain;
mod gate_law;
mod index;
mod lint;
mod matching;
mod passages;
mod requests;
mod rules;

// The generated code does not depend on names that the surrounding code can redefine.

#![no_implicit_prelude]
#![deny(warnings)]
#![allow(dead_code, non_camel_case_types)]

extern crate tidegate as tg;

mod core {}
mod std {}
mod tidegate {}
mod limit {}
struct Ok;
struct Err;
struct Some;
struct None;
type u64 = u8;
type Number = ::core::primitive::u64;
type Result<T> = ::core::result::Result<T, ::tg::Limited>;

#[::tg::limit("10/h burst 2", key = open_site, cost = cost, crate = ::tg)]
#[::tg::concurrency(3, key = (checked, limited), crate = ::tg)]
#[::tg::breaker(classify = |_| ::tg::CallOutcome::Success, crate = ::tg)]
fn blocking(open_site: Number, cost: Number, checked: &str, limited: u32, answer: Number) -> Result<Number> {
    let (granted_0, pass_0, pending) = (open_site, cost, answer);
    let _ = (checked, limited);
    ::core::result::Result::Ok(granted_0 + pass_0 + pending)
}

#[::tg::limit("10/h burst 2", "20/d", key = open_site, cost = cost, wait = "1ms", crate = ::tg)]
#[::tg::concurrency(3, key = (checked, limited), crate = ::tg)]
#[::tg::breaker(slow_call_duration = "1s", backoff = 1.5, jitter = "10%", crate = ::tg)]
async fn asynchronous(open_site: Number, cost: Number, checked: &str, limited: u32) -> Result<Number> {
    let _ = (checked, limited);
    ::core::result::Result::Ok(open_site + cost)
}

fn main() {
    let first = blocking(1, 2, "a", 3, 4);
    let second = blocking(1, 2, "a", 3, 4);
    ::core::assert!(::core::matches!(
        (first, second),
        (::core::result::Result::Ok(7), ::core::result::Result::Err(_))
    ));
    ::core::mem::drop(asynchronous(1, 1, "a", 1));
}

//! The attribute macros `limit`, `concurrency`, `breaker`, `retry` and `time_limit`.
//!
//! Use them through the crate `tidegate`, which documents them: the generated code refers to that crate only.
//!
//! | noun | meaning |
//! |---|---|
//! | [`macro@limit`] | limits the rate of calls of a function |
//! | [`macro@concurrency`] | limits the number of calls in flight |
//! | [`macro@breaker`] | rejects calls while too many fail or are slow |
//! | [`macro@retry`] | retries failed calls, within a budget |
//! | [`macro@time_limit`] | cancels calls that take too long |
//!
//! It does not
//!
//! - count calls: the generated code calls `tidegate::site`;
//! - parse quotas itself: `tidegate-core` does, at compile time.

mod block;
mod boxed_future;
mod breaker;
mod function;
mod limit;
mod params;
mod pattern;
mod rejection;
mod retry;
mod stack;
mod text;

use function::Function;
use proc_macro::TokenStream;
use stack::AttributeKind;
use syn::{
    Attribute, ItemImpl, Token, Visibility,
    parse::{ParseStream, Parser as _},
};

#[doc = include_str!("../docs/limit.md")]
#[proc_macro_attribute]
pub fn limit(params: TokenStream, item: TokenStream) -> TokenStream {
    expand(AttributeKind::Limit, params.into(), &item.into())
}

#[doc = include_str!("../docs/concurrency.md")]
#[proc_macro_attribute]
pub fn concurrency(params: TokenStream, item: TokenStream) -> TokenStream {
    expand(AttributeKind::Concurrency, params.into(), &item.into())
}

#[doc = include_str!("../docs/breaker.md")]
#[proc_macro_attribute]
pub fn breaker(params: TokenStream, item: TokenStream) -> TokenStream {
    expand(AttributeKind::Breaker, params.into(), &item.into())
}

#[doc = include_str!("../docs/retry.md")]
#[proc_macro_attribute]
pub fn retry(params: TokenStream, item: TokenStream) -> TokenStream {
    expand(AttributeKind::Retry, params.into(), &item.into())
}

#[doc = include_str!("../docs/time_limit.md")]
#[proc_macro_attribute]
pub fn time_limit(params: TokenStream, item: TokenStream) -> TokenStream {
    expand(AttributeKind::TimeLimit, params.into(), &item.into())
}

fn expand(
    which: AttributeKind,
    params: proc_macro2::TokenStream,
    item: &proc_macro2::TokenStream,
) -> TokenStream {
    if params.to_string() == stack::CONSUMED_MARK {
        return TokenStream::new();
    }
    let expanded = match is_block.parse2(item.clone()) {
        Ok(true) => {
            syn::parse2::<ItemImpl>(item.clone()).and_then(|block| block::expand(which, &params, block))
        }
        _ => syn::parse2::<Function>(item.clone())
            .and_then(|mut function| stack::expand(which, params, &mut function)),
    };
    // On an error the item is emitted unchanged, so that its uses do not fail too.
    let expanded = expanded.unwrap_or_else(|error| {
        let error = error.into_compile_error();
        quote::quote!(#error #item)
    });
    expanded.into()
}

/// Whether the item is an `impl` block; consumes all remaining tokens.
fn is_block(input: ParseStream<'_>) -> syn::Result<bool> {
    input.call(Attribute::parse_outer)?;
    input.parse::<Visibility>()?;
    let is_block = input.peek(Token![impl]) || (input.peek(Token![unsafe]) && input.peek2(Token![impl]));
    input.step(|cursor| {
        let mut rest = *cursor;
        while let Some((_, next)) = rest.token_tree() {
            rest = next;
        }
        Ok(((), rest))
    })?;
    Ok(is_block)
}

//! The attributes `limit`, `concurrency` and `breaker`.
//!
//! They belong to the crate `tidegate`, which documents them: what they expand to names only that.

mod block;
mod boxed_future;
mod breaker;
mod function;
mod limit;
mod params;
mod pattern;
mod rejection;
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
    // Beside a mistake goes the item as it was: nobody else should stumble over its absence.
    let expanded = expanded.unwrap_or_else(|mistake| {
        let mistake = mistake.into_compile_error();
        quote::quote!(#mistake #item)
    });
    expanded.into()
}

/// Whether an `impl` block comes; what is behind that is left alone.
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

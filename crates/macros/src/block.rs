//! An attribute on an `impl` block, which goes to all its methods.

use crate::{
    params::{Mistakes, OF_BLOCK},
    stack::{Which, params_of},
};
use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens as _, quote};
use syn::{Attribute, Error, ImplItem, ImplItemFn, ItemImpl, Result, parse_quote};

/// Gives the attribute to every method that has none of its own.
pub(crate) fn expand(which: Which, params: &TokenStream, mut block: ItemImpl) -> Result<TokenStream> {
    let mark = Ident::new(OF_BLOCK, Span::call_site());
    let comma = match params.clone().into_iter().last() {
        None => None,
        Some(TokenTree::Punct(last)) if last.as_char() == ',' => None,
        Some(_) => Some(quote!(,)),
    };
    let params = quote!(#params #comma #mark);
    // What is wrong is told once, and not for each method.
    let krate = which.check(params.clone())?;
    let name = Ident::new(which.name(), Span::call_site());
    let attribute: Attribute = parse_quote!(#[#krate::#name(#params)]);
    let mut mistakes = Mistakes::default();
    let methods = block.items.iter_mut().filter_map(|item| match item {
        ImplItem::Fn(method) => Some(method),
        _ => None,
    });
    if methods.map(|method| give(which, &attribute, method)).count() == 0 {
        mistakes.note(Error::new_spanned(&block.self_ty, "there is no method in this block"));
    }
    mistakes.finish(block.into_token_stream())
}

/// A method's own attribute wins. Those of the block stand in front, in the order of the block.
fn give(which: Which, attribute: &Attribute, method: &mut ImplItemFn) {
    let is_own = |other: &Attribute| Which::of(other) == Some(which) && !is_of_block(other);
    if !method.attrs.iter().any(is_own) {
        let place = method.attrs.iter().rposition(is_of_block).map_or(0, |last| last + 1);
        method.attrs.insert(place, attribute.clone());
    }
}

fn is_of_block(attribute: &Attribute) -> bool {
    let ends_in_mark =
        |params: TokenStream| params.into_iter().last().is_some_and(|token| token.to_string() == OF_BLOCK);
    Which::of(attribute).is_some() && params_of(attribute.clone()).is_ok_and(ends_in_mark)
}

//! Patterns of arguments.

use crate::retry::BoundNames;
use proc_macro2::TokenStream;
use quote::quote;
use syn::{Error, FieldPat, Member, Pat, Result};

/// Whether a pattern binds this name.
pub(crate) fn binds(pattern: &Pat, name: &str) -> bool {
    let any = |patterns: &mut dyn Iterator<Item = &Pat>| {
        for pattern in patterns {
            if binds(pattern, name) {
                return true;
            }
        }
        false
    };
    match pattern {
        Pat::Ident(ident) => {
            ident.ident == name || ident.subpat.as_ref().is_some_and(|(_, inner)| binds(inner, name))
        }
        Pat::Paren(inner) => binds(&inner.pat, name),
        Pat::Reference(inner) => binds(&inner.pat, name),
        Pat::Type(inner) => binds(&inner.pat, name),
        Pat::Slice(parts) => any(&mut parts.elems.iter()),
        Pat::Tuple(parts) => any(&mut parts.elems.iter()),
        Pat::TupleStruct(parts) => any(&mut parts.elems.iter()),
        Pat::Struct(parts) => any(&mut parts.fields.iter().map(|field| &*field.pat)),
        _ => false,
    }
}

/// Adds the names that a pattern binds, each with its `mut`.
pub(crate) fn bound_names(pattern: &Pat, names: &mut BoundNames) {
    match pattern {
        Pat::Ident(ident) => {
            names.push((ident.ident.clone(), ident.mutability));
            if let Some((_, inner)) = &ident.subpat {
                bound_names(inner, names);
            }
        }
        Pat::Paren(inner) => bound_names(&inner.pat, names),
        Pat::Reference(inner) => bound_names(&inner.pat, names),
        Pat::Type(inner) => bound_names(&inner.pat, names),
        Pat::Slice(parts) => parts.elems.iter().for_each(|part| bound_names(part, names)),
        Pat::Tuple(parts) => parts.elems.iter().for_each(|part| bound_names(part, names)),
        Pat::TupleStruct(parts) => parts.elems.iter().for_each(|part| bound_names(part, names)),
        Pat::Struct(parts) => parts.fields.iter().for_each(|field| bound_names(&field.pat, names)),
        _ => {}
    }
}

/// The expression that rebuilds the value of a pattern.
pub(crate) fn to_expression(pattern: &Pat) -> Result<TokenStream> {
    let each =
        |patterns: &mut dyn Iterator<Item = &Pat>| patterns.map(to_expression).collect::<Result<Vec<_>>>();
    match pattern {
        Pat::Ident(ident) if ident.by_ref.is_none() => {
            let name = &ident.ident;
            Ok(quote!(#name))
        }
        Pat::Paren(inner) => to_expression(&inner.pat),
        Pat::Reference(inner) => {
            let (mutability, value) = (&inner.mutability, to_expression(&inner.pat)?);
            Ok(quote!(&#mutability #value))
        }
        Pat::Tuple(parts) => {
            let values = each(&mut parts.elems.iter())?;
            Ok(quote!((#(#values,)*)))
        }
        Pat::TupleStruct(parts) if parts.qself.is_none() => {
            let (path, values) = (&parts.path, each(&mut parts.elems.iter())?);
            Ok(quote!(#path(#(#values),*)))
        }
        Pat::Slice(parts) => {
            let values = each(&mut parts.elems.iter())?;
            Ok(quote!([#(#values),*]))
        }
        Pat::Struct(parts) if parts.qself.is_none() && parts.rest.is_none() => {
            let path = &parts.path;
            let fields = parts.fields.iter().map(field_expression).collect::<Result<Vec<_>>>()?;
            Ok(quote!(#path { #(#fields),* }))
        }
        other => Err(Error::new_spanned(
            other,
            "`on_limit` is called with the same arguments, and this pattern cannot be used as one; use a name, and \
             destructure it in the body",
        )),
    }
}

fn field_expression(field: &FieldPat) -> Result<TokenStream> {
    let value = to_expression(&field.pat)?;
    Ok(match &field.member {
        Member::Named(name) => quote!(#name: #value),
        Member::Unnamed(index) => quote!(#index: #value),
    })
}

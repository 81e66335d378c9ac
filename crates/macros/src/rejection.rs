//! What a function returns when it was refused.

use crate::{
    function::{Function, respan},
    params::Params,
};
use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens as _, quote_spanned};
use syn::{Error, Expr, Path, Result};

/// What a function returns when it was refused.
#[derive(Default)]
pub(crate) enum RejectionMode {
    /// Its own error, which takes in ours.
    #[default]
    From,
    /// What another function with the same arguments returns.
    Fallback(Expr),
    /// The error that a function makes of ours.
    MapError(Expr),
}

impl RejectionMode {
    pub(crate) fn parse(params: &Params) -> Result<Self> {
        let fallback = params.value("on_limit", "cached")?;
        let or = params.value("or", "MyError::busy")?;
        match (fallback, or) {
            (None, None) => Ok(Self::From),
            (None, Some(or)) => Ok(Self::MapError(or.clone())),
            (Some(Expr::Path(path)), None) => Ok(Self::Fallback(Expr::Path(path.clone()))),
            (Some(other), None) => Err(Error::new_spanned(
                other,
                "a path of a function is needed here, as in `on_limit = cached` or `on_limit = Self::cached`; it gets the \
                 same arguments",
            )),
            (Some(_), Some(or)) => Err(Error::new_spanned(
                or,
                "either `on_limit` or `or` says what to return; remove one of them",
            )),
        }
    }

    /// What is bound to the refusal, and what is done with it. Whatever is in `before` was granted before it, and is given
    /// back first.
    pub(crate) fn match_arm(
        &self,
        krate: &Path,
        function: &Function,
        before: &[Ident],
    ) -> Result<TokenStream> {
        let site = Span::mixed_site();
        let release_granted = quote_spanned!(site=> #(::core::mem::drop(#before);)*);
        Ok(match self {
            Self::From => {
                let (first, last) = function.output_span();
                let krate = respan(krate, first);
                let from = quote_spanned!(first=> #krate::site::FromLimited);
                let from_limited = quote_spanned!(last=> ::from_limited(limited));
                quote_spanned!(site=> ::core::result::Result::Err(limited) => return #from #from_limited,)
            }
            Self::MapError(or) => {
                let or = function.rename_self(or);
                quote_spanned! {site=>
                    ::core::result::Result::Err(limited) => {
                        return ::core::result::Result::Err(#krate::site::refuse(limited, #or));
                    }
                }
            }
            Self::Fallback(path) => {
                let arguments = function.arguments()?;
                let name = path.to_token_stream().into_iter().last().map_or(site, |last| last.span());
                let path = path.to_token_stream();
                // Where it is not `async`, the compiler points at its name.
                let at = name.resolved_at(site);
                let awaited = function.is_async().then(|| quote_spanned!(at=> .await));
                // An argument that the body has no use for is of use here.
                quote_spanned! {site=>
                    ::core::result::Result::Err(_) => {
                        #release_granted
                        #[allow(clippy::used_underscore_binding)]
                        return #path(#(#arguments),*) #awaited;
                    }
                }
            }
        })
    }
}

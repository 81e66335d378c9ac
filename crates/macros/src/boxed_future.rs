//! Functions that return a boxed future, as `async_trait` rewrites methods:
//!
//! ```text
//! fn name<'a>(&'a self, id: u64, __arg2: (A, B)) -> Pin<Box<dyn Future<Output = X> + Send + 'a>> {
//!     Box::pin(async move {
//!         if let Some(__ret) = None::<X> { return __ret; }
//!         let __self = self;
//!         let id = id;
//!         let (a, b) = { let __arg2 = __arg2; __arg2 };
//!                                                         ◀── the checks are inserted here
//!         let __ret: X = { … };
//!         __ret
//!     })
//! }
//! ```

use proc_macro2::{Group, Ident, Span, TokenStream};
use quote::{ToTokens as _, quote};
use syn::{
    AngleBracketedGenericArguments, Block, Expr, ExprAsync, GenericArgument, Local, Pat, PathArguments,
    ReturnType, Signature, Stmt, TraitBound, Type,
    visit_mut::{self, VisitMut},
};

/// A boxed future.
pub(crate) struct BoxedFuture {
    /// The name of `self` in it, if it is renamed.
    pub(crate) this: Option<Ident>,
    /// Its output type, if it is written.
    pub(crate) output: Option<Type>,
    /// The span of the body of the function.
    pub(crate) span: Span,
    /// The whole body of the function, with an empty future.
    outer: Vec<Stmt>,
    /// The bindings of the arguments.
    arguments: Vec<Stmt>,
    body: Vec<Stmt>,
}

impl BoxedFuture {
    /// Finds a future that is the whole result of the function.
    pub(crate) fn find(sig: &Signature, body: &Group) -> Option<Self> {
        let ReturnType::Type(_, output) = &sig.output else { return None };
        let mut shell = syn::parse2::<Block>(body.to_token_stream()).ok()?.stmts;
        let (last, before) = shell.split_last_mut()?;
        if !before.iter().all(|statement| matches!(statement, Stmt::Item(_))) {
            return None;
        }
        let Stmt::Expr(last, None) = last else { return None };
        let statements = std::mem::take(&mut find_async_block(last)?.block.stmts);
        let is_argument =
            |statement: &&Stmt| is_output_hint(statement) || argument_binding(statement).is_some();
        let count = statements.iter().take_while(is_argument).count();
        let mut arguments = statements;
        let rest = arguments.split_off(count);
        let this = arguments.iter().filter_map(argument_binding).find_map(|(pattern, from)| match pattern {
            Pat::Ident(this) if from == "self" => Some(this.ident.clone()),
            _ => None,
        });
        Some(Self {
            this,
            output: future_output(output),
            span: body.span(),
            outer: shell,
            arguments,
            body: rest,
        })
    }

    /// The patterns that destructure arguments.
    pub(crate) fn patterns(&self) -> impl Iterator<Item = &Pat> {
        self.arguments.iter().filter_map(argument_binding).map(|(pattern, _)| pattern)
    }

    /// The original pattern of an argument.
    pub(crate) fn pattern_of(&self, argument: &Pat) -> Option<&Pat> {
        let Pat::Ident(argument) = argument else { return None };
        let mut all = self.arguments.iter().filter_map(argument_binding);
        all.find_map(|(pattern, from)| (from == argument.ident).then_some(pattern))
    }

    /// The statements after the bindings of the arguments.
    pub(crate) fn block(&self) -> TokenStream {
        let rest = &self.body;
        quote!({ #(#rest)* })
    }

    /// The body of the function, with other statements after the bindings.
    pub(crate) fn with_block(&self, block: TokenStream) -> TokenStream {
        let mut shell = self.outer.clone();
        if let Some(Stmt::Expr(last, None)) = shell.last_mut()
            && let Some(future) = find_async_block(last)
        {
            future.block.stmts.clone_from(&self.arguments);
            future.block.stmts.push(Stmt::Expr(Expr::Verbatim(block), None));
        }
        quote!(#(#shell)*)
    }
}

/// The block in `Box::pin(async move { … })`, or a plain one.
fn find_async_block(expression: &mut Expr) -> Option<&mut ExprAsync> {
    match expression {
        Expr::Async(future) => Some(future),
        Expr::Call(call) if call.args.len() == 1 => {
            let Expr::Path(path) = &*call.func else { return None };
            let names: Vec<_> =
                path.path.segments.iter().rev().map(|segment| segment.ident.to_string()).collect();
            match names.iter().map(String::as_str).collect::<Vec<_>>()[..] {
                ["pin", "Box", ..] => find_async_block(call.args.first_mut()?),
                _ => None,
            }
        }
        _ => None,
    }
}

/// `if let Some(__ret) = None::<X> { return __ret; }`, which is only a type hint for the compiler.
fn is_output_hint(statement: &Stmt) -> bool {
    let Stmt::Expr(Expr::If(condition), _) = statement else { return false };
    let text = condition.cond.to_token_stream().to_string();
    text.contains("None") && text.contains("__ret")
}

/// The pattern and the argument of `let id = id;`, `let __self = self;` and `let (a, b) = { let __arg2 = __arg2; __arg2 };`.
fn argument_binding(statement: &Stmt) -> Option<(&Pat, Ident)> {
    let Stmt::Local(Local { pat, init: Some(init), .. }) = statement else { return None };
    let from = match &*init.expr {
        Expr::Path(path) => path.path.get_ident()?,
        Expr::Block(block) => match block.block.stmts.last()? {
            Stmt::Expr(Expr::Path(path), None) => path.path.get_ident()?,
            _ => return None,
        },
        _ => return None,
    };
    match pat {
        Pat::Ident(to) if to.ident == *from || (to.ident == "__self" && from == "self") => {}
        Pat::Ident(_) | Pat::Type(_) => return None,
        _ if from.to_string().starts_with("__arg") => {}
        _ => return None,
    }
    Some((pat, from.clone()))
}

/// `X` of `Future<Output = X>`.
fn future_output(boxed: &Type) -> Option<Type> {
    struct OutputSearch(Option<Type>);
    impl VisitMut for OutputSearch {
        fn visit_trait_bound_mut(&mut self, bound: &mut TraitBound) {
            let Some(segment) = bound.path.segments.last() else { return };
            if let PathArguments::AngleBracketed(AngleBracketedGenericArguments { args, .. }) =
                &segment.arguments
                && segment.ident == "Future"
            {
                self.0 = self.0.take().or_else(|| {
                    args.iter().find_map(|argument| match argument {
                        GenericArgument::AssocType(output) if output.ident == "Output" => {
                            Some(output.ty.clone())
                        }
                        _ => None,
                    })
                });
            }
            visit_mut::visit_trait_bound_mut(self, bound);
        }
    }
    let mut search = OutputSearch(None);
    search.visit_type_mut(&mut boxed.clone());
    search.0
}

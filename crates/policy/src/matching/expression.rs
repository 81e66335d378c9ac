//! CEL expressions, compiled when a policy is loaded.
//!
//! The content of a request must not determine the evaluation time. Therefore there are no loops (`all`, `exists`, `map`,
//! `filter`), no functions whose result can be larger than their input (`replace`, `format`, `join`), no regular
//! expressions, and the number of steps is known at load time. The inputs are known then, too: only headers, parameters and
//! cookies that the expression names are read.

use super::{RequestView, types::Type};
use crate::{model::Expression, source::truncate};
use cel::{
    Context, Env, Program, Value,
    common::ast::{Expr, IdedExpr, LiteralValue},
    extensions,
};
use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};
use tidegate_core::SettingError;
use tidegate_rule::request::{KeyValue, for_each_cookie, for_each_query};

/// A compiled expression.
///
/// | input | value |
/// |---|---|
/// | `request.method`, `request.host` | a string; the host in lower case and without a port |
/// | `request.path` | a string: the normalized path, as for patterns |
/// | `request.size` | an integer: `Content-Length`, 0 without one |
/// | `request.client` | a string: the address of the client, empty if unknown |
/// | `request.headers['x-plan']`, `request.headers.accept` | a string: the first value; `'x-plan' in request.headers` checks that there is one |
/// | `request.query['page']`, `request.cookies['session']` | likewise |
///
/// An expression fails for a request without one of its inputs, such as a header. A key is then missing, and a `when` has the
/// value that its [`ExpressionPurpose`] defines. Failures are counted.
pub(crate) struct CompiledExpression {
    program: Program,
    inputs: ExpressionInputs,
    purpose: ExpressionPurpose,
    text: Arc<str>,
    failures: AtomicU64,
}

/// The purpose of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpressionPurpose {
    /// A condition of a match.
    Condition {
        /// The value if the evaluation fails.
        on_failure: bool,
    },
    /// The key of a rule.
    Key,
}

/// The parts of a request that an expression reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ExpressionInputs {
    fields: BTreeSet<RequestField>,
    headers: BTreeSet<String>,
    queries: BTreeSet<String>,
    cookies: BTreeSet<String>,
    /// Names whose presence it checks, as in `'x-plan' in request.headers`.
    tested: BTreeSet<(&'static str, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RequestField {
    Method,
    Path,
    Host,
    Size,
    Client,
}

pub(super) const FIELDS: [(&str, RequestField); 5] = [
    ("method", RequestField::Method),
    ("path", RequestField::Path),
    ("host", RequestField::Host),
    ("size", RequestField::Size),
    ("client", RequestField::Client),
];
const TABLE_NAMES: [&str; 3] = ["headers", "query", "cookies"];

/// The allowed functions: operators, and functions whose result is not larger than their input.
const ALLOWED_FUNCTIONS: [&str; 33] = [
    "_?_:_",
    "_&&_",
    "_||_",
    "!_",
    "_-_",
    "_+_",
    "_*_",
    "_/_",
    "_%_",
    "_==_",
    "_!=_",
    "_>=_",
    "_<=_",
    "_>_",
    "_<_",
    "-_",
    "_[_]",
    "@in",
    "size",
    "contains",
    "startsWith",
    "endsWith",
    "int",
    "uint",
    "double",
    "string",
    "bool",
    "split",
    "lowerAscii",
    "upperAscii",
    "trim",
    "substring",
    "charAt",
];

/// The maximum length of an expression, in bytes.
pub(super) const MAX_EXPRESSION_BYTES: usize = 1_000;
/// The maximum nesting depth. Evaluation takes about 30 kB of stack per level in a debug build, and a thread has 2 MB.
pub(super) const MAX_NESTING: usize = 16;
/// The stack for parsing the deepest expression of maximum length, with some reserve. Unused pages take no memory.
const PARSER_STACK_BYTES: usize = 256 << 20;

pub(super) static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut env = Env::stdlib();
    // Cannot fail: the names do not conflict with others.
    let _known = env.add_extension(extensions::strings);
    Arc::new(env)
});

impl CompiledExpression {
    pub(crate) fn new(expression: &Expression, purpose: ExpressionPurpose) -> Result<Self, SettingError> {
        let text = &expression.0;
        if text.len() > MAX_EXPRESSION_BYTES {
            let problem = format!("expression of {} bytes", text.len());
            return Err(SettingError::new(problem, format!("shorten it to {MAX_EXPRESSION_BYTES} bytes")));
        }
        parse_on_large_stack(text, || Self::parse(text, purpose))
    }

    fn parse(text: &Arc<str>, purpose: ExpressionPurpose) -> Result<Self, SettingError> {
        let program = ENV.compile(text).map_err(|errors| {
            let first =
                errors.errors.first().map(|error| error.msg.lines().next().unwrap_or_default().to_owned());
            let problem =
                format!("invalid expression `{}`: {}", single_line(text), first.unwrap_or_default());
            SettingError::new(problem, "write CEL, such as `request.size > 1000`")
        })?;
        let mut inputs = ExpressionInputs::default();
        inputs.collect(program.expression(), 0)?;
        let found = Type::infer(program.expression())?;
        match purpose {
            ExpressionPurpose::Condition { .. } if !found.can_be_bool() => {
                let problem = format!("`{}` is {found}, but `when` needs a boolean", single_line(text));
                return Err(SettingError::new(problem, "compare it, as in `request.size > 1000`"));
            }
            ExpressionPurpose::Key if !found.can_be_key() => {
                let problem =
                    format!("`{}` is {found}, but a key must be a string or an integer", single_line(text));
                return Err(SettingError::new(problem, "convert it, as in `string(request.size)`"));
            }
            ExpressionPurpose::Condition { .. } | ExpressionPurpose::Key => {}
        }
        Ok(Self { program, inputs, purpose, text: text.clone(), failures: AtomicU64::new(0) })
    }

    /// The inputs whose presence the expression does not check. It fails for requests without one of them.
    pub(crate) fn unguarded_inputs(&self) -> Vec<String> {
        let ExpressionInputs { headers, queries, cookies, tested, .. } = &self.inputs;
        let tables = [("headers", headers), ("query", queries), ("cookies", cookies)];
        let names = tables.into_iter().flat_map(|(table, names)| names.iter().map(move |name| (table, name)));
        names
            .filter(|(table, name)| !tested.contains(&(*table, (*name).clone())))
            .map(|(table, name)| format!("request.{table}['{name}']"))
            .collect()
    }

    /// The number of failed evaluations.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Whether it is true for a request; if it fails, the value that its purpose defines.
    pub(crate) fn is_true(&self, view: &RequestView<'_>) -> bool {
        let on_failure = matches!(self.purpose, ExpressionPurpose::Condition { on_failure: true });
        match self.evaluate(view) {
            Some(Value::Bool(value)) => value,
            Some(_) => self.record_failure().unwrap_or(on_failure),
            None => on_failure,
        }
    }

    /// Returns its value for a request as a key.
    pub(crate) fn evaluate_key(&self, view: &RequestView<'_>) -> Option<KeyValue<'static>> {
        match self.evaluate(view)? {
            Value::String(text) if text.is_empty() => None,
            Value::String(text) => Some(KeyValue::from(text.as_str().to_owned())),
            Value::UInt(number) => Some(number.into()),
            Value::Int(number) => Some(match u64::try_from(number) {
                Ok(number) => number.into(),
                Err(_) => number.to_string().into(),
            }),
            Value::Bool(value) => Some(value.to_string().into()),
            _ => self.record_failure(),
        }
    }

    fn evaluate(&self, view: &RequestView<'_>) -> Option<Value> {
        let mut context = Context::with_env(ENV.clone());
        context.add_variable_from_value("request", self.inputs.extract(view));
        match self.program.execute(&context) {
            Ok(value) => Some(value),
            Err(_) => self.record_failure(),
        }
    }

    #[cold]
    fn record_failure<T>(&self) -> Option<T> {
        self.failures.fetch_add(1, Ordering::Relaxed);
        None
    }
}

impl fmt::Debug for CompiledExpression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompiledExpression({})", self.text)
    }
}

impl ExpressionInputs {
    /// Collects the inputs of an expression, and rejects forbidden functions and constructs.
    fn collect(&mut self, at: &IdedExpr, depth: usize) -> Result<(), SettingError> {
        if depth > MAX_NESTING {
            return Err(SettingError::new("expression nested too deeply", "simplify it"));
        }
        match &at.expr {
            Expr::Literal(_) => Ok(()),
            Expr::List(list) => list.elements.iter().try_for_each(|element| self.collect(element, depth + 1)),
            Expr::Select(select) => match (table_name(&select.operand), is_request(&select.operand)) {
                (Some(table), _) => {
                    if select.test {
                        self.tested.insert((table, select.field.clone()));
                    }
                    self.add_name(table, &select.field)
                }
                (None, true) => self.add_field(&select.field),
                (None, false) => self.collect(&select.operand, depth + 1),
            },
            Expr::Call(call) => {
                check_function(&call.func_name)?;
                match (&*call.func_name, &call.args[..]) {
                    ("_[_]", [of, name]) | ("@in", [name, of]) if table_name(of).is_some() => {
                        let Expr::Literal(LiteralValue::String(name)) = &name.expr else {
                            return Err(SettingError::new(
                                "computed name in an expression",
                                "write a literal name, as in `request.headers['x-plan']`",
                            ));
                        };
                        let table = table_name(of).unwrap_or_default();
                        if call.func_name == "@in" {
                            self.tested.insert((table, name.inner().to_owned()));
                        }
                        self.add_name(table, name.inner())
                    }
                    (_, args) => {
                        let target = call.target.iter().map(|target| &**target);
                        target.chain(args).try_for_each(|arg| self.collect(arg, depth + 1))
                    }
                }
            }
            Expr::Ident(name) if name == "request" => {
                Err(SettingError::new("`request` without a field", format!("use one of {}", known_names())))
            }
            Expr::Ident(name) => Err(SettingError::new(
                format!("unknown name `{name}`"),
                format!("use one of {}", known_names()),
            )),
            Expr::Comprehension(_) => Err(SettingError::new(
                "loop in an expression (`all`, `exists`, `map`, `filter`)",
                "remove it: the content of a request must not determine the evaluation time",
            )),
            Expr::Map(_) | Expr::Struct(_) | Expr::Unspecified => {
                Err(SettingError::new("map in an expression", "use strings, numbers or lists"))
            }
        }
    }

    fn add_field(&mut self, name: &str) -> Result<(), SettingError> {
        match FIELDS.iter().find(|(known, _)| *known == name) {
            Some((_, field)) => {
                self.fields.insert(*field);
                Ok(())
            }
            None if TABLE_NAMES.contains(&name) => Err(SettingError::new(
                format!("`request.{name}` without a name"),
                format!("write a name, as in `request.{name}['name']`"),
            )),
            None => Err(SettingError::new(
                format!("unknown `request.{name}`"),
                format!("use one of {}", known_names()),
            )),
        }
    }

    fn add_name(&mut self, table: &str, name: &str) -> Result<(), SettingError> {
        let names = match table {
            "headers" => &mut self.headers,
            "query" => &mut self.queries,
            _ => &mut self.cookies,
        };
        if table == "headers" && name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            let name = single_line(name);
            let fix = format!("write it in lower case: `{}`", name.to_ascii_lowercase());
            return Err(SettingError::new(format!("header `{name}` in upper case"), fix));
        }
        names.insert(name.to_owned());
        Ok(())
    }

    /// Reads the inputs from a request.
    fn extract(&self, view: &RequestView<'_>) -> HashMap<String, Value> {
        let head = view.head();
        let field = |(name, field): &(&str, RequestField)| {
            let value: Value = match field {
                RequestField::Method => head.method().to_owned().into(),
                RequestField::Path => view.path().to_display().into(),
                RequestField::Host => view.host().unwrap_or_default().to_owned().into(),
                RequestField::Size => content_length(head.header("content-length")).into(),
                RequestField::Client => {
                    view.client().map(|client| client.to_string()).unwrap_or_default().into()
                }
            };
            ((*name).to_owned(), value)
        };
        let mut parts: HashMap<_, _> =
            FIELDS.iter().filter(|(_, known)| self.fields.contains(known)).map(field).collect();
        let mut table = |name: &str, names: &BTreeSet<String>, first: &dyn Fn(&str) -> Option<String>| {
            if !names.is_empty() {
                let found = names.iter().filter_map(|name| Some((name.clone(), first(name)?.into())));
                parts.insert(name.to_owned(), found.collect::<HashMap<String, Value>>().into());
            }
        };
        let lossy = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        table("headers", &self.headers, &|name| head.header(name).map(<[u8]>::trim_ascii).map(lossy));
        table("query", &self.queries, &|name| {
            let mut first = None;
            for_each_query(head, name, &mut |value| _ = first.get_or_insert_with(|| lossy(&value)));
            first
        });
        table("cookies", &self.cookies, &|name| {
            let mut first = None;
            for_each_cookie(head, name, &mut |value| _ = first.get_or_insert_with(|| lossy(value)));
            first
        });
        parts
    }
}

/// Parses an expression on a thread with a large stack.
///
/// The parser recurses about thirty times per bracket, and a thousand brackets overflow the stack of a usual thread. Deeply nested
/// expressions are then rejected with an error.
pub(super) fn parse_on_large_stack<T: Send>(
    text: &str,
    parse: impl FnOnce() -> Result<T, SettingError> + Send,
) -> Result<T, SettingError> {
    let builder = thread::Builder::new().stack_size(PARSER_STACK_BYTES);
    thread::scope(|scope| {
        let result = builder.spawn_scoped(scope, parse).map(thread::ScopedJoinHandle::join);
        match result {
            Ok(Ok(parsed)) => parsed,
            Ok(Err(_)) | Err(_) => {
                let problem = format!("cannot parse `{}`: out of memory", single_line(text));
                Err(SettingError::new(problem, "simplify it, or free some memory"))
            }
        }
    })
}

/// Rejects a function whose result can be larger than its input.
pub(super) fn check_function(name: &str) -> Result<(), SettingError> {
    match ALLOWED_FUNCTIONS.contains(&name) {
        true => Ok(()),
        false => Err(SettingError::new(
            format!("function `{name}` is not allowed"),
            format!("use one of {}", ALLOWED_FUNCTIONS[18..].join(", ")),
        )),
    }
}

/// Truncates a text to one line.
pub(super) fn single_line(text: &str) -> String {
    truncate(&text.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn content_length(header: Option<&[u8]>) -> i64 {
    header.and_then(|text| str::from_utf8(text).ok()?.trim().parse().ok()).unwrap_or(0)
}

pub(super) fn is_request(at: &IdedExpr) -> bool {
    matches!(&at.expr, Expr::Ident(name) if name == "request")
}

/// Returns `headers` for `request.headers`.
pub(super) fn table_name(at: &IdedExpr) -> Option<&'static str> {
    match &at.expr {
        Expr::Select(select) if is_request(&select.operand) && !select.test => {
            TABLE_NAMES.into_iter().find(|table| *table == select.field)
        }
        _ => None,
    }
}

fn known_names() -> String {
    let fields = FIELDS.iter().map(|(name, _)| format!("request.{name}"));
    let tables = TABLE_NAMES.iter().map(|name| format!("request.{name}['name']"));
    fields.chain(tables).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half of the stack of a usual thread.
    const SMALL_STACK_BYTES: usize = 1 << 20;

    #[test]
    fn deepest_accepted_expression_runs_on_small_stack() {
        let nested = |open: &str, core: &str, close: &str, times: usize| {
            format!("{}{core}{}", open.repeat(times), close.repeat(times))
        };
        let kinds = [
            ("!", "true", ""),
            ("-", "1", ""),
            ("1 + (", "1", ")"),
            ("true && (false || (", "true", "))"),
            ("string(", "'a'", ")"),
            ("size(", "'a'", ")"),
            ("[", "1", "][0]"),
            ("(true ? ", "1", " : 2)"),
            ("('a' in [", "'a'", "] ? 'a' : 'b')"),
            ("", "'a'", ".trim()"),
            ("", "1", " + 1"),
        ];
        for (open, core, close) in kinds {
            let accepted: Vec<_> = (1..=80)
                .filter_map(|times| {
                    let text = nested(open, core, close, times);
                    CompiledExpression::new(
                        &Expression(text.as_str().into()),
                        ExpressionPurpose::Condition { on_failure: true },
                    )
                    .or_else(|_| {
                        CompiledExpression::new(&Expression(text.as_str().into()), ExpressionPurpose::Key)
                    })
                    .ok()
                })
                .collect();
            assert!(!accepted.is_empty(), "{open}…{close}");
            let working = thread::Builder::new().stack_size(SMALL_STACK_BYTES).spawn(move || {
                for compiled in &accepted {
                    let mut context = Context::with_env(ENV.clone());
                    context.add_variable_from_value("request", Value::Bool(true));
                    let _result = compiled.program.execute(&context);
                }
                drop(accepted);
            });
            working.unwrap().join().unwrap();
        }
    }
}

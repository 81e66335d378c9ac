//! Expressions in CEL: compiled when a policy is loaded, asked only by rules that have one.
//!
//! Nothing that a client sends may decide how long an expression takes. So there are no loops (`all`, `exists`, `map`,
//! `filter`), no functions whose answer can be larger than what goes in (`replace`, `format`, `join`), no regular
//! expressions, and a number of steps that is known when it is read. What it looks at is known then, too: only those
//! headers, parameters and cookies are fetched that it names.

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

/// An expression that can be asked.
///
/// | it sees | as |
/// |---|---|
/// | `request.method`, `request.host` | text; the host in lower case and without a port |
/// | `request.path` | text in its plain spelling, as patterns see it |
/// | `request.size` | a number: what `Content-Length` says, zero without one |
/// | `request.client` | text: the address of the client, empty where it is not known |
/// | `request.headers['x-plan']`, `request.headers.accept` | text: the first value; `'x-plan' in request.headers` asks whether there is one |
/// | `request.query['page']`, `request.cookies['session']` | the same |
///
/// An expression fails for a request that lacks what it looks at, such as a header. A key is missing then, and a `when` counts
/// as its [`ExpressionPurpose`] says. Failures are counted.
pub(crate) struct CompiledExpression {
    program: Program,
    inputs: ExpressionInputs,
    purpose: ExpressionPurpose,
    text: Arc<str>,
    failures: AtomicU64,
}

/// What an expression is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpressionPurpose {
    /// To tell whether a request is meant.
    Condition {
        /// The value of one that fails.
        on_failure: bool,
    },
    /// To count requests by.
    Key,
}

/// What of a request an expression looks at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ExpressionInputs {
    fields: BTreeSet<RequestField>,
    headers: BTreeSet<String>,
    queries: BTreeSet<String>,
    cookies: BTreeSet<String>,
    /// Names that it only asks for, as in `'x-plan' in request.headers`.
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

/// What may be called: operators, and what gives no more than it is given.
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

/// The longest expression, in bytes.
const MAX_EXPRESSION_BYTES: usize = 1_000;
/// How deep one may be nested: working it out takes some thirty kilobytes of the stack for each level where nothing is
/// optimised, and a thread has two megabytes.
const MAX_NESTING: usize = 16;
/// The stack that reading the deepest of the longest takes, in bytes and with some to spare; only what is used counts.
const PARSER_STACK_BYTES: usize = 256 << 20;

static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut env = Env::stdlib();
    // The names are its own, so that there is nothing to clash with.
    let _known = env.add_extension(extensions::strings);
    Arc::new(env)
});

impl CompiledExpression {
    pub(crate) fn new(expression: &Expression, purpose: ExpressionPurpose) -> Result<Self, SettingError> {
        let text = &expression.0;
        if text.len() > MAX_EXPRESSION_BYTES {
            let problem = format!("an expression of {} bytes", text.len());
            return Err(SettingError::new(
                problem,
                format!("write one of {MAX_EXPRESSION_BYTES} bytes at most"),
            ));
        }
        // The parser calls itself for each bracket, some thirty times, and a thousand brackets are more than a thread
        // has room for. It is given as much as they take; what is nested that deep is refused there, too.
        let builder = thread::Builder::new().stack_size(PARSER_STACK_BYTES);
        thread::scope(|scope| {
            let result = builder
                .spawn_scoped(scope, || Self::parse(text, purpose))
                .map(thread::ScopedJoinHandle::join);
            match result {
                Ok(Ok(read)) => read,
                Ok(Err(_)) | Err(_) => {
                    let problem = format!("`{}` cannot be read here", single_line(text));
                    Err(SettingError::new(problem, "write a simpler one, or free some memory"))
                }
            }
        })
    }

    fn parse(text: &Arc<str>, purpose: ExpressionPurpose) -> Result<Self, SettingError> {
        let program = ENV.compile(text).map_err(|errors| {
            let first =
                errors.errors.first().map(|error| error.msg.lines().next().unwrap_or_default().to_owned());
            let problem = format!("`{}` is no expression: {}", single_line(text), first.unwrap_or_default());
            SettingError::new(problem, "write one in CEL, such as `request.size > 1000`")
        })?;
        let mut needs = ExpressionInputs::default();
        needs.collect(program.expression(), 0)?;
        let found = Type::infer(program.expression())?;
        match purpose {
            ExpressionPurpose::Condition { .. } if !found.can_be_bool() => {
                let problem = format!("`{}` is {found}, and `when` needs true or false", single_line(text));
                return Err(SettingError::new(problem, "compare it, as in `request.size > 1000`"));
            }
            ExpressionPurpose::Key if !found.can_be_key() => {
                let problem =
                    format!("`{}` is {found}, and a key is a text or a whole number", single_line(text));
                return Err(SettingError::new(problem, "convert it, as in `string(request.size)`"));
            }
            ExpressionPurpose::Condition { .. } | ExpressionPurpose::Key => {}
        }
        Ok(Self { program, inputs: needs, purpose, text: text.clone(), failures: AtomicU64::new(0) })
    }

    /// What it looks at without asking whether it is there: it fails for requests that lack one of these.
    pub(crate) fn unguarded_inputs(&self) -> Vec<String> {
        let ExpressionInputs { headers, queries, cookies, tested, .. } = &self.inputs;
        let tables = [("headers", headers), ("query", queries), ("cookies", cookies)];
        let names = tables.into_iter().flat_map(|(table, names)| names.iter().map(move |name| (table, name)));
        names
            .filter(|(table, name)| !tested.contains(&(*table, (*name).clone())))
            .map(|(table, name)| format!("request.{table}['{name}']"))
            .collect()
    }

    /// How often it could not be worked out.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Whether it is true of a request; where it fails, what its purpose says.
    pub(crate) fn is_true(&self, view: &RequestView<'_>) -> bool {
        let on_failure = matches!(self.purpose, ExpressionPurpose::Condition { on_failure: true });
        match self.evaluate(view) {
            Some(Value::Bool(is_so)) => is_so,
            Some(_) => self.record_failure().unwrap_or(on_failure),
            None => on_failure,
        }
    }

    /// The text or the number that it gives for a request, to be a key.
    pub(crate) fn evaluate_key(&self, view: &RequestView<'_>) -> Option<KeyValue<'static>> {
        match self.evaluate(view)? {
            Value::String(text) if text.is_empty() => None,
            Value::String(text) => Some(KeyValue::from(text.as_str().to_owned())),
            Value::UInt(number) => Some(number.into()),
            Value::Int(number) => Some(match u64::try_from(number) {
                Ok(number) => number.into(),
                Err(_) => number.to_string().into(),
            }),
            Value::Bool(is_so) => Some(is_so.to_string().into()),
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
    /// Notes what an expression looks at, and refuses what it must not have.
    fn collect(&mut self, at: &IdedExpr, depth: usize) -> Result<(), SettingError> {
        if depth > MAX_NESTING {
            return Err(SettingError::new("an expression that is nested too deep", "write a simpler one"));
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
                if !ALLOWED_FUNCTIONS.contains(&&*call.func_name) {
                    let problem = format!("an expression cannot call `{}`", call.func_name);
                    return Err(SettingError::new(
                        problem,
                        format!("use one of {}", ALLOWED_FUNCTIONS[18..].join(", ")),
                    ));
                }
                match (&*call.func_name, &call.args[..]) {
                    ("_[_]", [of, name]) | ("@in", [name, of]) if table_name(of).is_some() => {
                        let Expr::Literal(LiteralValue::String(name)) = &name.expr else {
                            return Err(SettingError::new(
                                "a name that is not known ahead",
                                "name it, as in `request.headers['x-plan']`",
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
                Err(SettingError::new("`request` as a whole", format!("use a part of it: {}", known_names())))
            }
            Expr::Ident(name) => Err(SettingError::new(
                format!("unknown name `{name}`"),
                format!("use one of {}", known_names()),
            )),
            Expr::Comprehension(_) => Err(SettingError::new(
                "an expression with a loop (`all`, `exists`, `map`, `filter`)",
                "write it without: a request must not decide how long it takes",
            )),
            Expr::Map(_) | Expr::Struct(_) | Expr::Unspecified => {
                Err(SettingError::new("a table in an expression", "compare with texts, numbers or lists"))
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
                format!("`request.{name}` as a whole"),
                format!("use one of them, as in `request.{name}['name']`"),
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
            return Err(SettingError::new(format!("a header `{name}`"), fix));
        }
        names.insert(name.to_owned());
        Ok(())
    }

    /// Those parts of a request.
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

/// The beginning of a text, as part of a line.
fn single_line(text: &str) -> String {
    truncate(&text.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn content_length(header: Option<&[u8]>) -> i64 {
    header.and_then(|text| str::from_utf8(text).ok()?.trim().parse().ok()).unwrap_or(0)
}

pub(super) fn is_request(at: &IdedExpr) -> bool {
    matches!(&at.expr, Expr::Ident(name) if name == "request")
}

/// `headers` of `request.headers`.
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

    /// Half of what a thread has.
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
                    let _worked_out = compiled.program.execute(&context);
                }
                drop(accepted);
            });
            working.unwrap().join().unwrap();
        }
    }
}

//! Expressions in CEL: compiled when a policy is loaded, asked only by rules that have one.
//!
//! Nothing that a client sends may decide how long an expression takes. So there are no loops (`all`, `exists`, `map`,
//! `filter`), no functions whose answer can be larger than what goes in (`replace`, `format`, `join`), no regular
//! expressions, and a number of steps that is known when it is read. What it looks at is known then, too: only those
//! headers, parameters and cookies are fetched that it names.

use super::{Seen, types::Type};
use crate::{model::Expression, source::short};
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
use tidegate_rule::request::{KeyValue, each_cookie, each_query};

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
/// as its [`Purpose`] says. Failures are counted.
pub(crate) struct Compiled {
    program: Program,
    needs: Needs,
    purpose: Purpose,
    text: Arc<str>,
    failures: AtomicU64,
}

/// What an expression is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
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
struct Needs {
    fields: BTreeSet<Field>,
    headers: BTreeSet<String>,
    queries: BTreeSet<String>,
    cookies: BTreeSet<String>,
    /// Names that it only asks for, as in `'x-plan' in request.headers`.
    tested: BTreeSet<(&'static str, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Field {
    Method,
    Path,
    Host,
    Size,
    Client,
}

pub(super) const FIELDS: [(&str, Field); 5] = [
    ("method", Field::Method),
    ("path", Field::Path),
    ("host", Field::Host),
    ("size", Field::Size),
    ("client", Field::Client),
];
const TABLES: [&str; 3] = ["headers", "query", "cookies"];

/// What may be called: operators, and what gives no more than it is given.
const FUNCTIONS: [&str; 33] = [
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
const LONGEST: usize = 1_000;
/// How deep one may be nested: working it out takes some thirty kilobytes of the stack for each level where nothing is
/// optimised, and a thread has two megabytes.
const DEEPEST: usize = 16;
/// The stack that reading the deepest of the longest takes, in bytes and with some to spare; only what is used counts.
const STACK: usize = 256 << 20;

static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut env = Env::stdlib();
    // The names are its own, so that there is nothing to clash with.
    let _known = env.add_extension(extensions::strings);
    Arc::new(env)
});

impl Compiled {
    pub(crate) fn new(expression: &Expression, purpose: Purpose) -> Result<Self, SettingError> {
        let text = &expression.0;
        if text.len() > LONGEST {
            let problem = format!("an expression of {} bytes", text.len());
            return Err(SettingError::new(problem, format!("write one of {LONGEST} bytes at most")));
        }
        // The parser calls itself for each bracket, some thirty times, and a thousand brackets are more than a thread
        // has room for. It is given as much as they take; what is nested that deep is refused there, too.
        let roomy = thread::Builder::new().stack_size(STACK);
        thread::scope(|scope| {
            let reading =
                roomy.spawn_scoped(scope, || Self::read(text, purpose)).map(thread::ScopedJoinHandle::join);
            match reading {
                Ok(Ok(read)) => read,
                Ok(Err(_)) | Err(_) => {
                    let problem = format!("`{}` cannot be read here", on_a_line(text));
                    Err(SettingError::new(problem, "write a simpler one, or free some memory"))
                }
            }
        })
    }

    fn read(text: &Arc<str>, purpose: Purpose) -> Result<Self, SettingError> {
        let program = ENV.compile(text).map_err(|errors| {
            let first =
                errors.errors.first().map(|error| error.msg.lines().next().unwrap_or_default().to_owned());
            let problem = format!("`{}` is no expression: {}", on_a_line(text), first.unwrap_or_default());
            SettingError::new(problem, "write one in CEL, such as `request.size > 1000`")
        })?;
        let mut needs = Needs::default();
        needs.look(program.expression(), 0)?;
        let found = Type::of(program.expression())?;
        match purpose {
            Purpose::Condition { .. } if !found.can_be_bool() => {
                let problem = format!("`{}` is {found}, and `when` needs true or false", on_a_line(text));
                return Err(SettingError::new(problem, "compare it, as in `request.size > 1000`"));
            }
            Purpose::Key if !found.can_be_key() => {
                let problem =
                    format!("`{}` is {found}, and a key is a text or a whole number", on_a_line(text));
                return Err(SettingError::new(problem, "convert it, as in `string(request.size)`"));
            }
            Purpose::Condition { .. } | Purpose::Key => {}
        }
        Ok(Self { program, needs, purpose, text: text.clone(), failures: AtomicU64::new(0) })
    }

    /// What it looks at without asking whether it is there: it fails for requests that lack one of these.
    pub(crate) fn unguarded(&self) -> Vec<String> {
        let Needs { headers, queries, cookies, tested, .. } = &self.needs;
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
    pub(crate) fn holds(&self, seen: &Seen<'_>) -> bool {
        let on_failure = matches!(self.purpose, Purpose::Condition { on_failure: true });
        match self.value(seen) {
            Some(Value::Bool(is_so)) => is_so,
            Some(_) => self.fail().unwrap_or(on_failure),
            None => on_failure,
        }
    }

    /// The text or the number that it gives for a request, to be a key.
    pub(crate) fn key(&self, seen: &Seen<'_>) -> Option<KeyValue<'static>> {
        match self.value(seen)? {
            Value::String(text) if text.is_empty() => None,
            Value::String(text) => Some(KeyValue::from(text.as_str().to_owned())),
            Value::UInt(number) => Some(number.into()),
            Value::Int(number) => Some(match u64::try_from(number) {
                Ok(number) => number.into(),
                Err(_) => number.to_string().into(),
            }),
            Value::Bool(is_so) => Some(is_so.to_string().into()),
            _ => self.fail(),
        }
    }

    fn value(&self, seen: &Seen<'_>) -> Option<Value> {
        let mut context = Context::with_env(ENV.clone());
        context.add_variable_from_value("request", self.needs.of(seen));
        match self.program.execute(&context) {
            Ok(value) => Some(value),
            Err(_) => self.fail(),
        }
    }

    #[cold]
    fn fail<T>(&self) -> Option<T> {
        self.failures.fetch_add(1, Ordering::Relaxed);
        None
    }
}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Compiled({})", self.text)
    }
}

impl Needs {
    /// Notes what an expression looks at, and refuses what it must not have.
    fn look(&mut self, at: &IdedExpr, depth: usize) -> Result<(), SettingError> {
        if depth > DEEPEST {
            return Err(SettingError::new("an expression that is nested too deep", "write a simpler one"));
        }
        match &at.expr {
            Expr::Literal(_) => Ok(()),
            Expr::List(list) => list.elements.iter().try_for_each(|element| self.look(element, depth + 1)),
            Expr::Select(select) => match (table(&select.operand), is_request(&select.operand)) {
                (Some(table), _) => {
                    if select.test {
                        self.tested.insert((table, select.field.clone()));
                    }
                    self.name(table, &select.field)
                }
                (None, true) => self.field(&select.field),
                (None, false) => self.look(&select.operand, depth + 1),
            },
            Expr::Call(call) => {
                if !FUNCTIONS.contains(&&*call.func_name) {
                    let problem = format!("an expression cannot call `{}`", call.func_name);
                    return Err(SettingError::new(
                        problem,
                        format!("use one of {}", FUNCTIONS[18..].join(", ")),
                    ));
                }
                match (&*call.func_name, &call.args[..]) {
                    ("_[_]", [of, name]) | ("@in", [name, of]) if table(of).is_some() => {
                        let Expr::Literal(LiteralValue::String(name)) = &name.expr else {
                            return Err(SettingError::new(
                                "a name that is not known ahead",
                                "name it, as in `request.headers['x-plan']`",
                            ));
                        };
                        let table = table(of).unwrap_or_default();
                        if call.func_name == "@in" {
                            self.tested.insert((table, name.inner().to_owned()));
                        }
                        self.name(table, name.inner())
                    }
                    (_, args) => {
                        let target = call.target.iter().map(|target| &**target);
                        target.chain(args).try_for_each(|arg| self.look(arg, depth + 1))
                    }
                }
            }
            Expr::Ident(name) if name == "request" => {
                Err(SettingError::new("`request` as a whole", format!("use a part of it: {}", known())))
            }
            Expr::Ident(name) => {
                Err(SettingError::new(format!("unknown name `{name}`"), format!("use one of {}", known())))
            }
            Expr::Comprehension(_) => Err(SettingError::new(
                "an expression with a loop (`all`, `exists`, `map`, `filter`)",
                "write it without: a request must not decide how long it takes",
            )),
            Expr::Map(_) | Expr::Struct(_) | Expr::Unspecified => {
                Err(SettingError::new("a table in an expression", "compare with texts, numbers or lists"))
            }
        }
    }

    fn field(&mut self, name: &str) -> Result<(), SettingError> {
        match FIELDS.iter().find(|(known, _)| *known == name) {
            Some((_, field)) => {
                self.fields.insert(*field);
                Ok(())
            }
            None if TABLES.contains(&name) => Err(SettingError::new(
                format!("`request.{name}` as a whole"),
                format!("use one of them, as in `request.{name}['name']`"),
            )),
            None => {
                Err(SettingError::new(format!("unknown `request.{name}`"), format!("use one of {}", known())))
            }
        }
    }

    fn name(&mut self, table: &str, name: &str) -> Result<(), SettingError> {
        let names = match table {
            "headers" => &mut self.headers,
            "query" => &mut self.queries,
            _ => &mut self.cookies,
        };
        if table == "headers" && name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            let name = on_a_line(name);
            let fix = format!("write it in lower case: `{}`", name.to_ascii_lowercase());
            return Err(SettingError::new(format!("a header `{name}`"), fix));
        }
        names.insert(name.to_owned());
        Ok(())
    }

    /// Those parts of a request.
    fn of(&self, seen: &Seen<'_>) -> HashMap<String, Value> {
        let head = seen.head();
        let field = |(name, field): &(&str, Field)| {
            let value: Value = match field {
                Field::Method => head.method().to_owned().into(),
                Field::Path => seen.path().shown().into(),
                Field::Host => seen.host().unwrap_or_default().to_owned().into(),
                Field::Size => size(head.header("content-length")).into(),
                Field::Client => seen.client().map(|client| client.to_string()).unwrap_or_default().into(),
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
            each_query(head, name, &mut |value| _ = first.get_or_insert_with(|| lossy(&value)));
            first
        });
        table("cookies", &self.cookies, &|name| {
            let mut first = None;
            each_cookie(head, name, &mut |value| _ = first.get_or_insert_with(|| lossy(value)));
            first
        });
        parts
    }
}

/// The beginning of a text, as part of a line.
fn on_a_line(text: &str) -> String {
    short(&text.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn size(header: Option<&[u8]>) -> i64 {
    header.and_then(|text| str::from_utf8(text).ok()?.trim().parse().ok()).unwrap_or(0)
}

pub(super) fn is_request(at: &IdedExpr) -> bool {
    matches!(&at.expr, Expr::Ident(name) if name == "request")
}

/// `headers` of `request.headers`.
pub(super) fn table(at: &IdedExpr) -> Option<&'static str> {
    match &at.expr {
        Expr::Select(select) if is_request(&select.operand) && !select.test => {
            TABLES.into_iter().find(|table| *table == select.field)
        }
        _ => None,
    }
}

fn known() -> String {
    let fields = FIELDS.iter().map(|(name, _)| format!("request.{name}"));
    let tables = TABLES.iter().map(|name| format!("request.{name}['name']"));
    fields.chain(tables).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half of what a thread has.
    const ROOM: usize = 1 << 20;

    #[test]
    fn the_deepest_that_is_taken_can_be_worked_out_in_little_room() {
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
            let taken: Vec<_> = (1..=80)
                .filter_map(|times| {
                    let text = nested(open, core, close, times);
                    Compiled::new(&Expression(text.as_str().into()), Purpose::Condition { on_failure: true })
                        .or_else(|_| Compiled::new(&Expression(text.as_str().into()), Purpose::Key))
                        .ok()
                })
                .collect();
            assert!(!taken.is_empty(), "{open}…{close}");
            let working = thread::Builder::new().stack_size(ROOM).spawn(move || {
                for compiled in &taken {
                    let mut context = Context::with_env(ENV.clone());
                    context.add_variable_from_value("request", Value::Bool(true));
                    let _worked_out = compiled.program.execute(&context);
                }
                drop(taken);
            });
            working.unwrap().join().unwrap();
        }
    }
}

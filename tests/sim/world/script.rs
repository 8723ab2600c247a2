//! What a script does, command by command.

use super::lua::{Expr, Op, Statement, parse};
use super::wire::Reply;
use std::cell::RefCell;
use std::rc::Rc;

/// A lua value as far as scripts of lock clients need it.
#[derive(Debug, Clone, PartialEq)]
enum Value {
    Nil,
    Bool(bool),
    Number(f64),
    Text(Vec<u8>),
    Status(&'static str),
    List(Vec<Value>),
    /// What `redis.pcall` makes of an error.
    Failed(Failure),
}

/// What ends a script early: an error of a command that it called, or of its own.
pub type Failure = String;

/// Runs a command for a script.
pub type Call<'a> = &'a mut dyn FnMut(&[Vec<u8>]) -> Reply;

/// Runs the script `text`; its commands go to `call`.
///
/// # Errors
/// The error that ended it: its text, without the minus sign.
pub fn run(text: &[u8], keys: &[&[u8]], args: &[&[u8]], call: Call<'_>) -> Result<Reply, Failure> {
    let program = program(text);
    let list = |words: &[&[u8]]| {
        Value::List(words.iter().map(|word| Value::Text(word.to_vec())).collect())
    };
    let locals = vec![("KEYS".to_owned(), list(keys)), ("ARGV".to_owned(), list(args))];
    let returned = match (Script { locals, call }).block(&program)? {
        Flow::Returned(value) => value,
        Flow::On | Flow::Broken => Value::Nil,
    };
    Ok(reply(returned))
}

/// The scripts that are kept parsed; a client sends three or four different ones.
const PROGRAMS_MAX: usize = 32;

/// A script's text, and what it was parsed into.
type Program = (Vec<u8>, Rc<Vec<Statement>>);

thread_local! {
    static PROGRAMS: RefCell<Vec<Program>> = const { RefCell::new(Vec::new()) };
}

fn program(text: &[u8]) -> Rc<Vec<Statement>> {
    PROGRAMS.with_borrow_mut(|programs| {
        if let Some((_, program)) = programs.iter().find(|(known, _)| known == text) {
            return Rc::clone(program);
        }
        if programs.len() >= PROGRAMS_MAX {
            programs.clear();
        }
        let source = std::str::from_utf8(text).expect("a script is text");
        programs.push((text.to_vec(), Rc::new(parse(source))));
        Rc::clone(&programs[programs.len() - 1].1)
    })
}

/// How a block has ended.
enum Flow {
    On,
    /// At a `break`.
    Broken,
    Returned(Value),
}

/// No script of a lock client runs a loop as often.
const LOOPS_MAX: u32 = 10_000;

struct Script<'a> {
    locals: Vec<(String, Value)>,
    call: Call<'a>,
}

impl Script<'_> {
    fn block(&mut self, block: &[Statement]) -> Result<Flow, Failure> {
        for statement in block {
            match statement {
                Statement::Return(value) => return Ok(Flow::Returned(self.value(value)?)),
                Statement::Break => return Ok(Flow::Broken),
                Statement::While(condition, block) => {
                    let mut loops = 0;
                    while is_true(&self.value(condition)?) {
                        loops += 1;
                        assert!(loops <= LOOPS_MAX, "the script does not end");
                        match self.block(block)? {
                            Flow::On => {}
                            Flow::Broken => break,
                            returned => return Ok(returned),
                        }
                    }
                }
                Statement::Do(value) => {
                    self.value(value)?;
                }
                Statement::Assign(names, values) => {
                    let values: Result<Vec<_>, _> =
                        values.iter().map(|value| self.value(value)).collect();
                    for (name, value) in names.iter().zip(values?) {
                        match self.locals.iter_mut().rev().find(|(known, _)| known == name) {
                            Some((_, known)) => *known = value,
                            None => self.locals.push((name.clone(), value)),
                        }
                    }
                }
                Statement::If(branches) => {
                    for (condition, block) in branches {
                        if is_true(&self.value(condition)?) {
                            match self.block(block)? {
                                Flow::On => break,
                                ended => return Ok(ended),
                            }
                        }
                    }
                }
            }
        }
        Ok(Flow::On)
    }

    fn value(&mut self, expr: &Expr) -> Result<Value, Failure> {
        Ok(match expr {
            Expr::Nil => Value::Nil,
            Expr::Bool(value) => Value::Bool(*value),
            Expr::Number(number) => Value::Number(*number),
            Expr::Text(text) => Value::Text(text.clone()),
            Expr::Name(name) => self.local(name).clone(),
            Expr::Index(list, index) => {
                let index = self.value(index)?;
                if let Value::Text(name) = &index {
                    return named(&self.value(list)?, name);
                }
                let index = number(&index)?;
                // Names are indexed in place: what a list holds may be long.
                let found = match &**list {
                    Expr::Name(name) => element(self.local(name), index),
                    other => element(&self.value(other)?, index),
                };
                found?
            }
            Expr::Not(value) => Value::Bool(!is_true(&self.value(value)?)),
            Expr::Minus(value) => Value::Number(-number(&self.value(value)?)?),
            Expr::Call(name, arguments) => {
                let mut values = Vec::new();
                for argument in arguments {
                    match argument {
                        Expr::Call(name, bounds) if name == "unpack" => {
                            values.extend(self.unpacked(bounds)?);
                        }
                        argument => values.push(self.value(argument)?),
                    }
                }
                self.function(name, &values)?
            }
            Expr::Binary(op, left, right) => self.binary(*op, left, right)?,
        })
    }

    /// The elements of a list from a place on, or between two places, as arguments.
    fn unpacked(&mut self, arguments: &[Expr]) -> Result<Vec<Value>, Failure> {
        let [list, from, to @ ..] = arguments else { panic!("a place is needed: {arguments:?}") };
        let (list, from) = (self.value(list)?, self.value(from)?);
        let to = match (to, &list) {
            ([to], _) => self.value(to)?,
            ([], Value::List(values)) => Value::Number(values.len() as f64),
            _ => panic!("these arguments are not known: {arguments:?}"),
        };
        let (from, to) = (number(&from)? as usize, number(&to)? as usize);
        (from..=to).map(|index| element(&list, index as f64)).collect()
    }

    fn local(&self, name: &str) -> &Value {
        let found = self.locals.iter().rev().find(|(known, _)| known == name);
        &found.unwrap_or_else(|| panic!("{name} is not known")).1
    }

    fn binary(&mut self, op: Op, left: &Expr, right: &Expr) -> Result<Value, Failure> {
        let left = self.value(left)?;
        match op {
            Op::Or if is_true(&left) => return Ok(left),
            Op::And if !is_true(&left) => return Ok(left),
            _ => {}
        }
        let right = self.value(right)?;
        Ok(match op {
            Op::Or | Op::And => right,
            Op::Equal => Value::Bool(left == right),
            Op::Unequal => Value::Bool(left != right),
            Op::Less => Value::Bool(comparable(&left)? < comparable(&right)?),
            Op::LessEqual => Value::Bool(comparable(&left)? <= comparable(&right)?),
            Op::Greater => Value::Bool(comparable(&left)? > comparable(&right)?),
            Op::GreaterEqual => Value::Bool(comparable(&left)? >= comparable(&right)?),
            Op::Concat => Value::Text([text(&left)?, text(&right)?].concat()),
            Op::Add => Value::Number(number(&left)? + number(&right)?),
            Op::Subtract => Value::Number(number(&left)? - number(&right)?),
            Op::Multiply => Value::Number(number(&left)? * number(&right)?),
            Op::Divide => Value::Number(number(&left)? / number(&right)?),
        })
    }

    fn function(&mut self, name: &str, arguments: &[Value]) -> Result<Value, Failure> {
        let first = arguments.first().unwrap_or(&Value::Nil);
        Ok(match name {
            "redis.call" => {
                let words: Result<Vec<_>, _> = arguments.iter().map(text).collect();
                match (self.call)(&words?) {
                    Reply::Error(error) => return Err(error),
                    reply => value(reply),
                }
            }
            "redis.pcall" => {
                let words: Result<Vec<_>, _> = arguments.iter().map(text).collect();
                match (self.call)(&words?) {
                    Reply::Error(error) => Value::Failed(error),
                    reply => value(reply),
                }
            }
            "type" => Value::Text(kind(first).into()),
            "redis.error_reply" => return Err(String::from_utf8_lossy(&text(first)?).into()),
            "tonumber" => number(first).map_or(Value::Nil, Value::Number),
            "tostring" => Value::Text(text(first)?),
            "math.floor" => Value::Number(number(first)?.floor()),
            "math.ceil" => Value::Number(number(first)?.ceil()),
            "math.max" => Value::Number(fold(arguments, f64::max)?),
            "math.min" => Value::Number(fold(arguments, f64::min)?),
            "string.format" => formatted(arguments)?,
            "string.find" => found(arguments)?,
            "string.len" => Value::Number(text(first)?.len() as f64),
            "string.sub" => part(arguments)?,
            _ => panic!("the function {name} is not known"),
        })
    }
}

fn fold(arguments: &[Value], pick: fn(f64, f64) -> f64) -> Result<f64, Failure> {
    let numbers: Result<Vec<f64>, Failure> = arguments.iter().map(number).collect();
    numbers?.into_iter().reduce(pick).ok_or_else(|| wrong("nothing", "number"))
}

fn formatted(arguments: &[Value]) -> Result<Value, Failure> {
    match arguments {
        [Value::Text(format), value] if format == b"%.0f" || format == b"%d" => {
            Ok(Value::Text(format!("{:.0}", number(value)?).into_bytes()))
        }
        _ => panic!("this format is not known: {arguments:?}"),
    }
}

/// Of a text, from a place to another one, both counted from its beginning.
fn part(arguments: &[Value]) -> Result<Value, Failure> {
    let [whole, from, to] = arguments else { panic!("two places are needed: {arguments:?}") };
    let (whole, from, to) = (text(whole)?, number(from)?, number(to)?);
    assert!(from >= 1.0 && to >= from, "places from the end are not known");
    let to = whole.len().min(to as usize);
    Ok(Value::Text(whole.get(from as usize - 1..to).unwrap_or_default().to_vec()))
}

/// Where a text has another one, which is no pattern.
fn found(arguments: &[Value]) -> Result<Value, Failure> {
    let [whole, part] = arguments else { panic!("a text and a part are needed: {arguments:?}") };
    let (whole, part) = (text(whole)?, text(part)?);
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b' ';
    assert!(part.iter().all(is_plain), "patterns are not known: {arguments:?}");
    let at = whole.windows(part.len()).position(|window| window == part);
    Ok(at.map_or(Value::Nil, |at| Value::Number(at as f64 + 1.0)))
}

fn element(list: &Value, index: f64) -> Result<Value, Failure> {
    match list {
        Value::List(values) => Ok(values.get(index as usize - 1).cloned().unwrap_or(Value::Nil)),
        other => Err(wrong("index", kind(other))),
    }
}

/// The field of a status reply that has its text.
fn named(status: &Value, name: &[u8]) -> Result<Value, Failure> {
    match status {
        Value::Status(text) if name == b"ok" => Ok(Value::Text(text.as_bytes().to_vec())),
        Value::Failed(error) if name == b"err" => Ok(Value::Text(error.clone().into_bytes())),
        Value::Status(_) | Value::List(_) | Value::Failed(_) => Ok(Value::Nil),
        other => Err(wrong("index", kind(other))),
    }
}

fn is_true(value: &Value) -> bool {
    !matches!(value, Value::Nil | Value::Bool(false))
}

fn number(value: &Value) -> Result<f64, Failure> {
    let parsed = match value {
        Value::Number(number) => Some(*number),
        Value::Text(text) => {
            std::str::from_utf8(text).ok().and_then(|text| text.trim().parse().ok())
        }
        _ => None,
    };
    parsed.ok_or_else(|| wrong("perform arithmetic on", kind(value)))
}

/// Lua compares numbers with numbers only, without looking into strings.
fn comparable(value: &Value) -> Result<f64, Failure> {
    match value {
        Value::Number(number) => Ok(*number),
        other => Err(wrong("compare", kind(other))),
    }
}

fn text(value: &Value) -> Result<Vec<u8>, Failure> {
    match value {
        Value::Text(text) => Ok(text.clone()),
        Value::Number(number) if number.fract() == 0.0 => Ok(format!("{number:.0}").into_bytes()),
        other => Err(wrong("take as text", kind(other))),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Nil => "nil",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::Text(_) => "string",
        Value::Status(_) | Value::List(_) | Value::Failed(_) => "table",
    }
}

fn wrong(what: &str, kind: &str) -> Failure {
    format!("ERR user_script:1: attempt to {what} a {kind} value")
}

fn value(reply: Reply) -> Value {
    match reply {
        Reply::Status(text) => Value::Status(text),
        Reply::Error(_) => unreachable!("errors end the script"),
        Reply::Integer(number) => Value::Number(number as f64),
        Reply::Map(_) | Reply::Verbatim(_) | Reply::Push(_) => unreachable!("no script gets one"),
        Reply::Bulk(bytes) => Value::Text(bytes),
        Reply::Nil => Value::Bool(false),
        Reply::Array(replies) => Value::List(replies.into_iter().map(value).collect()),
    }
}

fn reply(value: Value) -> Reply {
    match value {
        Value::Nil | Value::Bool(false) => Reply::Nil,
        Value::Bool(true) => Reply::Integer(1),
        Value::Number(number) => Reply::Integer(number as i64),
        Value::Text(text) => Reply::Bulk(text),
        Value::Status(text) => Reply::Status(text),
        Value::List(values) => Reply::Array(values.into_iter().map(reply).collect()),
        Value::Failed(error) => Reply::Error(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evaluate(text: &str) -> Result<Reply, Failure> {
        let mut call = |words: &[Vec<u8>]| match words[0].as_slice() {
            b"list" => Reply::Array(vec![Reply::Bulk(b"12".to_vec()), Reply::Integer(3)]),
            b"nil" => Reply::Nil,
            _ => Reply::error("ERR no"),
        };
        run(text.as_bytes(), &[b"k"], &[b"20", b"x"], &mut call)
    }

    #[test]
    fn scripts_return_what_lua_returns() {
        let table = [
            ("return ARGV[1] + 1", Reply::Integer(21)),
            ("return KEYS[1] == 'k' and ARGV[2]", Reply::Bulk(b"x".to_vec())),
            ("if tonumber(redis.call('nil')) then return 1 end return 2", Reply::Integer(2)),
            ("local t = redis.call('list') return t[1] * 1000 + t[2]", Reply::Integer(12_003)),
            ("return math.max(0, 1 - 2)", Reply::Integer(0)),
            (
                "return string.format('%.0f', 1700000000000 + 5)",
                Reply::Bulk(b"1700000000005".into()),
            ),
            ("return math.floor(7 / 2)", Reply::Integer(3)),
            ("return tonumber('no')", Reply::Nil),
            ("return type(redis.pcall('bad'))", Reply::Bulk(b"table".to_vec())),
            ("redis.pcall('bad') return type(redis.pcall('nil'))", Reply::Bulk(b"boolean".into())),
            ("return redis.pcall('bad')", Reply::Error("ERR no".into())),
            ("return redis.pcall('bad')['err']", Reply::Bulk(b"ERR no".to_vec())),
            ("return redis.pcall('nil', unpack(ARGV, 1, 1 + 1))", Reply::Nil),
            ("return redis.pcall('nil', unpack(ARGV, 2))", Reply::Nil),
            ("return string.find('abc', 'bc')", Reply::Integer(2)),
        ];
        for (text, expected) in table {
            assert_eq!(evaluate(text), Ok(expected), "{text}");
        }
        assert_eq!(evaluate("redis.call('bad') return 1"), Err("ERR no".into()));
        assert!(evaluate("return ARGV[2] < 1").is_err());
    }
}

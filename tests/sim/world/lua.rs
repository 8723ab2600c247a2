//! The part of Lua that the library's scripts are written in, parsed from their text.
//!
//! The server runs the text that it was sent, so that a mistake in a script shows as what it does
//! and not as a text that nobody knows. What is outside this part is refused loudly.

/// An expression.
#[derive(Debug, Clone, PartialEq)]
pub enum Expr {
    Nil,
    Bool(bool),
    Number(f64),
    Text(Vec<u8>),
    /// A local variable, or a function of a library by its full name.
    Name(String),
    Index(Box<Expr>, Box<Expr>),
    Call(String, Vec<Expr>),
    Not(Box<Expr>),
    Minus(Box<Expr>),
    Binary(Op, Box<Expr>, Box<Expr>),
}

/// An operator with two sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    Or,
    And,
    Equal,
    Unequal,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Concat,
    Add,
    Subtract,
    Multiply,
    Divide,
}

/// From the weakest binding to the strongest.
const LEVELS: [&[(&str, Op)]; 6] = [
    &[("or", Op::Or)],
    &[("and", Op::And)],
    &[
        ("==", Op::Equal),
        ("~=", Op::Unequal),
        ("<=", Op::LessEqual),
        (">=", Op::GreaterEqual),
        ("<", Op::Less),
        (">", Op::Greater),
    ],
    &[("..", Op::Concat)],
    &[("+", Op::Add), ("-", Op::Subtract)],
    &[("*", Op::Multiply), ("/", Op::Divide)],
];

/// A statement.
#[derive(Debug, Clone, PartialEq)]
pub enum Statement {
    /// `local name = value`, or without `local` for one that exists. Of several, each name has its
    /// value, and all values are taken before.
    Assign(Vec<String>, Vec<Expr>),
    While(Expr, Vec<Statement>),
    Break,
    /// Pairs of a condition and what follows; `else` is a condition that holds.
    If(Vec<(Expr, Vec<Statement>)>),
    Return(Expr),
    Do(Expr),
}

/// Parses a script.
///
/// # Panics
/// If it uses more of the language than is known here.
pub fn parse(text: &str) -> Vec<Statement> {
    let tokens = tokens(text);
    let mut parser = Parser { tokens, at: 0 };
    let block = parser.block();
    assert_eq!(parser.at, parser.tokens.len(), "the script goes on: {text}");
    block
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Word(String),
    Number(f64),
    Text(Vec<u8>),
    Sign(&'static str),
}

/// Longer signs come before those that they begin with.
const SIGNS: [&str; 19] = [
    "==", "~=", "<=", ">=", "..", "<", ">", "=", "+", "-", "*", "/", "(", ")", "[", "]", ",", ".",
    ";",
];

fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let split = |pattern: fn(char) -> bool| rest.find(pattern).unwrap_or(rest.len());
        let length = if rest.starts_with("--") {
            rest.find('\n').unwrap_or(rest.len())
        } else if first.is_ascii_alphabetic() || first == '_' {
            let end = split(|char| !char.is_ascii_alphanumeric() && char != '_');
            tokens.push(Token::Word(rest[..end].into()));
            end
        } else if first.is_ascii_digit() {
            let end = split(|char| !char.is_ascii_digit() && char != '.');
            tokens.push(Token::Number(rest[..end].parse().expect("a number")));
            end
        } else if first == '"' || first == '\'' {
            let end = rest[1..].find(first).expect("the string ends") + 1;
            assert!(!rest[..end].contains('\\'), "no escapes are known: {rest}");
            tokens.push(Token::Text(rest.as_bytes()[1..end].to_vec()));
            end + 1
        } else {
            let sign = SIGNS.iter().find(|sign| rest.starts_with(**sign));
            tokens.push(Token::Sign(sign.unwrap_or_else(|| panic!("unknown: {rest}"))));
            sign.map_or(0, |sign| sign.len())
        };
        rest = rest[length..].trim_start();
    }
    tokens
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
}

impl Parser {
    fn is(&mut self, wanted: &str) -> bool {
        let found = match self.tokens.get(self.at) {
            Some(Token::Word(word)) => word == wanted,
            Some(Token::Sign(sign)) => *sign == wanted,
            Some(Token::Number(_) | Token::Text(_)) | None => false,
        };
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, wanted: &str) {
        assert!(self.is(wanted), "{wanted} expected at {:?}", self.tokens.get(self.at));
    }

    fn word(&mut self) -> String {
        match self.tokens.get(self.at) {
            Some(Token::Word(word)) => {
                self.at += 1;
                word.clone()
            }
            other => panic!("a name expected at {other:?}"),
        }
    }

    fn is_at_end(&self) -> bool {
        match self.tokens.get(self.at) {
            Some(Token::Word(word)) => matches!(word.as_str(), "end" | "else" | "elseif"),
            Some(_) => false,
            None => true,
        }
    }

    fn block(&mut self) -> Vec<Statement> {
        let mut block = Vec::new();
        while !self.is_at_end() {
            block.push(self.statement());
            self.is(";");
        }
        block
    }

    fn statement(&mut self) -> Statement {
        if self.is("return") {
            Statement::Return(self.expr())
        } else if self.is("if") {
            self.branches()
        } else if self.is("local") {
            let mut names = vec![self.word()];
            while self.is(",") {
                names.push(self.word());
            }
            self.assignment(names)
        } else if self.is("while") {
            let condition = self.expr();
            self.expect("do");
            let block = self.block();
            self.expect("end");
            Statement::While(condition, block)
        } else if self.is("break") {
            Statement::Break
        } else {
            match self.expr() {
                Expr::Name(name) => self.assignment(vec![name]),
                call @ Expr::Call(..) => Statement::Do(call),
                other => panic!("{other:?} is no statement"),
            }
        }
    }

    fn assignment(&mut self, names: Vec<String>) -> Statement {
        self.expect("=");
        let mut values = vec![self.expr()];
        while self.is(",") {
            values.push(self.expr());
        }
        assert_eq!(names.len(), values.len(), "each name has a value: {names:?}");
        Statement::Assign(names, values)
    }

    fn branches(&mut self) -> Statement {
        let condition = self.expr();
        self.expect("then");
        let mut branches = vec![(condition, self.block())];
        while self.is("elseif") {
            let condition = self.expr();
            self.expect("then");
            branches.push((condition, self.block()));
        }
        if self.is("else") {
            branches.push((Expr::Bool(true), self.block()));
        }
        self.expect("end");
        Statement::If(branches)
    }

    fn expr(&mut self) -> Expr {
        self.level(0)
    }

    fn level(&mut self, level: usize) -> Expr {
        let Some(operators) = LEVELS.get(level) else {
            return self.unary();
        };
        let mut left = self.level(level + 1);
        while let Some((_, op)) = operators.iter().find(|(sign, _)| self.is(sign)) {
            let right = self.level(level + 1);
            left = Expr::Binary(*op, Box::new(left), Box::new(right));
        }
        left
    }

    fn unary(&mut self) -> Expr {
        if self.is("not") {
            Expr::Not(Box::new(self.unary()))
        } else if self.is("-") {
            Expr::Minus(Box::new(self.unary()))
        } else {
            let mut value = self.primary();
            while self.is("[") {
                let index = self.expr();
                self.expect("]");
                value = Expr::Index(Box::new(value), Box::new(index));
            }
            value
        }
    }

    fn primary(&mut self) -> Expr {
        if self.is("(") {
            let inner = self.expr();
            self.expect(")");
            return inner;
        }
        let token = self.tokens.get(self.at).cloned();
        match token.unwrap_or_else(|| panic!("the script ends too early")) {
            Token::Number(number) => {
                self.at += 1;
                Expr::Number(number)
            }
            Token::Text(text) => {
                self.at += 1;
                Expr::Text(text)
            }
            Token::Word(_) => self.named(),
            Token::Sign(sign) => panic!("a value expected at {sign}"),
        }
    }

    fn named(&mut self) -> Expr {
        let mut name = self.word();
        match name.as_str() {
            "nil" => return Expr::Nil,
            "true" | "false" => return Expr::Bool(name == "true"),
            _ => {}
        }
        while self.is(".") {
            name = format!("{name}.{}", self.word());
        }
        if !self.is("(") {
            return Expr::Name(name);
        }
        let mut arguments = Vec::new();
        while !self.is(")") {
            arguments.push(self.expr());
            if !self.is(",") {
                self.expect(")");
                break;
            }
        }
        Expr::Call(name, arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_bind_as_in_lua() {
        let block = parse("-- why\nreturn a + 2 * -b == 3 and not c or d['x'][1] .. \"y\"");
        let name = |name: &str| Box::new(Expr::Name(name.into()));
        let number = |number| Box::new(Expr::Number(number));
        let binary = |op, left, right| Box::new(Expr::Binary(op, left, right));
        let product = binary(Op::Multiply, number(2.0), Box::new(Expr::Minus(name("b"))));
        let sum = binary(Op::Add, name("a"), product);
        let equal = binary(Op::Equal, sum, number(3.0));
        let both = binary(Op::And, equal, Box::new(Expr::Not(name("c"))));
        let field = Expr::Index(name("d"), Box::new(Expr::Text(b"x".to_vec())));
        let first = Expr::Index(Box::new(field), number(1.0));
        let text = Box::new(Expr::Text(b"y".to_vec()));
        let concat = binary(Op::Concat, Box::new(first), text);
        assert_eq!(block, [Statement::Return(*binary(Op::Or, both, concat))]);
    }

    #[test]
    #[should_panic(expected = "unknown")]
    fn what_is_not_known_is_refused() {
        parse("return #KEYS");
    }
}

//! Composes scripts of pieces, and strips what only people need: comments, blanks, long names.
//!
//! It knows the part of Lua 5.1 that the pieces are written in, and refuses the rest. A piece lists
//! the local names of earlier pieces that it uses in a comment: `-- Needs: now, wait.`

use std::collections::BTreeMap;

const KEYWORDS: [&str; 16] = [
    "and", "break", "do", "else", "elseif", "end", "false", "if", "local", "nil", "not", "or",
    "return", "then", "true", "while",
];
/// What else is no name. No piece needs it so far, and the simulator's Lua does not know it.
const REFUSED: [&str; 6] = ["for", "function", "goto", "in", "repeat", "until"];
/// What a server defines, and the placeholders of `trial_first.lua`.
const GLOBALS: [&str; 10] =
    ["ARGV", "COMMANDS", "COUNT", "KEYS", "math", "redis", "string", "tonumber", "type", "unpack"];
/// Longer ones come before those that they begin with.
const SIGNS: [&str; 22] = [
    "..", "==", "~=", "<=", ">=", "<", ">", "=", "+", "-", "*", "/", "#", "(", ")", "[", "]", "{",
    "}", ",", ".", ";",
];

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Name,
    Keyword,
    Number,
    Text,
    Sign,
}

#[derive(Clone, Copy)]
struct Token<'a> {
    kind: Kind,
    text: &'a str,
    line: usize,
}

/// The text to send for these pieces, each a name and its source.
///
/// # Errors
/// What is wrong, with the piece and the line.
pub fn compose(pieces: &[(&str, &str)]) -> Result<String, String> {
    let mut names = Names { blocks: vec![BTreeMap::new()], ..Names::default() };
    let mut all = Vec::new();
    for (name, text) in pieces {
        let at = |(line, what): (usize, String)| format!("{name}.lua:{line}: {what}");
        let tokens = lex(text).map_err(at)?;
        names.enter(needs(text)).map_err(|what| at((1, what)))?;
        for (index, token) in tokens.iter().enumerate() {
            let before = index.checked_sub(1).map(|before| tokens[before]);
            names.visit(*token, before).map_err(|what| at((token.line, what)))?;
        }
        names.declare();
        all.extend(tokens);
    }
    if names.blocks.len() > 1 {
        return Err(format!("{} has a block without an end", pieces[pieces.len() - 1].0));
    }
    Ok(printed(&all, &shortened(&names.declared)?))
}

/// What a piece lists.
pub fn needs(text: &str) -> Vec<&str> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("-- Needs: "));
    lines.flat_map(|line| line.trim_end_matches('.').split(", ")).collect()
}

fn lex(text: &str) -> Result<Vec<Token<'_>>, (usize, String)> {
    let (mut tokens, mut rest, mut line) = (Vec::new(), text, 1);
    loop {
        let after = rest.trim_ascii_start();
        line += rest[..rest.len() - after.len()].matches('\n').count();
        rest = after;
        let Some(first) = rest.chars().next() else { return Ok(tokens) };
        let refused = |what: &str| Err((line, format!("{what} is not known here")));
        let until = |is_end: fn(char) -> bool| rest.find(is_end).unwrap_or(rest.len());
        let is_no_word = |char: char| !char.is_ascii_alphanumeric() && char != '_';
        let (kind, length) = if ["[[", "[=", "--[", "..."].iter().any(|it| rest.starts_with(it)) {
            return refused("a long bracket, or `...`,");
        } else if rest.starts_with("--") {
            rest = &rest[until(|char| char == '\n')..];
            continue;
        } else if first.is_ascii_digit() {
            let end = until(is_no_word);
            let is_whole = rest[..end].bytes().all(|byte| byte.is_ascii_digit());
            if !is_whole || rest[end..].starts_with('.') && !rest[end..].starts_with("..") {
                return refused("a number that is not whole and in decimal");
            }
            (Kind::Number, end)
        } else if !is_no_word(first) {
            let word = &rest[..until(is_no_word)];
            if REFUSED.contains(&word) {
                return refused(&format!("`{word}`"));
            }
            let is_keyword = KEYWORDS.contains(&word);
            (if is_keyword { Kind::Keyword } else { Kind::Name }, word.len())
        } else if first == '"' || first == '\'' {
            match end_of_text(&rest[1..], first) {
                Some(end) => (Kind::Text, end + 2),
                None => return refused("a text that does not end in its line"),
            }
        } else {
            match SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
                Some(sign) => (Kind::Sign, sign.len()),
                None => return refused(&format!("`{first}`")),
            }
        };
        tokens.push(Token { kind, text: &rest[..length], line });
        rest = &rest[length..];
    }
}

/// Where the quote is that ends a text.
fn end_of_text(rest: &str, quote: char) -> Option<usize> {
    let mut is_escaped = false;
    let end = rest.find(|char| {
        let is_end = char == '\n' || char == quote && !is_escaped;
        is_escaped = char == '\\' && !is_escaped;
        is_end
    })?;
    rest[end..].starts_with(quote).then_some(end)
}

/// The local names of a script.
#[derive(Default)]
struct Names<'a> {
    /// Of each block around a token; whether this piece may use it.
    blocks: Vec<BTreeMap<&'a str, bool>>,
    /// All, in their order.
    declared: Vec<&'a str>,
    /// Of a `local` that has not ended: its own values do not see them.
    pending: Vec<&'a str>,
    is_list: bool,
    braces: usize,
}

impl<'a> Names<'a> {
    fn enter(&mut self, needs: Vec<&str>) -> Result<(), String> {
        for need in &needs {
            if !self.blocks.iter().any(|names| names.contains_key(need)) {
                return Err(format!("it needs `{need}`, which nothing before it declares"));
            }
        }
        for (name, may_use) in self.blocks.iter_mut().flatten() {
            *may_use = needs.contains(name);
        }
        Ok(())
    }

    /// The names of a `local` are there from the next statement on.
    fn declare(&mut self) {
        self.is_list = false;
        let block = self.blocks.last_mut().expect("a script is a block");
        block.extend(self.pending.drain(..).map(|name| (name, true)));
    }

    fn visit(&mut self, token: Token<'a>, before: Option<Token<'_>>) -> Result<(), String> {
        let follows_value = before.is_some_and(ends_value);
        match token.kind {
            Kind::Name if follows_value => self.declare(),
            Kind::Keyword if follows_value && !["and", "or"].contains(&token.text) => {
                self.declare();
            }
            _ => {}
        }
        match token.text {
            "local" => self.is_list = true,
            "=" if self.braces > 0 => return Err("a field by its name is not known here".into()),
            "=" => self.is_list = false,
            "{" => self.braces += 1,
            "}" => self.braces = self.braces.saturating_sub(1),
            "(" if before.is_none_or(|it| it.line < token.line && ends_value(it)) => {
                return Err("`(` would belong to the line before".into());
            }
            _ => {}
        }
        if ["end", "else", "elseif"].contains(&token.text) {
            self.blocks.pop();
            if self.blocks.is_empty() {
                return Err(format!("`{}` ends no block", token.text));
            }
        }
        if ["do", "then", "else"].contains(&token.text) {
            self.blocks.push(BTreeMap::new());
        }
        let is_field = before.is_some_and(|before| before.text == ".");
        if token.kind == Kind::Name && !is_field { self.name(token.text) } else { Ok(()) }
    }

    fn name(&mut self, name: &'a str) -> Result<(), String> {
        let known = self.blocks.iter().find_map(|names| names.get(name).copied());
        let is_global = GLOBALS.contains(&name);
        if !self.is_list {
            return match known {
                Some(true) => Ok(()),
                Some(false) => Err(format!("`{name}` is missing in `-- Needs:`")),
                None if is_global => Ok(()),
                None => Err(format!("`{name}` is declared nowhere")),
            };
        }
        if is_global || known.is_some() || self.pending.contains(&name) {
            return Err(format!("`{name}` has another meaning already"));
        }
        self.declared.push(name);
        self.pending.push(name);
        Ok(())
    }
}

/// Whether a value may end here, so that a word behind it begins something else.
fn ends_value(token: Token<'_>) -> bool {
    match token.kind {
        Kind::Name | Kind::Number | Kind::Text => true,
        Kind::Keyword => ["end", "nil", "false", "true"].contains(&token.text),
        Kind::Sign => [")", "]", "}", ";"].contains(&token.text),
    }
}

/// A letter for each name. A name of one letter keeps it.
fn shortened<'a>(names: &[&'a str]) -> Result<BTreeMap<&'a str, String>, String> {
    let letters = ('a'..='z').chain('A'..='Z').map(String::from);
    let mut free = letters.filter(|letter| !names.contains(&letter.as_str()));
    let mut short = BTreeMap::new();
    for name in names.iter().filter(|name| name.len() > 1) {
        if !short.contains_key(name) {
            short.insert(*name, free.next().ok_or("there are more names than letters")?);
        }
    }
    Ok(short)
}

/// With a blank only where two tokens would be one without it. A server may quote the text in an
/// error, so it has no line end.
fn printed(tokens: &[Token<'_>], short: &BTreeMap<&str, String>) -> String {
    let mut text = String::new();
    let mut before = Token { kind: Kind::Sign, text: "", line: 0 };
    let is_word = |token: Token<'_>| !matches!(token.kind, Kind::Text | Kind::Sign);
    for token in tokens {
        let is_one = match (before.text, token.text) {
            ("-", "-") | ("[", "[") => true,
            (_, "..") => before.kind == Kind::Number,
            _ => is_word(before) && is_word(*token),
        };
        if is_one {
            text.push(' ');
        }
        let is_local = token.kind == Kind::Name && before.text != ".";
        let renamed = short.get(token.text).filter(|_| is_local);
        text.push_str(renamed.map_or(token.text, String::as_str));
        before = *token;
    }
    text
}

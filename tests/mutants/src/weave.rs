//! Changes of one file, woven into its text: each is switched on by its number.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// A change, as cargo-mutants lists it.
#[derive(Debug, Clone)]
pub struct Change {
    /// What `MUXLOCK_MUTANT` is to be for this change; 0 is none.
    pub id: u32,
    /// The bytes that it replaces, and by what.
    pub range: Range<usize>,
    pub replacement: String,
    /// The return type of the function around it, with its arrow.
    pub return_type: String,
    pub genre: Genre,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Genre {
    FnValue,
    Operator,
    Guard,
    Arm,
}

/// What a file has become.
#[derive(Default)]
pub struct Woven {
    pub text: String,
    /// Where in the text a change's own words are.
    pub words: Vec<(u32, Range<usize>)>,
    /// Where a place that was woven is, and the changes at it.
    pub places: Vec<(Vec<u32>, Range<usize>)>,
    /// Changes that would not even parse.
    pub unparsed: Vec<u32>,
}

/// Changes that are not mentioned in what this returns could not be woven.
pub fn weave(text: &str, changes: &[Change]) -> syn::Result<Woven> {
    let file = syn::parse_file(text)?;
    let mut by_range: HashMap<_, Vec<&Change>> = HashMap::new();
    for change in changes {
        by_range.entry((change.genre, change.range.clone())).or_default().push(change);
    }
    let mut weaver = Weaver { text, by_range, insertions: Vec::new(), unparsed: Vec::new() };
    weaver.visit_file(&file);
    Ok(weaver.finish())
}

/// Text that comes in at a place; with a number if it is a change's own.
type Pieces = Vec<(Option<u32>, String)>;

struct Insertion {
    range: Range<usize>,
    ids: Vec<u32>,
    before: Pieces,
    after: Pieces,
}

struct Weaver<'a> {
    text: &'a str,
    by_range: HashMap<(Genre, Range<usize>), Vec<&'a Change>>,
    /// What is outside comes before what is inside.
    insertions: Vec<Insertion>,
    unparsed: Vec<u32>,
}

impl Weaver<'_> {
    fn at(&self, genre: Genre, span: Span) -> Vec<(u32, Range<usize>, String)> {
        let changes = self.by_range.get(&(genre, span.byte_range()));
        let changes = changes.into_iter().flatten();
        changes
            .map(|change| (change.id, change.range.clone(), change.replacement.clone()))
            .collect()
    }

    /// An expression that is `as_changed` by one of the changes at a time.
    fn expression(&mut self, range: Range<usize>, changes: Vec<(u32, Range<usize>, String)>) {
        let mut as_changed = BTreeMap::new();
        for (id, part, replacement) in changes {
            let (before, after) =
                (&self.text[range.start..part.start], &self.text[part.end..range.end]);
            let changed = format!("{before}{replacement}{after}");
            match syn::parse_str::<syn::Expr>(&changed) {
                Ok(_) => drop(as_changed.insert(id, changed)),
                Err(_) => self.unparsed.push(id),
            }
        }
        if as_changed.is_empty() {
            return;
        }
        // The arm of the unchanged expression comes first, since the compiler takes the type from
        // there; and so it needs all other numbers.
        let mut others = String::new();
        let mut from = 0;
        for id in as_changed.keys() {
            match id - from {
                0 => {}
                1 => others += &format!("{from} | "),
                _ => others += &format!("{from}..={} | ", id - 1),
            }
            from = id + 1;
        }
        let before = format!("(match crate::mutant::at() {{ {others}{from}.. => (");
        let mut after = vec![(None, ")".to_owned())];
        for (id, changed) in &as_changed {
            after.push((None, format!(", {id} => (")));
            after.push((Some(*id), changed.clone()));
            after.push((None, ")".to_owned()));
        }
        after.push((None, " })".to_owned()));
        let ids = as_changed.into_keys().collect();
        self.insertions.push(Insertion { range, ids, before: vec![(None, before)], after });
    }

    /// All operators of a chain such as `a && b == c + d`: with another operator, the chain may be
    /// another tree, and so it is changed as a whole.
    fn chain(&self, chain: &syn::ExprBinary) -> Vec<(u32, Range<usize>, String)> {
        let mut changes = self.at(Genre::Operator, chain.op.span());
        for side in [&chain.left, &chain.right] {
            if let syn::Expr::Binary(part) = &**side {
                changes.extend(self.chain(part));
            }
        }
        changes
    }

    fn visit_operands(&mut self, chain: &syn::ExprBinary) {
        for side in [&chain.left, &chain.right] {
            match &**side {
                syn::Expr::Binary(part) => self.visit_operands(part),
                other => self.visit_expr(other),
            }
        }
    }

    /// In `if let .. && ..`, no other operator is allowed in the place of `&&`.
    fn visit_let_chain(&mut self, chain: &syn::ExprBinary) {
        self.unparsed.extend(self.at(Genre::Operator, chain.op.span()).iter().map(|(id, ..)| id));
        for side in [&chain.left, &chain.right] {
            match &**side {
                syn::Expr::Binary(part) if matches!(part.op, syn::BinOp::And(_)) => {
                    self.visit_let_chain(part);
                }
                other => self.visit_expr(other),
            }
        }
    }

    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) -> bool {
        if signature.constness.is_some() {
            return false;
        }
        let (Some(first), Some(last)) = (block.stmts.first(), block.stmts.last()) else {
            return true;
        };
        let body = first.span().byte_range().start..last.span().byte_range().end;
        let mut ids = Vec::new();
        let mut before = Vec::new();
        for change in self.by_range.get(&(Genre::FnValue, body.clone())).into_iter().flatten() {
            // Two values of an `impl Trait` would have to have the same type.
            if change.return_type.contains("impl ") {
                continue;
            }
            if syn::parse_str::<syn::Expr>(&change.replacement).is_err() {
                self.unparsed.push(change.id);
                continue;
            }
            ids.push(change.id);
            before.push((None, format!("if crate::mutant::at() == {} {{ return ", change.id)));
            before.push((Some(change.id), change.replacement.clone()));
            before.push((None, "; } ".to_owned()));
        }
        if !ids.is_empty() {
            // Inner attributes of the body are none of its statements.
            self.insertions.push(Insertion { range: body, ids, before, after: Vec::new() });
        }
        true
    }

    fn finish(self) -> Woven {
        let mut woven = Woven { unparsed: self.unparsed, ..Woven::default() };
        // At one place: the ends, from the inside to the outside, and then the beginnings.
        let mut edges: Vec<(usize, bool, isize, usize)> = Vec::new();
        for (nth, insertion) in self.insertions.iter().enumerate() {
            let order = isize::try_from(nth).expect("there are few");
            edges.push((insertion.range.start, true, order, nth));
            edges.push((insertion.range.end, false, -order, nth));
        }
        edges.sort_unstable();
        let mut begun = HashMap::new();
        let mut copied = 0;
        for (at, is_start, _, nth) in edges {
            woven.text += &self.text[copied..at];
            copied = at;
            let insertion = &self.insertions[nth];
            if is_start {
                begun.insert(nth, woven.text.len());
            }
            for (id, words) in if is_start { &insertion.before } else { &insertion.after } {
                let from = woven.text.len();
                woven.text += words;
                woven.words.extend(id.map(|id| (id, from..woven.text.len())));
            }
            if !is_start {
                woven.places.push((insertion.ids.clone(), begun[&nth]..woven.text.len()));
            }
        }
        woven.text += &self.text[copied..];
        woven
    }
}

impl<'ast> Visit<'ast> for Weaver<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if self.function(&item.sig, &item.block) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if self.function(&item.sig, &item.block) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if item.default.as_ref().is_none_or(|block| self.function(&item.sig, block)) {
            visit::visit_trait_item_fn(self, item);
        }
    }

    fn visit_expr_binary(&mut self, node: &'ast syn::ExprBinary) {
        if has_let(node) {
            self.visit_let_chain(node);
            return;
        }
        let changes = self.chain(node);
        self.expression(node.span().byte_range(), changes);
        self.visit_operands(node);
    }

    fn visit_expr_unary(&mut self, node: &'ast syn::ExprUnary) {
        let changes = self.at(Genre::Operator, node.op.span());
        self.expression(node.span().byte_range(), changes);
        visit::visit_expr_unary(self, node);
    }

    fn visit_expr_match(&mut self, node: &'ast syn::ExprMatch) {
        let is_rest = |arm: &syn::Arm| matches!(arm.pat, syn::Pat::Wild(_)) && arm.guard.is_none();
        let has_rest = node.arms.iter().any(is_rest);
        for arm in &node.arms {
            if let Some((_, guard)) = &arm.guard {
                let changes = self.at(Genre::Guard, guard.span());
                self.expression(guard.span().byte_range(), changes);
            }
            // Without a last arm for the rest, a guard would leave cases open.
            for (id, ..) in self.at(Genre::Arm, arm.span()).into_iter().filter(|_| has_rest) {
                let guard = format!(" if crate::mutant::at() != {id}");
                self.insertions.push(Insertion {
                    range: arm.pat.span().byte_range(),
                    ids: vec![id],
                    before: Vec::new(),
                    after: vec![(Some(id), guard)],
                });
            }
        }
        visit::visit_expr_match(self, node);
    }

    // What the compiler evaluates has to stay as it is.
    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_item_enum(&mut self, _: &'ast syn::ItemEnum) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}
    fn visit_generic_argument(&mut self, _: &'ast syn::GenericArgument) {}
    fn visit_type(&mut self, _: &'ast syn::Type) {}
    fn visit_pat(&mut self, _: &'ast syn::Pat) {}
    fn visit_expr_repeat(&mut self, node: &'ast syn::ExprRepeat) {
        self.visit_expr(&node.expr);
    }
}

fn has_let(chain: &syn::ExprBinary) -> bool {
    [&chain.left, &chain.right].into_iter().any(|side| match &**side {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(part) => has_let(part),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(id: u32, text: &str, part: &str, replacement: &str, genre: Genre) -> Change {
        let start = text.find(part).expect("it is there");
        Change {
            id,
            range: start..start + part.len(),
            replacement: replacement.to_owned(),
            return_type: String::new(),
            genre,
        }
    }

    fn woven(text: &str, changes: &[Change]) -> Woven {
        let woven = weave(text, changes).expect("it parses");
        syn::parse_file(&woven.text).expect("it still parses");
        woven
    }

    #[test]
    fn a_chain_is_changed_as_a_whole() {
        let text = "fn f() { g(a || b || !c); }";
        let changes = [
            change(2, text, "||", "&&", Genre::Operator),
            change(3, text, "!", "", Genre::Operator),
        ];
        let woven = woven(text, &changes);
        let not = "(match crate::mutant::at() { 0..=2 | 4.. => (!c), 3 => (c) })";
        let or = format!("0..=1 | 3.. => (a || b || {not}), 2 => (a && b || !c)");
        assert_eq!(woven.text, format!("fn f() {{ g((match crate::mutant::at() {{ {or} }})); }}"));
        for (id, range) in &woven.words {
            assert_eq!(&woven.text[range.clone()], ["a && b || !c", "c"][*id as usize - 2]);
        }
    }

    #[test]
    fn functions_arms_and_guards() {
        let text = "fn f() -> u8 { match x { A => 1, B if y => 2, _ => 3 } }";
        let changes = [
            change(1, text, "match x { A => 1, B if y => 2, _ => 3 }", "0", Genre::FnValue),
            change(2, text, "A => 1,", "", Genre::Arm),
            change(4, text, "y", "true", Genre::Guard),
        ];
        let woven = woven(text, &changes);
        assert_eq!(
            woven.text,
            "fn f() -> u8 { if crate::mutant::at() == 1 { return 0; } match x { \
             A if crate::mutant::at() != 2 => 1, \
             B if (match crate::mutant::at() { 0..=3 | 5.. => (y), 4 => (true) }) => 2, _ => 3 } }"
        );
        assert_eq!(woven.places.len(), 3);
    }

    #[test]
    fn what_cannot_be_woven_stays() {
        let text = "const fn f() -> u8 { 1 + 2 } const A: u8 = 3 - 4;";
        let changes = [
            change(1, text, "1 + 2", "0", Genre::FnValue),
            change(2, text, "+", "-", Genre::Operator),
            change(3, text, "-", "+", Genre::Operator),
        ];
        let woven = woven(text, &changes);
        assert!(woven.text == text && woven.places.is_empty() && woven.unparsed.is_empty());
    }

    #[test]
    fn what_does_not_parse_is_told_apart() {
        let text = "fn f() { if let Some(a) = b && c {} d(e == f < g); }";
        let text = text.replace("e == f < g", "e + f < g");
        let changes = [
            change(1, &text, "&&", "||", Genre::Operator),
            change(2, &text, "+", "==", Genre::Operator),
        ];
        let woven = woven(&text, &changes);
        assert!(woven.text == text && woven.unparsed == [1, 2]);
    }
}

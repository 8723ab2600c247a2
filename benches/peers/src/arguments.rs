//! What the command line asks for.

use std::path::PathBuf;

use crate::clients::Failure;
use crate::questions::{Question, STATES};

/// What to measure, and where to leave it.
#[derive(Debug, PartialEq)]
pub struct Arguments {
    pub quick: bool,
    pub out: Option<PathBuf>,
    /// In the order of asking.
    pub questions: Vec<Question>,
    /// Of pairs, only these; all if it is empty.
    pub states: Vec<&'static str>,
}

impl Arguments {
    /// A state of the masters may be named as well as a question.
    pub fn parse(args: &[String]) -> Result<Arguments, Failure> {
        let (mut quick, mut out) = (false, None);
        let mut questions = Vec::new();
        let mut states = Vec::new();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let question = Question::ALL.into_iter().find(|question| question.name() == arg);
            let state = STATES.into_iter().find(|state| state == arg);
            match (arg.as_str(), question, state) {
                ("--quick", ..) => quick = true,
                ("--out", ..) => out = Some(args.next().ok_or("--out is not followed")?.into()),
                (_, Some(question), _) => questions.push(question),
                (_, None, Some(state)) => states.push(state),
                (_, None, None) => return Err(unknown(arg)),
            }
        }
        if !states.is_empty() {
            questions.push(Question::Pairs);
        } else if questions.is_empty() {
            questions.extend(Question::ALL);
        }
        questions.sort_unstable();
        questions.dedup();
        Ok(Arguments { quick, out, questions, states })
    }
}

fn unknown(arg: &str) -> Failure {
    let names = Question::ALL.map(Question::name).join(", ");
    let states = STATES.join(", ");
    format!("there is no question {arg}; there are {names}; and, of pairs, {states}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, Failure> {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Arguments::parse(&args)
    }

    #[test]
    fn no_question_is_every_question() {
        let arguments = parse("--quick --out benches").unwrap();
        assert!(arguments.quick && arguments.states.is_empty());
        assert_eq!(arguments.out, Some(PathBuf::from("benches")));
        assert_eq!(arguments.questions, Question::ALL);
    }

    #[test]
    fn state_is_a_question_about_pairs() {
        let arguments = parse("counts frozen").unwrap();
        assert_eq!(arguments.questions, [Question::Pairs, Question::Counts]);
        assert_eq!(arguments.states, ["frozen"]);
    }

    #[test]
    fn strangers_are_refused() {
        assert!(parse("speed").unwrap_err().to_string().contains("in-flight"));
        assert!(parse("--out").is_err());
    }
}

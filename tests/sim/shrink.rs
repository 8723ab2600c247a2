//! Makes the choices of a failed run fewer and duller, for as long as it fails in the same way.

/// What is tried on a range of choices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Delete,
    Zero,
    Halve,
}

/// A shorter or duller sequence for which `fails` is still true; `choices` itself is one. It is
/// asked at most `runs_max` times.
pub fn shrink(
    choices: Vec<u32>,
    runs_max: usize,
    mut fails: impl FnMut(&[u32]) -> bool,
) -> Vec<u32> {
    let mut best = choices;
    let mut runs = 0;
    let mut changed = true;
    // A pass that helped may make room for another one.
    while changed && runs < runs_max {
        changed = false;
        for change in [Change::Delete, Change::Zero, Change::Halve] {
            let mut size = best.len();
            while size > 0 {
                let mut at = 0;
                while at < best.len() && runs < runs_max {
                    let candidate = changed_at(&best, at..(at + size).min(best.len()), change);
                    runs += 1;
                    if candidate != best && fails(&candidate) {
                        best = candidate;
                        changed = true;
                        // What moved into the place of what was deleted is tried next.
                        at += if change == Change::Delete { 0 } else { size };
                    } else {
                        at += size;
                    }
                }
                size /= 2;
            }
        }
    }
    best
}

fn changed_at(choices: &[u32], range: std::ops::Range<usize>, change: Change) -> Vec<u32> {
    let mut candidate = choices.to_vec();
    match change {
        Change::Delete => {
            candidate.drain(range);
        }
        Change::Zero => candidate[range].fill(0),
        Change::Halve => candidate[range].iter_mut().for_each(|choice| *choice /= 2),
    }
    candidate
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_matters_is_left() {
        let choices: Vec<u32> = (0..500).map(|i| i * 37 % 101).collect();
        // It fails if some choice is above 90 and a later one is exactly 7.
        let fails = |choices: &[u32]| {
            let loud = choices.iter().position(|choice| *choice > 90);
            loud.is_some_and(|at| choices[at..].contains(&7))
        };
        assert!(fails(&choices));
        let shrunk = shrink(choices, usize::MAX, fails);
        assert_eq!(shrunk.len(), 2);
        assert!((91..=101).contains(&shrunk[0]) && shrunk[1] == 7, "{shrunk:?}");
    }
}

//! Counting votes: the rounds that are open, the numbers of those that ask for one, and what
//! refusals say.

mod fence;
mod refusals;
mod rounds;

pub(super) use fence::Fences;
pub(super) use refusals::Forms;
pub(super) use rounds::Rounds;

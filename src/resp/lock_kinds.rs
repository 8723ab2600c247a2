//! The commands of what is not one plain key (K1 to K8, K11 to K15).

use std::borrow::Cow;

use bytes::BytesMut;

use super::scripts::{
    FREE_ALL, FREE_AS, FREE_SHARED, HASHES, KEEP_ALL, KEEP_AS, KEEP_SHARED, LOOK_AS, TAKE_ALL,
    TAKE_AS, TAKE_EXCLUSIVE, TAKE_SHARED, TAKE_SLOT,
};
use super::trial;
use super::words::{append, decimal};
use crate::proto::{KindCommand, KindStep, SentAs};
use crate::resource::LockKind;

fn script(kind: &LockKind, step: KindStep) -> &'static str {
    match (kind, step) {
        (LockKind::Set(_), KindStep::Take { .. }) => TAKE_ALL,
        (LockKind::Set(_), KindStep::Keep | KindStep::Heal) => KEEP_ALL,
        (LockKind::Set(_), KindStep::Free) => FREE_ALL,
        (LockKind::Shared, KindStep::Take { .. }) => TAKE_SHARED,
        (LockKind::Shared, KindStep::Keep | KindStep::Heal) => KEEP_SHARED,
        (LockKind::Shared, KindStep::Free) => FREE_SHARED,
        (LockKind::Exclusive, KindStep::Take { .. }) => TAKE_EXCLUSIVE,
        (LockKind::Slot { .. }, KindStep::Take { .. }) => TAKE_SLOT,
        (LockKind::Value(_), KindStep::Take { .. }) => TAKE_AS,
        (LockKind::Value(_), KindStep::Keep | KindStep::Heal) => KEEP_AS,
        (LockKind::Value(_), KindStep::Free) => FREE_AS,
        (LockKind::Value(_), KindStep::Look) => LOOK_AS,
        (kind, step) => unreachable!("{} has no script for {step:?}", kind.row().name),
    }
}

/// The SHA-1 hash of a script that takes a lock, by which servers know it.
fn hash_of(script: &str) -> &'static str {
    HASHES.iter().find(|(text, _)| *text == script).expect("each that takes a lock has one").1
}

/// Apart from the other commands, so that theirs stay small.
#[cold]
#[inline(never)]
pub(super) fn encode(command: &KindCommand<'_>, out: &mut BytesMut) {
    let KindCommand { step, key, token, ttl, sent_as } = *command;
    let keys = command.keys();
    let [mut ttl_digits, mut extra_digits, mut count] = [[0; 20]; 3];
    // Which slot; whether to heal; for how long an intent stands.
    let extra = match (step, key.slot()) {
        (_, Some((_, slot))) => slot.unwrap_or_default().into(),
        (KindStep::Take { intent }, None) => u64::try_from(intent.as_millis()).unwrap_or(u64::MAX),
        (KindStep::Heal, None) => 1,
        (KindStep::Keep | KindStep::Free | KindStep::Look, None) => 0,
    };
    let count = decimal(keys.len() as u64, &mut count);
    let script = script(key.kind(), step);
    let (verb, script): (&[u8], Cow<'_, str>) = match sent_as {
        SentAs::Tried(trial) => (b"EVAL", trial::before(trial, script).into()),
        SentAs::Text => (b"EVAL", script.into()),
        SentAs::Hash => (b"EVALSHA", hash_of(script).into()),
    };
    let mut words: Vec<&[u8]> = vec![verb, script.as_bytes(), count];
    words.extend(keys.iter().map(Vec::as_slice));
    let ttl = decimal(ttl.as_millis().into(), &mut ttl_digits);
    words.extend([token.as_bytes(), ttl, decimal(extra, &mut extra_digits)]);
    words.extend(key.value());
    append(out, &words);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::encode::encode;
    use super::*;
    use crate::proto::{Command, Ttl};
    use crate::resource::{Key, Resource};
    use crate::token::LockToken;

    /// The words of a command, as a server reads them.
    fn words(key: &Key, step: KindStep) -> Vec<String> {
        let words = words_sent_as(SentAs::Text, key, step);
        assert_eq!(words[0], "EVAL");
        words
    }

    fn words_sent_as(sent_as: SentAs<'_>, key: &Key, step: KindStep) -> Vec<String> {
        let token = LockToken::from_random([0xab; 20]);
        let ttl = Ttl::new(Duration::from_millis(30_000)).unwrap();
        let mut out = BytesMut::new();
        encode(&Command::OfKind(KindCommand { step, key, token: &token, ttl, sent_as }), &mut out);
        let text = String::from_utf8(out.to_vec()).unwrap();
        let (count, mut rest) = text.strip_prefix('*').unwrap().split_once("\r\n").unwrap();
        let mut words = Vec::new();
        while let Some((length, after)) =
            rest.strip_prefix('$').and_then(|it| it.split_once("\r\n"))
        {
            let (word, after) = after.split_at(length.parse().unwrap());
            words.push(word.to_owned());
            rest = after.strip_prefix("\r\n").unwrap();
        }
        assert_eq!((rest, words.len()), ("", count.parse().unwrap()), "every word is whole");
        words
    }

    /// One of each kind that has scripts.
    fn keys() -> [Key; 5] {
        let own = Resource::with_value("a", "mine").unwrap();
        let all = Resource::all(["b", "a"]).unwrap();
        let shared = Resource::shared("a").unwrap();
        let exclusive = Resource::exclusive("a").unwrap();
        let slots = Resource::slot("a", 3).unwrap();
        let keys = [all, shared, exclusive, slots, own].map(|it| Key::new(it, b""));
        let [all, shared, exclusive, slots, own] = keys;
        [all, shared, exclusive, slots.with_slot(Some(2)), own]
    }

    const TAKE: KindStep = KindStep::Take { intent: Duration::ZERO };

    /// K16.
    #[test]
    fn hash_stands_for_the_text_and_all_else_is_the_same() {
        let mut hashes = Vec::new();
        for key in &keys() {
            let text = words(key, TAKE);
            let hash = words_sent_as(SentAs::Hash, key, TAKE);
            let known = HASHES.iter().find(|(_, known)| *known == hash[1]);
            assert_eq!(known.map(|(known, _)| *known), Some(&*text[1]), "{key:?}");
            assert_eq!((&*hash[0], &hash[2..]), ("EVALSHA", &text[2..]));
            hashes.push(hash[1].clone());
        }
        hashes.sort();
        hashes.dedup();
        assert_eq!(hashes.len(), HASHES.len());
    }

    #[test]
    fn largest_set_is_encoded() {
        let names: Vec<String> = (0..128).map(|i| format!("{i:0512}")).collect();
        let all = Key::new(Resource::all(&names).unwrap(), b"");
        assert_eq!(words(&all, TAKE)[2..].len(), 1 + 128 + 3);
    }
}

//! The commands of what is not one plain key (K1 to K8, K11 to K15).

use std::borrow::Cow;

use bytes::BytesMut;

use super::scripts::{
    FREE_ALL, FREE_AS, FREE_SHARED, HASHES, KEEP_ALL, KEEP_AS, KEEP_SHARED, LOOK_AS, TAKE_ALL,
    TAKE_AS, TAKE_EXCLUSIVE, TAKE_SHARED, TAKE_SLOT,
};
use super::trial;
use super::words::{append, decimal, millis_up};
use crate::proto::{KindCommand, KindStep, SentAs};
use crate::resource::LockKind;

fn script(kind: &LockKind, step: KindStep, is_marked: bool) -> &'static str {
    let either = |both: [&'static str; 2]| both[usize::from(is_marked)];
    match (kind, step) {
        (LockKind::Set(_), KindStep::Take { .. }) => either(TAKE_ALL),
        (LockKind::Set(_), KindStep::Keep | KindStep::Heal) => either(KEEP_ALL),
        (LockKind::Set(_), KindStep::Free) => FREE_ALL,
        (LockKind::Shared, KindStep::Take { .. }) => either(TAKE_SHARED),
        (LockKind::Shared, KindStep::Keep | KindStep::Heal) => either(KEEP_SHARED),
        (LockKind::Shared, KindStep::Free) => FREE_SHARED,
        (LockKind::Exclusive, KindStep::Take { .. }) => either(TAKE_EXCLUSIVE),
        (LockKind::Slot { .. }, KindStep::Take { .. }) => either(TAKE_SLOT),
        (LockKind::Value(_), KindStep::Take { .. }) => either(TAKE_AS),
        (LockKind::Value(_), KindStep::Keep | KindStep::Heal) => either(KEEP_AS),
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
    let KindCommand { step, key, token, ttl, marker, sent_as } = *command;
    let keys = command.keys();
    let [mut ttl_digits, mut extra_digits, mut quarantine, mut count] = [[0; 20]; 4];
    // Which slot; whether to heal; for how long an intent stands.
    let extra = match (step, key.slot()) {
        (_, Some((_, slot))) => slot.unwrap_or_default().into(),
        (KindStep::Take { intent }, None) => u64::try_from(intent.as_millis()).unwrap_or(u64::MAX),
        (KindStep::Heal, None) => 1,
        (KindStep::Keep | KindStep::Free | KindStep::Look, None) => 0,
    };
    let count = decimal((keys.len() + usize::from(marker.is_some())) as u64, &mut count);
    let script = script(key.kind(), step, marker.is_some());
    let (verb, script): (&[u8], Cow<'_, str>) = match sent_as {
        SentAs::Tried(trial) => (b"EVAL", trial::before(trial, script).into()),
        SentAs::Text => (b"EVAL", script.into()),
        SentAs::Hash => (b"EVALSHA", hash_of(script).into()),
    };
    let mut words: Vec<&[u8]> = vec![verb, script.as_bytes(), count];
    words.extend(marker.map(|marker| marker.key));
    words.extend(keys.iter().map(Vec::as_slice));
    let ttl = decimal(ttl.as_millis().into(), &mut ttl_digits);
    words.extend([token.as_bytes(), ttl, decimal(extra, &mut extra_digits)]);
    words.extend(marker.map(|marker| decimal(millis_up(marker.quarantine), &mut quarantine)));
    words.extend(key.value());
    append(out, &words);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::encode::encode;
    use super::*;
    use crate::proto::{Command, FlushMarker, Ttl};
    use crate::resource::{Key, Resource};
    use crate::token::LockToken;

    /// The words of a command, as a server reads them.
    fn words(key: &Key, step: KindStep, marker: Option<FlushMarker<'_>>) -> Vec<String> {
        let words = words_sent_as(SentAs::Text, key, step, marker);
        assert_eq!(words[0], "EVAL");
        words
    }

    fn words_sent_as(
        sent_as: SentAs<'_>,
        key: &Key,
        step: KindStep,
        marker: Option<FlushMarker<'_>>,
    ) -> Vec<String> {
        let token = LockToken::from_random([0xab; 20]);
        let ttl = Ttl::new(Duration::from_millis(30_000)).unwrap();
        let mut out = BytesMut::new();
        encode(
            &Command::OfKind(KindCommand { step, key, token: &token, ttl, marker, sent_as }),
            &mut out,
        );
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

    /// K16: with a marker as without, for the script reads its keys from other places then.
    #[test]
    fn hash_stands_for_the_text_and_all_else_is_the_same() {
        let marker = Some(FlushMarker { key: b"alive", quarantine: Duration::from_secs(1) });
        let mut hashes = Vec::new();
        for (key, marker) in keys().iter().flat_map(|key| [(key, None), (key, marker)]) {
            let text = words(key, TAKE, marker);
            let hash = words_sent_as(SentAs::Hash, key, TAKE, marker);
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
        assert_eq!(words(&all, TAKE, None)[2..].len(), 1 + 128 + 3);
    }
}

//! The scripts of what is not one plain key (K1 to K8).

use bytes::{BufMut, BytesMut};

use super::encode::{append_word, decimal, marker_millis};
use crate::proto::{FormCommand, FormStep};
use crate::resource::Form;

/// A script with its beginning, which says what time it is, and whether the flush marker is there.
macro_rules! script {
    ($beginning:literal, $name:literal) => {
        concat!(
            include_str!(concat!("../scripts/", $beginning, ".lua")),
            include_str!(concat!("../scripts/", $name, ".lua")),
        )
        .trim_ascii_end()
    };
    ($name:literal) => {
        [script!("form_time", $name), script!("form_marker", $name)]
    };
}

const TAKE_ALL: [&str; 2] = script!("take_all");
const KEEP_ALL: [&str; 2] = script!("keep_all");
const FREE_ALL: &str = include_str!("../scripts/free_all.lua").trim_ascii_end();
const TAKE_SHARED: [&str; 2] = script!("take_shared");
const KEEP_SHARED: [&str; 2] = script!("keep_shared");
const FREE_SHARED: &str = include_str!("../scripts/free_shared.lua").trim_ascii_end();
const TAKE_EXCLUSIVE: [&str; 2] = script!("take_exclusive");
const TAKE_SLOT: [&str; 2] = script!("take_slot");

fn script(form: Form, step: FormStep, is_marked: bool) -> &'static str {
    let either = |both: [&'static str; 2]| both[usize::from(is_marked)];
    match (form, step) {
        (Form::All, FormStep::Take { .. }) => either(TAKE_ALL),
        (Form::All, FormStep::Keep | FormStep::Heal) => either(KEEP_ALL),
        (Form::All, FormStep::Free) => FREE_ALL,
        (Form::Shared, FormStep::Take { .. }) => either(TAKE_SHARED),
        (Form::Shared, FormStep::Keep | FormStep::Heal) => either(KEEP_SHARED),
        (Form::Shared, FormStep::Free) => FREE_SHARED,
        (Form::Exclusive, FormStep::Take { .. }) => either(TAKE_EXCLUSIVE),
        (Form::Slot, FormStep::Take { .. }) => either(TAKE_SLOT),
        (Form::Plain | Form::Exclusive | Form::Slot, _) => {
            unreachable!("{form:?} has no script for {step:?}")
        }
    }
}

/// Apart from the other commands, so that theirs stay small.
#[cold]
#[inline(never)]
pub(super) fn encode(command: &FormCommand<'_>, out: &mut BytesMut) {
    let FormCommand { step, key, token, ttl, marker } = *command;
    let keys = key.keys();
    let [mut ttl_digits, mut extra_digits, mut quarantine, mut count] = [[0; 20]; 4];
    // Which slot; whether to heal; for how long an intent stands.
    let extra = match (step, key.slot_of()) {
        (_, Some((_, slot))) => slot.into(),
        (FormStep::Take { intent }, None) => u64::try_from(intent.as_millis()).unwrap_or(u64::MAX),
        (FormStep::Heal, None) => 1,
        (FormStep::Keep | FormStep::Free, None) => 0,
    };
    let count = decimal((keys.len() + usize::from(marker.is_some())) as u64, &mut count);
    let script = script(key.form(), step, marker.is_some());
    let mut words: Vec<&[u8]> = vec![b"EVAL", script.as_bytes(), count];
    words.extend(marker.map(|marker| marker.key));
    words.extend(keys.iter().map(Vec::as_slice));
    let ttl = decimal(ttl.as_millis().into(), &mut ttl_digits);
    words.extend([token.as_bytes(), ttl, decimal(extra, &mut extra_digits)]);
    words.extend(marker.map(|marker| decimal(marker_millis(marker), &mut quarantine)));
    out.put_slice(b"*");
    out.put_slice(decimal(words.len() as u64, &mut [0; 20]));
    for word in words {
        out.put_slice(b"\r\n$");
        append_word(out, word);
    }
    out.put_slice(b"\r\n");
}

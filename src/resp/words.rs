//! The words that commands consist of.

use bytes::{BufMut, BytesMut};

/// The beginning of a command that runs a script, up to the length of its first key.
pub(super) fn eval_head(words: usize, script: &str, keys: usize) -> Box<[u8]> {
    let length = script.len();
    let head = format!("*{words}\r\n$4\r\nEVAL\r\n${length}\r\n{script}\r\n$1\r\n{keys}\r\n$");
    head.into_bytes().into()
}

/// Appends a word's length and the word itself: the part after the dollar and before the line end.
pub(super) fn append_word(out: &mut BytesMut, word: &[u8]) {
    let length = word.len();
    match length {
        // Nearly every word.
        10..=99 => {
            let (tens, ones) = ((length / 10) as u8, (length % 10) as u8);
            out.put_slice(&[b'0' + tens, b'0' + ones, b'\r', b'\n']);
        }
        0..=9 => out.put_slice(&[b'0' + length as u8, b'\r', b'\n']),
        _ => {
            out.put_slice(decimal(length as u64, &mut [0; 20]));
            out.put_slice(b"\r\n");
        }
    }
    out.put_slice(word);
}

/// Appends a command with these words.
pub(super) fn append(out: &mut BytesMut, words: &[&[u8]]) {
    out.put_slice(b"*");
    out.put_slice(decimal(words.len() as u64, &mut [0; 20]));
    for word in words {
        out.put_slice(b"\r\n$");
        append_word(out, word);
    }
    out.put_slice(b"\r\n");
}

/// The digits of a number below a hundred.
pub(super) fn few_digits(number: usize) -> &'static [u8] {
    &TWO_DIGITS[number][usize::from(number < 10)..]
}

/// The digits of a number, two at a time: fencing tokens have many.
pub(super) fn decimal(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    while number >= 100 {
        at -= 2;
        digits[at..at + 2].copy_from_slice(&TWO_DIGITS[(number % 100) as usize]);
        number /= 100;
    }
    let [tens, ones] = TWO_DIGITS[number as usize];
    at -= 1;
    digits[at] = ones;
    if number >= 10 {
        at -= 1;
        digits[at] = tens;
    }
    &digits[at..]
}

static TWO_DIGITS: [[u8; 2]; 100] = {
    let mut all = [[b'0'; 2]; 100];
    let mut number = 0;
    while number < all.len() {
        all[number] = [b'0' + (number / 10) as u8, b'0' + (number % 10) as u8];
        number += 1;
    }
    all
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_writes_both_ends() {
        for number in [0, 9, 10, 2_147_483_647, u64::MAX] {
            assert_eq!(decimal(number, &mut [0; 20]), number.to_string().as_bytes());
        }
    }
}

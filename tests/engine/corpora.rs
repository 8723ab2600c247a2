//! The fuzz targets over the committed corpora, and over some inputs beyond them.

use testbed::fuzz;

fn replay(target: &str, run: impl Fn(&[u8])) {
    let folder = format!("{}/fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
    let mut inputs = 0;
    for entry in std::fs::read_dir(folder).expect("the corpus is committed") {
        run(&std::fs::read(entry.unwrap().path()).unwrap());
        inputs += 1;
    }
    assert!(inputs > 0, "the corpus of {target} is empty");
}

#[test]
fn reply_corpus_holds() {
    replay("reply", fuzz::reply);
}

#[test]
fn engine_corpus_holds() {
    replay("engine", fuzz::engine);
}

/// Nearly valid replies, cut anywhere.
#[test]
fn reply_corpus_with_wrong_bytes_holds() {
    replay("reply", |input| {
        let mut state = input.len() as u64;
        let mut draw = |bound: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % bound
        };
        for _ in 0..200 {
            let mut input = input.to_vec();
            for _ in 0..=draw(3) {
                let (at, byte) = (draw(input.len()), b"*$:+-\r\n0129x>%_=#~"[draw(18)]);
                match draw(3) {
                    0 => input.insert(at, byte),
                    1 if input.len() > 1 => drop(input.remove(at)),
                    _ => input[at] = byte,
                }
            }
            fuzz::reply(&input);
        }
    });
}

/// A minimal fuzzer, so that every test run tries some inputs beyond the corpus.
#[test]
fn slow_engine_survives_arbitrary_steps() {
    let mut state = 1_u64;
    for _ in 0..2_000 {
        let bytes: Vec<u8> = (0..201)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        fuzz::engine(&bytes);
    }
}

//! What the doctor says where no master listens: it has no other words than the library.

use serde_json::Value;
use testbed::{Reticent, Stranger, strangers};

use crate::cli::{muxlock, run};

#[track_caller]
fn assert_doctor_says(url: &str, words: &str) {
    let mut doctor = muxlock(&["doctor", "--json", "--read-only", "--node", url]);
    let (code, out, _) = run(&mut doctor);
    let json: Value = serde_json::from_str(&out).expect(&out);
    let findings = json["findings"].as_array().unwrap();
    let has = |it: &Value| it["why"].as_str().is_some_and(|why| why.contains(words));
    assert!(code == 1 && findings.iter().any(has), "{words}: {out}");
    assert!(!out.contains("hunter22"), "{out}");
}

#[test]
fn what_is_no_redis_server_is_named_without_a_secret() {
    for Stranger { url, words, .. } in strangers() {
        assert_doctor_says(&url, words);
    }
}

#[test]
fn causes_at_a_sentinel_are_named() {
    let sentinels = Reticent::start();
    for (url, _, words) in sentinels.questions() {
        assert_doctor_says(&url, words);
    }
    let (_sentinels, url, words) = sentinels.without_server();
    assert_doctor_says(&url, &words);
}

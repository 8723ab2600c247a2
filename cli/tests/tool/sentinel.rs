//! What the doctor says of a master that Sentinels fail over.

use std::process::Command;

use serde_json::Value;
use testbed::{Site, ask};

use crate::cli::{muxlock, run};

/// The tool finds the settings with which a master that is cut off would go on, and mends them.
#[test]
fn slow_doctor_finds_a_master_that_would_not_stop_to_write() {
    let site = Site::start();
    let found = || {
        let (_, out, _) =
            run(&mut muxlock(&["doctor", "--json", "--read-only", "--node", &site.url()]));
        let json: Value = serde_json::from_str(&out).unwrap();
        let fixes = json["findings"].as_array().unwrap().iter();
        let fixes = fixes.filter(|it| it["id"] == "min-replicas" || it["id"] == "sentinels");
        fixes.map(|it| it["fix"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(found(), [] as [&str; 0]);
    ask(&site.servers[0], &["CONFIG", "SET", "min-replicas-to-write", "0"]);
    ask(&site.servers[0], &["CONFIG", "SET", "min-replicas-max-lag", "3"]);
    let fixes = found();
    assert_eq!(fixes.len(), 2, "{fixes:?}");
    for fix in fixes {
        assert!(Command::new("sh").args(["-ec", &fix]).status().unwrap().success(), "{fix}");
    }
    assert_eq!(found(), [] as [&str; 0]);
}

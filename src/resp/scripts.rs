//! The texts of the scripts.

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

/// A script for a key with the caller's value: what all of them look at stands before it.
macro_rules! script_as {
    (from $beginning:literal, $($name:literal),*) => {
        concat!(
            include_str!(concat!("../scripts/", $beginning, ".lua")),
            include_str!("../scripts/as.lua"),
            $(include_str!(concat!("../scripts/", $name, ".lua")),)*
        )
        .trim_ascii_end()
    };
    ($($name:literal),*) => {
        [script_as!(from "form_time", $($name),*), script_as!(from "form_marker", $($name),*)]
    };
}

pub(crate) const RELEASE: &str = include_str!("../scripts/release.lua").trim_ascii_end();
pub(crate) const EXTEND: &str = include_str!("../scripts/extend.lua").trim_ascii_end();
pub(crate) const EXTEND_OR_SET: &str =
    include_str!("../scripts/extend_or_set.lua").trim_ascii_end();
pub(crate) const SET_MARKED: &str =
    concat!(include_str!("../scripts/marker.lua"), include_str!("../scripts/set_marked.lua"));
pub(crate) const EXTEND_OR_SET_MARKED: &str = concat!(
    include_str!("../scripts/marker.lua"),
    include_str!("../scripts/extend_or_set_marked.lua"),
);
pub(crate) const ACQUIRE_FENCED: &str =
    include_str!("../scripts/acquire_fenced.lua").trim_ascii_end();
pub(crate) const ACQUIRE_FENCED_MARKED: &str = concat!(
    include_str!("../scripts/marker.lua"),
    include_str!("../scripts/acquire_fenced_marked.lua"),
);
pub(crate) const RAISE: &str = include_str!("../scripts/raise.lua").trim_ascii_end();
pub(crate) const INSPECT: &str = include_str!("../scripts/inspect.lua").trim_ascii_end();
pub(crate) const TAKE_ALL: [&str; 2] = script!("take_all");
pub(crate) const KEEP_ALL: [&str; 2] = script!("keep_all");
pub(crate) const FREE_ALL: &str = include_str!("../scripts/free_all.lua").trim_ascii_end();
pub(crate) const TAKE_SHARED: [&str; 2] = script!("take_shared");
pub(crate) const KEEP_SHARED: [&str; 2] = script!("keep_shared");
pub(crate) const FREE_SHARED: &str = include_str!("../scripts/free_shared.lua").trim_ascii_end();
pub(crate) const TAKE_EXCLUSIVE: [&str; 2] = script!("take_exclusive");
pub(crate) const TAKE_SLOT: [&str; 2] = script!("take_slot");
pub(crate) const TAKE_AS: [&str; 2] = script_as!("take_as", "as_ends");
pub(crate) const TAKE_OVER: [&str; 2] = script_as!("take_over", "as_ends");
pub(crate) const KEEP_AS: [&str; 2] = script_as!("keep_as", "as_ends");
pub(crate) const FREE_AS: &str = script_as!(from "form_time", "free_as");
pub(crate) const GIVE_BACK: &str = script_as!(from "form_time", "give_back");
pub(crate) const LOOK_AS: &str = script_as!(from "form_time", "look_as");

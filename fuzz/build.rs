//! Writes the texts of the scripts, which the simulator's servers recognise, as the library does.

#[path = "../build.rs"]
mod scripts;

fn main() {
    std::env::set_current_dir("..").expect("the library is there");
    scripts::main();
}

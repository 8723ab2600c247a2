#![doc = include_str!(concat!(env!("OUT_DIR"), "/guide/readme.md"))]

macro_rules! pages {
    ($($page:ident)*) => {$(
        #[doc = include_str!(concat!(env!("OUT_DIR"), "/guide/", stringify!($page), ".md"))]
        pub mod $page {}
    )*};
}

pages! {
    concepts quick_start which_lock choosing
    waiting renewal fencing kinds recipes testing services event_loops async_code hand_over
    errors errors_of_servers errors_of_settings errors_of_the_tool errors_of_steps errors_of_doctor
    masters replacing sentinel monitoring managed
    tool run from_flock steps doctor list inspect
    guarantees settings limits versions performance other_clients changing_clients
    rules lost_commands
}

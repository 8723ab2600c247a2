//! Locks that are not one plain key, over scripted servers.

use std::time::Duration;

use muxlock::LockErrorKind;
use testbed::scripted::Scripted;
use testbed::{TTL, all_ready, patient};

/// How long the server thinks about each slot.
const SLOW: Duration = Duration::from_millis(50);

/// K8: a permit that takes nine rounds has the time of nine rounds.
#[test]
fn permit_is_given_the_time_of_all_its_rounds() {
    let server = Scripted::start(|peer| {
        while let Some(command) = peer.read_command()? {
            let is_about_slots = command.get(3).is_some_and(|key| key.ends_with(b"{permit}:0"));
            let is_plain = command[0] == b"SET" && command[1].starts_with(b"smtp{permit}:");
            let reply = match is_plain || is_about_slots && command[2] == b"5" {
                true => {
                    peer.pause(SLOW)?;
                    // Refused; and behind a script, all five are free.
                    if is_plain { b"$-1\r\n".to_vec() } else { b":33\r\n".to_vec() }
                }
                false => peer.normal_reply(&command),
            };
            peer.reply(&reply)?;
        }
        Ok(())
    });
    let builder = patient([server.url()]).connect_timeout(SLOW).node_timeout(8 * SLOW);
    let redlock = all_ready(&builder);
    let semaphore = redlock.semaphore("smtp", 5).unwrap();
    std::thread::scope(|scope| {
        // One of them runs the event loop, and the other one sleeps.
        let threads = [(); 2].map(|()| scope.spawn(|| semaphore.try_acquire(TTL).unwrap_err()));
        for thread in threads {
            let error = thread.join().unwrap();
            assert_eq!((error.kind(), error.attempts()), (LockErrorKind::Contended, 9), "{error}");
        }
    });
}

//! A few threads with a few orders each; everything else is up to loom.

use std::collections::BTreeSet;
use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, FailurePersistence, Runner, thread};

use crate::bounded::Bounded;
use crate::leader_follower::LeaderFollower;
use crate::sync::set_number;
use crate::toy::{Answer, Busy, Order, Toy, Wire};

const INTERRUPTIONS_MAX: usize = 3;
const NONE: BTreeSet<u32> = BTreeSet::new();

/// For each scheduler and scene, in a plain test run.
const RUNS: usize = 2_000;

fn runs() -> usize {
    match env::var("MUXLOCK_HANDOVER_RUNS") {
        Ok(text) => text.parse().expect("MUXLOCK_HANDOVER_RUNS is a number"),
        Err(_) => RUNS,
    }
}

fn expected(order: Order) -> Answer {
    match order {
        Order::Ask(number)
        | Order::Trip(number)
        | Order::Snap(number)
        | Order::Cut(number)
        | Order::Hurry(number)
        | Order::Say(number)
        | Order::SayAfter(number)
        | Order::Swear(number)
        | Order::SwearAfter(number)
        | Order::Stall(number)
        | Order::Stick(number) => Answer::Number(number),
        Order::AskBehind(number) | Order::HurryBehind(number) => Answer::Number(number),
        Order::Look(number) | Order::Behind(number) => Answer::Looked(number),
        Order::Nothing | Order::NothingBehind(_) | Order::Doze => Answer::Nothing,
        Order::Tell(_) | Order::CutAndGo | Order::Swap(_) | Order::SwapInAHurry(_) => {
            unreachable!("nobody hears of it")
        }
    }
}

fn carry_out(shared: &LeaderFollower<Toy>, wire: &Wire, orders: &[Order]) {
    for order in orders {
        match order {
            Order::Tell(_) | Order::CutAndGo => shared.submit(*order),
            _ => {
                let (first, order) = parts(*order);
                let outcome = match first {
                    None => shared.run(order, order.limit()),
                    Some(first) => shared.run_behind(first, order, order.limit()),
                };
                let Some(outcome) = outcome else {
                    let is_hurried = matches!(order, Order::Hurry(_) | Order::HurryBehind(_));
                    assert!(is_hurried, "the others have patience");
                    continue;
                };
                let order = &order;
                assert!(outcome.is_fresh() || is_at_once(order), "{order:?} was judged too early");
                assert_eq!(outcome.answer, expected(*order));
                outcome.answer.number().into_iter().for_each(|number| wire.settle(number));
            }
        }
    }
}

/// The order that is not waited for, if there is one, and the one that is.
fn parts(order: Order) -> (Option<Order>, Order) {
    match order {
        Order::Swap(number) => (Some(Order::Tell(number)), Order::AskBehind(number + 1)),
        Order::SwapInAHurry(number) => (Some(Order::Tell(number)), Order::HurryBehind(number + 1)),
        Order::NothingBehind(number) => (Some(Order::Tell(number - 1)), order),
        _ => (None, order),
    }
}

/// What is done at once is nothing that could be over by now.
fn is_at_once(order: &Order) -> bool {
    matches!(order, Order::Behind(_) | Order::Nothing | Order::NothingBehind(_) | Order::Doze)
}

fn sends(orders: &[Order]) -> usize {
    let sent = |order: &Order| match order {
        Order::Swap(_) => 2,
        Order::Ask(_) | Order::Swear(_) | Order::SwearAfter(_) => 1,
        Order::Tell(_) | Order::Trip(_) | Order::Snap(_) | Order::NothingBehind(_) => 1,
        _ => 0,
    };
    orders.iter().map(sent).sum()
}

/// Each thread carries out its orders, one after the other; then nothing is left unsent.
fn scene(threads: &'static [&'static [Order]]) -> impl Fn() + Send + Sync + Copy {
    move || {
        let wire = Wire::new();
        let shared = Arc::new(Toy::leader_follower(&wire, false));
        let count = threads.iter().map(|orders| sends(orders)).sum();
        let masters = thread::spawn({
            let wire = Arc::clone(&wire);
            move || wire.answer(count)
        });
        let spawn = |orders: &'static [Order]| {
            let (shared, wire) = (Arc::clone(&shared), Arc::clone(&wire));
            thread::spawn(move || carry_out(&shared, &wire, orders))
        };
        let others: Vec<_> = threads[1..].iter().map(|orders| spawn(orders)).collect();
        carry_out(&shared, &wire, threads[0]);
        others.into_iter().for_each(|thread| thread.join().unwrap());
        masters.join().unwrap();
        assert_eq!(wire.unsent(), []);
        assert_eq!(wire.unsettled(), NONE);
    }
}

fn config() -> Config {
    let mut config = Config::new();
    // Some scenes panic as planned.
    config.failure_persistence = FailurePersistence::None;
    config
}

/// Every interleaving with so many interruptions.
fn exhaust(interruptions: usize, scene: impl Fn() + Send + Sync + 'static) {
    let (scheduler, runs) = Bounded::new(interruptions);
    Runner::new(scheduler, config()).run(scene);
    println!("{} interleavings with {interruptions} interruptions", runs.load(Ordering::Relaxed));
}

/// Many interleavings: by chance, and by chance with few interruptions, at which most bugs show
/// (Burckhardt et al., "A randomized scheduler with probabilistic guarantees of finding bugs",
/// ASPLOS 2010).
fn explore(scene: impl Fn() + Send + Sync + Copy + 'static) {
    let runs = runs();
    Runner::new(RandomScheduler::new(runs), config()).run(scene);
    for interruptions in 1..=INTERRUPTIONS_MAX {
        Runner::new(PctScheduler::new(interruptions, runs), config()).run(scene);
    }
}

#[test]
fn two_threads_that_ask() {
    exhaust(3, scene(&[&[Order::Ask(1)], &[Order::Ask(2)]]));
}

#[test]
fn many_threads_that_ask_again_and_again() {
    explore(scene(&[&[Order::Ask(1), Order::Ask(2)], &[Order::Ask(3), Order::Ask(4)]]));
    exhaust(1, scene(&[&[Order::Ask(1)], &[Order::Ask(2)], &[Order::Ask(3)]]));
    explore(scene(&[
        &[Order::Ask(1), Order::Ask(2)],
        &[Order::Ask(3), Order::Ask(4)],
        &[Order::Ask(5), Order::Ask(6)],
        &[Order::Ask(7), Order::Ask(8)],
        &[Order::Ask(9), Order::Ask(10)],
    ]));
}

/// The masters answer the one that asks when all others are done.
fn scene_with_slow_masters(
    asks: &'static [Order],
    others: &'static [&'static [Order]],
) -> impl Fn() + Send + Sync + Copy {
    move || {
        let wire = Wire::new();
        let shared = Arc::new(Toy::leader_follower(&wire, false));
        let spawn = |orders: &'static [Order]| {
            let (shared, wire) = (Arc::clone(&shared), Arc::clone(&wire));
            thread::spawn(move || carry_out(&shared, &wire, orders))
        };
        let one = spawn(asks);
        let others: Vec<_> = others.iter().map(|orders| spawn(orders)).collect();
        others.into_iter().for_each(|thread| thread.join().unwrap());
        wire.answer(sends(asks));
        one.join().unwrap();
        assert_eq!(wire.unsettled(), NONE);
    }
}

/// What is due at once is seen to, though the leader waits for an event that is yet to come.
#[test]
fn leader_does_not_sleep_past_what_is_due() {
    let looks: &[&[Order]] = &[&[Order::Look(2), Order::Look(3), Order::Look(4)]];
    exhaust(2, scene_with_slow_masters(&[Order::Ask(1)], looks));
    let looks: &[&[Order]] = &[&[Order::Look(2), Order::Look(3)], &[Order::Look(4)]];
    explore(scene_with_slow_masters(&[Order::Ask(1)], looks));
    explore(scene(&[&[Order::Look(1)], &[Order::Look(2), Order::Nothing]]));
    explore(scene(&[&[Order::Ask(1)], &[Order::Look(2), Order::Ask(3)], &[Order::Look(4)]]));
}

/// Nothing is announced, and nothing due, when an order ends because another's outcome was taken.
#[test]
fn order_that_ends_with_another_is_handed_out() {
    let looks: &[&[Order]] = &[&[Order::Look(2)], &[Order::Behind(3)]];
    exhaust(2, scene_with_slow_masters(&[Order::Ask(1)], looks));
    let looks: &[&[Order]] = &[&[Order::Look(2)], &[Order::Behind(3)], &[Order::Behind(4)]];
    explore(scene_with_slow_masters(&[Order::Ask(1)], looks));
}

/// Nothing is announced when an order ends because it could not be sent.
#[test]
fn leader_does_not_sleep_past_the_end_of_his_order() {
    let scene = |threads: &'static [&'static [Order]]| {
        move || {
            let wire = Wire::new();
            let shared = Arc::new(Toy::leader_follower(&wire, false));
            let spawn = |orders: &&'static [Order]| {
                let (shared, wire, orders) = (Arc::clone(&shared), Arc::clone(&wire), *orders);
                thread::spawn(move || carry_out(&shared, &wire, orders))
            };
            let threads: Vec<_> = threads.iter().map(spawn).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(wire.unsettled(), NONE);
        }
    };
    exhaust(2, scene(&[&[Order::Ask(1)], &[Order::Cut(2)]]));
    exhaust(2, scene(&[&[Order::Ask(1)], &[Order::CutAndGo]]));
    explore(scene(&[&[Order::Ask(1)], &[Order::Ask(2), Order::Ask(3)], &[Order::Cut(4)]]));
    // It may be back, without an order of anyone, while a thread lets others in before its own.
    explore(scene(&[
        &[Order::Ask(1)],
        &[Order::Ask(2)],
        &[Order::Ask(3)],
        &[Order::Cut(4), Order::Nothing],
    ]));
}

#[test]
fn what_nobody_waits_for_is_sent() {
    exhaust(2, scene(&[&[Order::Ask(1)], &[Order::Tell(2)]]));
    explore(scene(&[&[Order::Ask(1)], &[Order::Tell(2), Order::Tell(3)]]));
    explore(scene(&[&[Order::Ask(1)], &[Order::Tell(2)], &[Order::Tell(3), Order::Nothing]]));
    explore(scene(&[&[Order::Tell(1)], &[Order::Tell(2)], &[Order::Tell(3)], &[Order::Tell(4)]]));
    // More than a thread sees to before it lets nobody else in.
    const MANY: &[Order] = &[
        Order::Tell(2),
        Order::Tell(3),
        Order::Tell(4),
        Order::Tell(5),
        Order::Tell(6),
        Order::Tell(7),
    ];
    explore(scene(&[&[Order::Tell(1)], MANY]));
}

/// The first of two orders is sent in any case, and right in front of the second.
#[test]
fn two_orders_leave_together_and_the_first_is_never_lost() {
    exhaust(2, scene(&[&[Order::Swap(1)], &[Order::Swap(3)]]));
    exhaust(2, scene(&[&[Order::Ask(1)], &[Order::NothingBehind(3)]]));
    explore(scene(&[
        &[Order::Swap(1), Order::Swap(3)],
        &[Order::Ask(5), Order::Swap(6)],
        &[Order::Tell(8), Order::NothingBehind(10)],
        &[Order::Swap(11)],
    ]));
    exhaust(1, scene_with_one_held_up(&[&[Order::SwapInAHurry(1)], &[Order::Ask(3)]]));
    explore(scene_with_one_held_up(&[
        &[Order::Stall(1)],
        &[Order::SwapInAHurry(2), Order::SwapInAHurry(4)],
        &[Order::SwapInAHurry(6), Order::Tell(8)],
    ]));
    explore(scene_with_panics(
        false,
        2,
        [&[Order::Doze, Order::NothingBehind(2)], &[Order::NothingBehind(4)], &[Order::Ask(5)]],
    ));
}

/// Some of the orders panic, in one way or the other; that is the affair of the threads that give
/// them.
fn scene_with_panics(
    poller_panics: bool,
    panics_max: usize,
    threads: [&'static [Order]; 3],
) -> impl Fn() + Send + Sync + Copy {
    move || {
        let wire = Wire::new();
        let shared = Arc::new(Toy::leader_follower(&wire, poller_panics));
        let attempt = |orders: &'static [Order]| {
            let (shared, wire) = (Arc::clone(&shared), Arc::clone(&wire));
            let panics = move |order: &&[Order]| {
                catch_unwind(AssertUnwindSafe(|| carry_out(&shared, &wire, order))).is_err()
            };
            thread::spawn(move || orders.chunks(1).filter(panics).count())
        };
        const AFTERWARDS: &[Order] = &[Order::Look(97), Order::Ask(98), Order::Ask(99)];
        let count: usize = threads.iter().map(|orders| sends(orders)).sum();
        let masters = thread::spawn({
            let wire = Arc::clone(&wire);
            move || wire.answer(count + sends(AFTERWARDS))
        });
        let threads = threads.map(attempt);
        let panics = threads.map(|thread| thread.join().unwrap());
        assert!(panics.iter().sum::<usize>() <= panics_max, "{panics:?} panics");
        // The panics that are still to come do.
        for i in 0..panics_max as u32 {
            let look = [Order::Look(90 + i)];
            catch_unwind(AssertUnwindSafe(|| carry_out(&shared, &wire, &look))).ok();
        }
        // Whatever has happened, the next ones are served, and find nothing unsent.
        let other = thread::spawn({
            let (shared, wire) = (Arc::clone(&shared), Arc::clone(&wire));
            move || carry_out(&shared, &wire, &AFTERWARDS[2..])
        });
        carry_out(&shared, &wire, &AFTERWARDS[..2]);
        other.join().unwrap();
        masters.join().unwrap();
        assert_eq!(wire.unsent(), []);
        assert_eq!(wire.unsettled(), NONE);
    }
}

#[test]
fn thread_that_panics_while_it_works_leaves_the_others_well() {
    explore(scene_with_panics(false, 1, [&[Order::Ask(1)], &[Order::Trip(2)], &[Order::Ask(3)]]));
    explore(scene_with_panics(
        false,
        2,
        [&[Order::Trip(1), Order::Ask(2)], &[Order::Trip(3), Order::Ask(4)], &[Order::Ask(5)]],
    ));
}

/// The outcomes that it has posted are announced all the same.
#[test]
fn thread_that_panics_between_two_outcomes_wakes_whose_came_first() {
    explore(scene_with_panics(
        false,
        1,
        [&[Order::Ask(1), Order::Ask(2)], &[Order::Snap(3)], &[Order::Ask(4), Order::Ask(5)]],
    ));
}

/// What has come in for it is nobody else's.
#[test]
fn thread_that_panics_takes_its_outcome_along() {
    const FIRST: [&[Order]; 3] =
        [&[Order::Ask(1)], &[Order::Trip(2)], &[Order::Nothing, Order::Cut(3)]];
    const THEN: [&[Order]; 3] = [
        &[Order::Look(11), Order::Look(12)],
        &[Order::Look(21), Order::Look(22)],
        &[Order::Look(31), Order::Look(32)],
    ];
    explore(|| {
        let wire = Wire::new();
        let shared = Arc::new(Toy::leader_follower(&wire, false));
        let attempt = |orders: &'static [Order]| {
            let (shared, wire) = (Arc::clone(&shared), Arc::clone(&wire));
            let run = move || {
                catch_unwind(AssertUnwindSafe(|| carry_out(&shared, &wire, orders))).is_err()
            };
            thread::spawn(run)
        };
        let mut panics = 0;
        for threads in [FIRST, THEN] {
            let threads = threads.map(attempt);
            panics +=
                threads.map(|thread| usize::from(thread.join().unwrap())).iter().sum::<usize>();
        }
        assert!(panics <= 1, "somebody was given what is another's");
    });
}

#[test]
fn order_of_a_thread_that_panics_before_it_is_begun_is_not_lost() {
    explore(scene_with_panics(
        false,
        2,
        [&[Order::Doze, Order::Tell(1)], &[Order::Tell(2)], &[Order::Ask(3)]],
    ));
    explore(scene_with_panics(
        false,
        2,
        [&[Order::Ask(1)], &[Order::Doze, Order::Ask(2), Order::Ask(3)], &[Order::Ask(4)]],
    ));
}

#[test]
fn leader_that_panics_leaves_the_others_well() {
    explore(scene_with_panics(true, 1, [&[Order::Ask(1)], &[Order::Ask(2)], &[Order::Look(3)]]));
}

/// One of the threads is held up until the others are done, and the masters answer whatever comes.
fn scene_with_one_held_up(threads: &'static [&'static [Order]]) -> impl Fn() + Send + Sync + Copy {
    move || {
        let wire = Wire::new();
        let shared = Arc::new(Toy::leader_follower(&wire, false));
        let busy = |(thread, orders): (usize, &&[Order])| Busy {
            thread,
            is_patient: orders.iter().any(Order::is_patient),
        };
        wire.set_busy(threads.iter().enumerate().map(busy).collect());
        let masters = thread::spawn({
            let wire = Arc::clone(&wire);
            move || wire.answer_all()
        });
        let spawn = |(number, orders): (usize, &&'static [Order])| {
            let (shared, wire, orders) = (Arc::clone(&shared), Arc::clone(&wire), *orders);
            thread::spawn(move || {
                set_number(number);
                carry_out(&shared, &wire, orders);
                wire.done();
            })
        };
        let threads: Vec<_> = threads.iter().enumerate().map(spawn).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        wire.end();
        masters.join().unwrap();
        assert_eq!(wire.unsent(), []);
        assert_eq!(wire.unsettled(), NONE);
    }
}

/// Whoever has something to report, and is not heard, holds up nobody: not those that wait for
/// their orders, nor those that come.
#[test]
fn thread_that_reports_holds_up_nobody() {
    exhaust(2, scene_with_one_held_up(&[&[Order::Say(1)], &[Order::Ask(2)]]));
    exhaust(2, scene_with_one_held_up(&[&[Order::SayAfter(1)], &[Order::Ask(2)]]));
    explore(scene_with_one_held_up(&[&[Order::Say(1)], &[Order::Ask(2), Order::Ask(3)]]));
    explore(scene_with_one_held_up(&[
        &[Order::Ask(1), Order::Ask(2)],
        &[Order::Say(3)],
        &[Order::Look(4), Order::Tell(5)],
        &[Order::Ask(6)],
    ]));
    explore(scene_with_one_held_up(&[
        &[Order::Ask(1), Order::SayAfter(2)],
        &[Order::Look(3), Order::Tell(4)],
        &[Order::Ask(5)],
    ]));
}

#[test]
fn thread_that_panics_while_it_reports_leaves_the_others_well() {
    explore(scene_with_panics(false, 1, [&[Order::Ask(1)], &[Order::Swear(2)], &[Order::Ask(3)]]));
    explore(scene_with_panics(
        false,
        2,
        [&[Order::Swear(1), Order::Ask(2)], &[Order::Swear(3), Order::Ask(4)], &[Order::Ask(5)]],
    ));
    explore(scene_with_panics(
        false,
        2,
        [&[Order::SwearAfter(1), Order::Ask(2)], &[Order::SwearAfter(3)], &[Order::Look(4)]],
    ));
}

/// It has the loop, or waits for events, and gets no processor.
#[test]
fn sleeper_keeps_its_limit_whoever_is_held_up() {
    for one in [&[Order::Stall(1)], &[Order::Stick(1)]] as [&'static [Order]; 2] {
        let hurried: &[Order] = &[Order::Hurry(2)];
        let scene = |threads: Vec<&'static [Order]>| scene_with_one_held_up(threads.leak());
        exhaust(2, scene(vec![one, hurried]));
        exhaust(1, scene(vec![one, hurried, &[Order::Hurry(3)]]));
        explore(scene(vec![one, &[Order::Hurry(2), Order::Hurry(3)], &[Order::Hurry(4)]]));
        explore(scene(vec![one, &[Order::Hurry(2), Order::Tell(3)], &[Order::Hurry(4)]]));
    }
}

/// It may be called to the loop, or have its outcome, at that very moment.
#[test]
fn order_that_is_taken_back_is_lost_to_nobody() {
    exhaust(1, scene_with_one_held_up(&[&[Order::Hurry(1)], &[Order::Ask(2)]]));
    exhaust(1, scene_with_one_held_up(&[&[Order::Hurry(1)], &[Order::Hurry(2)], &[Order::Ask(3)]]));
    explore(scene_with_one_held_up(&[
        &[Order::Hurry(1), Order::Hurry(2)],
        &[Order::Hurry(3), Order::Ask(4)],
        &[Order::Look(5), Order::Hurry(6)],
        &[Order::Hurry(7)],
    ]));
}

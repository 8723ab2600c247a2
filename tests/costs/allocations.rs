//! Counts what a thread asks the allocator for, and says where it did.
//!
//! One thread is enough: the library has none of its own, and starting one would allocate on the
//! thread that starts it. So tests may run beside each other.

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;

/// So many allocations of one count say where they come from.
const TRACES_MAX: u64 = 3;

thread_local! {
    // Both without a destructor and made by the compiler: an allocator must not cause any.
    static IS_COUNTING: Cell<bool> = const { Cell::new(false) };
    static COUNTED: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counting.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[expect(unsafe_code, reason = "an allocator is unsafe by its trait")]
// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller's promise is the one that is asked for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

fn note(bytes: usize) {
    // A trace allocates as well; that is not counted.
    if !IS_COUNTING.replace(false) {
        return;
    }
    COUNTED.set(COUNTED.get() + 1);
    if COUNTED.get() <= TRACES_MAX {
        eprintln!("{bytes} bytes were asked for here:\n{}", Backtrace::force_capture());
    }
    IS_COUNTING.set(true);
}

/// Runs something; how often it allocated on this thread.
pub fn allocations(run: impl FnOnce()) -> u64 {
    COUNTED.set(0);
    IS_COUNTING.set(true);
    run();
    IS_COUNTING.set(false);
    COUNTED.get()
}

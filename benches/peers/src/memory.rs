//! Memory that this process has, and how often it asked for some.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// Whether allocations are counted: only then do they cost anything more.
static COUNTS: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
/// Bytes on the heap, more than when counting began.
static LIVE: AtomicI64 = AtomicI64::new(0);

/// The system's allocator, counting.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(size: usize) {
    if COUNTS.load(Ordering::Relaxed) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        LIVE.fetch_add(size as i64, Ordering::Relaxed);
    }
}

fn uncount(size: usize) {
    if COUNTS.load(Ordering::Relaxed) {
        LIVE.fetch_sub(size as i64, Ordering::Relaxed);
    }
}

#[expect(unsafe_code, reason = "an allocator is unsafe by its trait")]
// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise is the one that is asked for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        uncount(layout.size());
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        uncount(layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Runs something; how often it allocated, on whatever thread.
pub fn allocations(run: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    COUNTS.store(true, Ordering::Relaxed);
    run();
    COUNTS.store(false, Ordering::Relaxed);
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

/// Runs something; what it made, and how many bytes that keeps on the heap.
pub fn kept<T>(make: impl FnOnce() -> T) -> (T, f64) {
    LIVE.store(0, Ordering::Relaxed);
    COUNTS.store(true, Ordering::Relaxed);
    let made = make();
    COUNTS.store(false, Ordering::Relaxed);
    (made, LIVE.load(Ordering::Relaxed) as f64)
}

/// How often the other threads of this process have gone to sleep so far, each of which is a time
/// that one was woken.
pub fn sleeps_of_others() -> u64 {
    let own = std::process::id().to_string();
    let Ok(threads) = fs::read_dir("/proc/self/task") else {
        return 0;
    };
    let others = threads.flatten().filter(|thread| *thread.file_name() != *own);
    let text = others.map(|thread| fs::read_to_string(thread.path().join("status")));
    text.flatten().filter_map(|text| number(&text, "voluntary_ctxt_switches")).sum()
}

/// Bytes of this process that are in memory.
pub fn resident() -> u64 {
    status("VmRSS")
}

/// The most bytes of this process that ever were in memory.
pub fn peak() -> u64 {
    status("VmHWM")
}

fn status(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    number(&status, name).unwrap_or(0) * 1024
}

fn number(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_are_counted() {
        // Other tests may allocate at the same time.
        assert!(allocations(|| drop(std::hint::black_box(Box::new(1)))) >= 1);
    }

    #[test]
    fn what_is_kept_is_counted() {
        let (kept, bytes) = kept(|| std::hint::black_box(vec![0_u8; 1 << 20]));
        // Other tests may allocate and free at the same time.
        assert!(bytes > f64::from(1 << 19), "{bytes} for {}", kept.len());
    }

    #[test]
    fn figure_is_found_in_a_status() {
        let status = "VmHWMx:\t 1 kB\nVmHWM:\t   7344 kB\nVmRSS:\t 12 kB\n";
        assert_eq!(number(status, "VmHWM"), Some(7_344));
        assert_eq!(number(status, "VmSwap"), None);
    }
}

//! Whether this process made the client, or was forked from the one that did (R24).
//!
//! A forked process shares its parent's connections. Its writes would mix with the parent's bytes,
//! the parent would miss bytes that it read, and dropping its copy of a guard would release the
//! parent's lock. So every function that touches a connection checks this first. The check must be
//! cheap: a system call each time would be a tenth of the cost of a lock. Linux can give a forked
//! process a page of zeros in place of the parent's. Using that is the only unsafe code of this
//! crate, so this file is kept short. On other systems, or if the kernel refuses, the process id is
//! compared.

/// The process in which a value was made.
#[derive(Debug, Clone, Copy)]
pub(crate) enum OwnerProcess {
    /// The mark that the page holds in that process.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    Page(&'static std::sync::atomic::AtomicU32, u32),
    Id(u32),
}

impl OwnerProcess {
    /// The current process.
    pub(crate) fn current() -> OwnerProcess {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        if let Some(owner) = page::current() {
            return owner;
        }
        OwnerProcess::Id(std::process::id())
    }

    /// Whether the current process is this one.
    pub(crate) fn is_current(self) -> bool {
        match self {
            #[cfg(any(target_os = "linux", target_os = "android"))]
            OwnerProcess::Page(page, mark) => {
                page.load(std::sync::atomic::Ordering::Relaxed) == mark
            }
            OwnerProcess::Id(id) => std::process::id() == id,
        }
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod page {
    use std::ptr::null_mut;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

    use super::OwnerProcess;

    /// The kernel rounds the length up to a page, and wipes whole pages.
    const LENGTH: usize = size_of::<AtomicU32>();

    pub(super) fn current() -> Option<OwnerProcess> {
        static PAGE: OnceLock<Option<&AtomicU32>> = OnceLock::new();
        /// The latest mark of this process and of its ancestors.
        static MARK: AtomicU32 = AtomicU32::new(0);

        let page = (*PAGE.get_or_init(wiped_on_fork))?;
        let mut mark = page.load(Ordering::Relaxed);
        if mark == 0 {
            // Two threads may reach this point; both use the mark that the first one wrote.
            let next = MARK.fetch_add(1, Ordering::Relaxed) + 1;
            mark = match page.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => next,
                Err(first) => first,
            };
        }
        Some(OwnerProcess::Page(page, mark))
    }

    #[expect(unsafe_code, reason = "no safe interface to memory that is wiped on fork is known")]
    fn wiped_on_fork() -> Option<&'static AtomicU32> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping at an address that the kernel picks overlaps nothing. It is
        // never unmapped, is aligned to a page, and is zero, which is a valid `AtomicU32`. No other
        // code has its address. The advice changes nothing in this process.
        unsafe {
            let page = mmap_anonymous(null_mut(), LENGTH, protection, MapFlags::PRIVATE).ok()?;
            madvise(page, LENGTH, Advice::LinuxWipeOnFork).ok()?;
            Some(&*page.cast::<AtomicU32>())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_belongs_to_the_process_that_made_it() {
        let (first, second) = (OwnerProcess::current(), OwnerProcess::current());
        assert!(first.is_current() && second.is_current());
        assert!(OwnerProcess::Id(std::process::id()).is_current());
        assert!(!OwnerProcess::Id(std::process::id() + 1).is_current());
        #[cfg(target_os = "linux")]
        assert!(matches!(first, OwnerProcess::Page(..)), "Linux wipes pages on fork");
    }
}

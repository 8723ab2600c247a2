//! Whether this process is the one that made a client, or was forked from it (R24).
//!
//! A forked process shares its parent's connections: what it wrote there would run between the
//! parent's bytes, what it read there would be missing, and a guard that it dropped would release
//! the parent's lock. So everything that touches a connection asks first, and asking must cost
//! next to nothing: a system call for each would be a tenth of all that a lock needs. Linux can be
//! told to hand a forked process a page of memory full of zeros; that takes the only unsafe code
//! of this crate, which is why this file is as short as it is. Elsewhere, and if the system
//! refuses, the process id is compared.

/// The process that something was made in.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Home {
    /// What the page holds in that process.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    Page(&'static std::sync::atomic::AtomicU32, u32),
    Id(u32),
}

impl Home {
    /// This process.
    pub(crate) fn here() -> Home {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        if let Some(home) = page::here() {
            return home;
        }
        Home::Id(std::process::id())
    }

    /// Whether this process is the one.
    pub(crate) fn is_here(self) -> bool {
        match self {
            #[cfg(any(target_os = "linux", target_os = "android"))]
            Home::Page(page, mark) => page.load(std::sync::atomic::Ordering::Relaxed) == mark,
            Home::Id(id) => std::process::id() == id,
        }
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod page {
    use std::ptr::null_mut;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

    use super::Home;

    /// The kernel rounds it up to a page, which is what it wipes.
    const LENGTH: usize = size_of::<AtomicU32>();

    pub(super) fn here() -> Option<Home> {
        static PAGE: OnceLock<Option<&AtomicU32>> = OnceLock::new();
        /// The latest mark of this process and of those that it was forked from.
        static MARK: AtomicU32 = AtomicU32::new(0);

        let page = (*PAGE.get_or_init(wiped_on_fork))?;
        let mut mark = page.load(Ordering::Relaxed);
        if mark == 0 {
            // Two threads may both come here, and agree on what the first one wrote.
            let next = MARK.fetch_add(1, Ordering::Relaxed) + 1;
            mark = match page.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => next,
                Err(first) => first,
            };
        }
        Some(Home::Page(page, mark))
    }

    #[expect(unsafe_code, reason = "no safe interface to memory that is wiped on fork is known")]
    fn wiped_on_fork() -> Option<&'static AtomicU32> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping at an address that the kernel picks overlaps nothing. It is
        // never unmapped, aligned to a page, and zero, which is a valid `AtomicU32`; nothing else
        // has its address. The advice changes nothing in this process.
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
    fn what_was_made_here_is_here() {
        let (first, second) = (Home::here(), Home::here());
        assert!(first.is_here() && second.is_here());
        assert!(Home::Id(std::process::id()).is_here());
        assert!(!Home::Id(std::process::id() + 1).is_here());
        #[cfg(target_os = "linux")]
        assert!(matches!(first, Home::Page(..)), "Linux wipes pages on fork");
    }
}

"""pottery's Redlock behind the line protocol of lines.py. Its keys begin with `redlock:`."""

from pottery import ExtendUnlockedLock, Redlock, ReleaseUnlockedLock

import lines


class Peer:
    def __init__(self, masters):
        self.masters = set(masters)
        self.held = None

    def lock(self, key, ttl):
        return self.acquire(key, ttl, blocking=False)

    def wait(self, key, ttl, wait):
        return self.acquire(key, ttl, timeout=wait / 1000)

    def acquire(self, key, ttl, **how):
        lock = Redlock(key=key, masters=self.masters, auto_release_time=ttl / 1000)
        if not lock.acquire(**how):
            return "refused"
        self.held = lock
        return "granted"

    def extend(self, ttl):
        # An extension is always by this time.
        self.held.auto_release_time = ttl / 1000
        try:
            self.held.extend()
        except ExtendUnlockedLock:
            return "refused"
        return "extended"

    def unlock(self):
        try:
            self.held.release()
        except ReleaseUnlockedLock:
            return "lost"
        return "released"


lines.serve(Peer(lines.masters()))

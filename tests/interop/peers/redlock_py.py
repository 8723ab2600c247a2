"""redlock-py behind the line protocol of lines.py."""

from redlock import Redlock

import lines

RETRY_DELAY_MS = 20


class Peer:
    """It has no extension."""

    def __init__(self, masters):
        self.masters = masters
        self.once = Redlock(masters, retry_count=1, retry_delay=RETRY_DELAY_MS / 1000)
        self.held = None

    def lock(self, key, ttl):
        return self.acquire(self.once, key, ttl)

    def wait(self, key, ttl, wait):
        retry_count = -(-wait // RETRY_DELAY_MS)
        manager = Redlock(self.masters, retry_count, RETRY_DELAY_MS / 1000)
        return self.acquire(manager, key, ttl)

    def acquire(self, manager, key, ttl):
        lock = manager.lock(key, ttl)
        if not lock:
            return "refused"
        self.held = lock
        return "granted"

    def unlock(self):
        # It does not say whether the lock was still held.
        self.once.unlock(self.held)
        return "released"


lines.serve(Peer(lines.masters()))

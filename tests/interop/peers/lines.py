"""The line protocol of the peers: a command on each line of standard input, an answer of one word,
or an error, on each line of standard output.
"""

import sys

import redis


def masters():
    """Clients of the masters whose URLs are the arguments."""
    clients = [redis.Redis.from_url(url) for url in sys.argv[1:]]
    for client in clients:
        client.ping()
    return clients


def serve(peer):
    """Answers commands until there are no more."""
    commands = {
        "lock": lambda key, ttl: peer.lock(key, int(ttl)),
        "wait": lambda key, ttl, wait: peer.wait(key, int(ttl), int(wait)),
        "extend": lambda ttl: peer.extend(int(ttl)),
        "unlock": lambda: peer.unlock(),
    }
    print("ready", flush=True)
    for line in sys.stdin:
        command, *words = line.split()
        if command == "quit":
            break
        try:
            answer = commands[command](*words)
        except Exception as error:  # The test reports it, whatever it is.
            answer = f"error {error!r}".replace("\n", " ")
        print(answer, flush=True)

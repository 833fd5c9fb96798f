#!/usr/bin/env python3
"""One peer in a process of its own, driven by lines of JSON over its standard input and output.

A process of its own isolates what peers set for the whole process (threads, memory, signals) and
turns a crash into one row. Requests and answers:

    {"peer", "model", "folder", "threads", "setting", "first"}   once; first: a text
        -> {"version", "rss_mb"} after the first vector, or {"error"}
    {"texts": FILE, "calls": [least, most], "seconds": S, "save": FILE or null}
        -> {"ms": [...], "rss_mb"}
    {"quit": true}

The clock runs around embed alone. Memory is the peak resident size of this process and of its
children since the request began. Whatever libraries print goes to standard error.
"""
import json
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import peers  # noqa: E402


def status_kb(pid, key):
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            for line in file:
                if line.startswith(key + ":"):
                    return int(line.split()[1])
    except OSError:
        pass
    return 0


def family():
    """This process and its children, theirs included."""
    found, left = [], [os.getpid()]
    while left:
        pid = left.pop()
        found.append(pid)
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children", encoding="utf-8") as file:
                    left += [int(child) for child in file.read().split()]
        except OSError:
            pass
    return found


def reset_peak():
    for pid in family():
        try:
            with open(f"/proc/{pid}/clear_refs", "w", encoding="utf-8") as file:
                file.write("5")
        except OSError:
            pass


def peak_mb():
    return sum(status_kb(pid, "VmHWM") for pid in family()) / 1024


def turn(peer, request):
    with open(request["texts"], encoding="utf-8") as file:
        texts = file.read().split("\n")[:-1]
    least, most = request["calls"]
    reset_peak()
    times = []
    begin = time.perf_counter()
    while len(times) < most and (len(times) < least
                                 or time.perf_counter() - begin < request["seconds"]):
        start = time.perf_counter()
        vectors = peer.embed(texts)
        times.append((time.perf_counter() - start) * 1e3)
    peak = peak_mb()
    if request["save"]:
        with open(request["save"], "wb") as file:
            file.write(bytes(memoryview(vectors).cast("B")))
    return {"ms": times, "rss_mb": peak}


def main():
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(value):
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    peer = None
    for line in sys.stdin:
        request = json.loads(line)
        if request.get("quit"):
            break
        try:
            if peer is None:
                kind = peers.PEERS[request["peer"]]
                peer = kind(request["model"], request["folder"], request["threads"],
                            request["setting"])
                peer.embed([request["first"]])
                answer({"version": peer.version, "rss_mb": peak_mb()})
            else:
                answer(turn(peer, request))
        except ModuleNotFoundError as fault:
            answer({"error": f"not installed: {fault}"})
        except Exception as fault:  # any fault of a peer is its row's reason
            text = " ".join(str(fault).split()) or "no message"
            answer({"error": f"{type(fault).__name__}: {text[:300]}"})
    if hasattr(peer, "close"):
        peer.close()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""seeds: writes the seed corpus: corpus/<target>/<name>, honest inputs and near misses. Run it after a change of a wire format."""
import os
import struct

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus")
MAGIC, VERSION = 0x42305A52, 3
HELLO, WELCOME, REFUSED, GATHER, GATHERED, VERDICT, POST, DEAD, ABORT, BYE, SHRINK, SHRUNK = range(1, 13)
INVALID, PEER, TIMEOUT, ABORTED = -1, -5, -6, -7


def write(target, name, data):
    os.makedirs(os.path.join(ROOT, target), exist_ok=True)
    with open(os.path.join(ROOT, target, name), "wb") as file:
        file.write(data)


def piece(data):
    return struct.pack("<H", len(data)) + data


def frame(kind, sender=0, to=0, key=0, payload=b"", code=0, size=None):
    size = len(payload) if size is None else size
    return struct.pack("<IIiiQIi", MAGIC, kind, sender, to, key, size, code) + payload


def hello(rank, nranks=4, job=1, version=VERSION):
    return struct.pack("<QIiiI64s80s", job, version, rank, nranks, 0, b"host-%d" % rank, b"127.0.0.1")


def welcome(job=1, local_rank=1, local_nranks=4):
    return struct.pack("<Qii80s", job, local_rank, local_nranks, b"127.0.0.1")


def hub():
    def come(rank, data):
        return bytes([rank - 1]) + piece(data)

    gathers = b"".join(come(r, frame(GATHER, r, key=1, payload=b"%08d" % r)) for r in (1, 2, 3))
    write("bootstrap_hub", "gather", b"\1" + gathers)
    write("bootstrap_hub", "gather_sizes_differ", b"\1" + come(1, frame(GATHER, 1, key=1, payload=b"abc")) + gathers)
    write("bootstrap_hub", "post", b"\0" + come(1, frame(POST, 1, 2, 7, b"mail") + frame(POST, 1, 0, 0, b"x" * 16)))
    write("bootstrap_hub", "abort", b"\1" + come(2, frame(ABORT, 2, payload=b"no\nmore", code=ABORTED)))
    write("bootstrap_hub", "leave", b"\0" + b"".join(come(r, frame(BYE, r)) for r in (1, 2, 3)))
    shrinks = b"".join(come(r, frame(SHRINK, r, payload=b"host")) for r in (1, 2, 3))
    write("bootstrap_hub", "shrink", b"\0" + come(2, frame(ABORT, 2, payload=b"why")) + shrinks + come(2, frame(POST, 2, 0, 1)))
    write("bootstrap_hub", "shrink_unfailed", b"\0" + shrinks)
    write("bootstrap_hub", "wrong_sender", b"\0" + come(1, frame(POST, 3, 0, 0, b"x")))
    write("bootstrap_hub", "too_large", b"\1" + come(1, frame(GATHER, 1, key=1, size=0xFFFFFFFF)))
    write("bootstrap_hub", "cut_short", b"\1" + come(1, frame(GATHER, 1, key=1, payload=b"12345678")[:-3]))


def member():
    def waits(data):
        return b"\x08" + piece(data)

    write("bootstrap_member", "gathered", waits(frame(GATHERED, key=1, payload=bytes(32)) + frame(BYE)))
    write("bootstrap_member", "gathered_other_size", waits(frame(GATHERED, key=1, payload=bytes(31))))
    write("bootstrap_member", "gathered_twice", waits(frame(GATHERED, key=1, payload=bytes(32)) * 2))
    for code in (INVALID, PEER, TIMEOUT, 5):
        write("bootstrap_member", "verdict%d" % code, waits(frame(VERDICT, key=1, payload=b"because", code=code)))
    write("bootstrap_member", "post", waits(frame(POST, 1, 2, 1, b"x" * 16) + frame(POST, 0, 2, 0, b"") + frame(POST, 3, 2, 1, b"y")))
    for name, place in (("", (1, 2, 1, 2)), ("_hub", (0, 2, 0, 2)), ("_far", (4, 5, 4, 5)), ("_cut", (1, 2, 1))):
        shrunk = frame(GATHERED, key=1) + frame(SHRUNK, payload=struct.pack("<%di" % len(place), *place))
        write("bootstrap_member", "shrunk" + name, waits(frame(DEAD, 3, payload=b"rank 3 died", code=PEER)) + piece(shrunk))
    write("bootstrap_member", "dead", waits(frame(DEAD, 3, payload=b"rank 3 died", code=PEER)))
    write("bootstrap_member", "dead_nobody", waits(frame(DEAD, 77, payload=b"rank 77 died", code=PEER)))
    write("bootstrap_member", "abort", waits(frame(ABORT, 1, payload=b"\xff" * 900, code=ABORTED)))


def join():
    def strangers(*data):
        return b"\0" + b"".join(piece(one) for one in data)

    def hi(rank, **other):
        return frame(HELLO, rank, payload=hello(rank, **other))

    write("bootstrap_join", "hellos", strangers(hi(1), hi(2), hi(3)))
    write("bootstrap_join", "taken", strangers(hi(1), hi(1), hi(0)))
    write("bootstrap_join", "refused", strangers(hi(9), hi(2, nranks=5), hi(3, job=2)))
    write("bootstrap_join", "old_build", strangers(hi(1, version=1), frame(HELLO, 1, payload=b"short"), hi(-1)))
    write("bootstrap_join", "http", strangers(b"GET / HTTP/1.1\r\n\r\n", b"", b"\0" * 40))
    write("bootstrap_join", "welcome", b"\1\1" + piece(frame(WELCOME, to=1, payload=welcome())))
    write("bootstrap_join", "welcome_odd", b"\1\0" + piece(frame(WELCOME, to=1, payload=welcome(local_rank=4))))
    write("bootstrap_join", "answer_refused", b"\1\1" + piece(frame(REFUSED, payload=b"no room", code=INVALID)))


def tcp():
    def step(data, tag=1, size=None):
        return struct.pack("<QQ", len(data) if size is None else size, tag) + data

    said = struct.pack("<QQ", 0x72696E6774637031, 0x1122334455667788)
    steps = b"".join(piece(step(bytes([i]) * (i * 17 % 129))) for i in range(10))
    for mode in (0, 4, 8, 12):
        write("edge_tcp", "steps%d" % mode, bytes([mode]) + steps)
    write("edge_tcp", "too_large", b"\0" + piece(step(b"", size=129)))
    write("edge_tcp", "cut", b"\4" + piece(step(b"x" * 100)[:50]) + piece(b"y" * 30))
    write("edge_tcp", "hello", b"\1" + piece(said[:5]) + piece(said[5:]) + steps)
    write("edge_tcp", "hello_wrong", b"\1" + piece(said[:-1] + b"?"))
    write("edge_tcp", "credits", b"\2" + b"".join(piece(struct.pack("<Q", i)) for i in (1, 2, 4, 8)))
    write("edge_tcp", "credit_unsent", b"\2" + piece(struct.pack("<Q", 1000)))
    write("edge_tcp", "credits_wrap", b"\x0a" + piece(struct.pack("<QQ", 2**64 - 1, 1)) + piece(struct.pack("<Q", 2)[:3]))
    for name, host, port in (("v4", b"127.0.0.1", 9), ("v6", b"::1", 9), ("name", b"localhost", 9), ("port", b"127.0.0.1", 70000)):
        write("edge_tcp", "offer_" + name, b"\3" + struct.pack("<QI64s", 1, port, host))


def shm():
    magic, nonce = 0x72696E6773686D31, 0xABCDEF
    offer = struct.pack("<qqQQQqq", 1, 0, 0, nonce, 0, 0, 0)
    head = struct.pack("<QQQQ", magic, nonce, 64, 2).ljust(80, b"\0")
    empty = bytes(80) * 2
    write("edge_shm", "good", b"\1" + offer + head + empty)
    write("edge_shm", "head_runs_ahead", b"\1" + offer + head + bytes(80) + struct.pack("<Q", 2**64 - 1).ljust(80, b"\0"))
    write("edge_shm", "short", b"\3" + offer + head + empty)
    write("edge_shm", "other_magic", b"\1" + offer + bytes(8) + head[8:] + empty)
    write("edge_shm", "other_slots", b"\0" + offer + head + empty)
    write("edge_shm", "bell", b"\5" + offer + head + empty)


def tokens():
    def shard(magic, version, count, ids, width):
        return struct.pack("<256i", magic, version, count, *[0] * 253) + b"".join(struct.pack(width, i) for i in ids)

    ids = [i % 200 for i in range(64)]
    write("tokens", "text", b"\3" + b"In the beginning God created the heaven and the earth. And the earth was without form.")
    write("tokens", "gpt2", b"\3" + shard(20240520, 1, 64, ids, "<H"))
    write("tokens", "llama", b"\3" + shard(20240801, 7, 64, ids, "<I"))
    write("tokens", "too_few", b"\3" + shard(20240520, 1, 65, ids, "<H"))
    write("tokens", "negative", b"\3" + shard(20240520, 1, -1, ids, "<H"))
    write("tokens", "id", b"\1" + shard(20240520, 1, 64, ids, "<H"))
    write("tokens", "id_huge", b"\0" + shard(20240801, 7, 64, [2**32 - 1] * 64, "<I"))
    write("tokens", "header_only", b"\0" + shard(20240520, 1, 0, [], "<H")[:500])


for make in (hub, member, join, tcp, shm, tokens):
    make()

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
    def frame(what, size, tag, head):
        return struct.pack("<QQQQ", what, size, tag, head)

    def step(data, tag=1, size=None):
        return frame(1, len(data) if size is None else size, tag, 0) + data

    def credit(head):
        return frame(2, 0, 0, head % 2**64)

    said = struct.pack("<QQ", 0x72696E6774637031, 0x1122334455667788)
    steps = b"".join(piece(step(bytes([i]) * (i * 17 % 129))) for i in range(10))
    for mode in (0, 4, 8, 12):
        write("edge_tcp", "steps%d" % mode, bytes([mode]) + steps)
    write("edge_tcp", "too_large", b"\0" + piece(step(b"", size=129)))
    write("edge_tcp", "too_many", b"\0" + piece(step(b"x") * 5))
    write("edge_tcp", "no_kind", b"\0" + piece(frame(0, 0, 1, 0)))
    write("edge_tcp", "other_kind", b"\0" + piece(frame(4, 0, 1, 0)))
    write("edge_tcp", "credit_with_bytes", b"\2" + piece(frame(2, 1, 0, 0)))
    write("edge_tcp", "step_to_producer", b"\2" + piece(step(b"x")))
    write("edge_tcp", "cut", b"\4" + piece(step(b"x" * 100)[:50]) + piece(b"y" * 30))
    write("edge_tcp", "hello", b"\1" + piece(said[:5]) + piece(said[5:]) + steps)
    write("edge_tcp", "hello_wrong", b"\1" + piece(said[:-1] + b"?"))
    write("edge_tcp", "credits", b"\2" + b"".join(piece(credit(i)) for i in (1, 2, 4, 8)))
    write("edge_tcp", "credit_unsent", b"\2" + piece(credit(1000)))
    write("edge_tcp", "credits_wrap", b"\x0a" + piece(credit(-1) + credit(1)) + piece(credit(2)[:3]))
    both = [frame(3, 8, 1, min(i, 4)) + b"12345678" for i in range(6)]
    write("edge_tcp", "twins", b"\x10" + b"".join(piece(f) for f in both))
    write("edge_tcp", "twins_landing", b"\x16" + piece(b"".join(both[:3])) + piece(credit(3)) + piece(both[3][:40]))
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


def choices():
    def example(number, label, *lists):
        words = [number, label, len(lists) - 1] + [word for one in lists for word in [len(one)] + one]
        return struct.pack("<%dH" % (len(words) + 2), 65535, 2 * len(words) + 4, *words)

    def questions(*examples, count=None, version=1):
        head = (20240522, version, len(examples) if count is None else count, max(map(len, examples)))
        return b"\1\17\7" + struct.pack("<256i", *head, *[0] * 252) + b"".join(examples)

    one, two = example(0, 3, [1, 2, 3], [4, 5], [6], [7, 8, 9], [10]), example(1, 0, [11], [12] * 12, [13], [14, 15], [16])
    write("choices", "good", questions(one, two))
    write("choices", "batch_1", b"\1\17\0" + questions(one, two)[3:])
    write("choices", "too_few", questions(one, count=2))
    write("choices", "too_many", questions(one, two, count=1))
    write("choices", "endings_differ", questions(one, example(1, 0, [1], [2], [3])))
    write("choices", "label", questions(example(0, 2, [1], [2], [3])))
    write("choices", "no_context", questions(example(0, 1, [], [2], [3])))
    write("choices", "id", questions(example(0, 1, [1], [2], [65535])))
    write("choices", "too_long", questions(example(0, 1, [1] * 10, [2] * 8, [3])))
    write("choices", "cut", questions(one, two)[:-3])


def tokenizer():
    def vocabulary(kind, text, lines):
        return bytes([kind, len(text) // 4]) + text + lines

    text = "he said: hello, w\u00f6rld's  end\n\n 12".encode()
    text += b"." * (-len(text) % 4)
    write("tokenizer", "pairs", vocabulary(2, text, "h e\nl l\nhe ll\n\u0120 w\n".encode()))
    write("tokenizer", "ranks", vocabulary(1, text + b"\xff\xe2\x80'" * 8, b"aGU= 256\nbGw= 257\naGVsbA== 258\n"))
    write("tokenizer", "no_bytes", vocabulary(0, text, b"aGU= 0\n"))
    write("tokenizer", "unknown_pair", vocabulary(2, text, b"he ll\n"))
    write("tokenizer", "twice", vocabulary(1, text, b"aGU= 256\naGU= 257\n"))
    write("tokenizer", "base64", vocabulary(1, text, b"aG= 256\n"))
    write("tokenizer", "long_line", vocabulary(0, text, b"A" * 4099))


def weights():
    def tensors(cut=0, **changed):
        import json

        shapes = {"wte": [5, 4], "wpe": [3, 4], "ln_f": [4], "h.0.ln_1": [4], "h.0.ln_2": [4], "h.0.attn.c_attn": [4, 12],
                  "h.0.attn.c_proj": [4, 4], "h.0.mlp.c_fc": [4, 16], "h.0.mlp.c_proj": [16, 4]}
        header, at = {}, 0
        for name, shape in shapes.items():
            for part in ("weight", "bias"):
                extents = shape if part == "weight" else shape[-1:]
                size = 4
                for extent in extents:
                    size *= extent
                header[name + "." + part] = {"dtype": "F32", "shape": extents, "data_offsets": [at, at + size]}
                at += size
        header.update(changed)
        text = json.dumps(header).encode()
        return b"\0" + struct.pack("<Q", len(text)) + text + bytes(range(256)) * 8 + b"\0" * (at - 2048 - cut)

    def llama(about):
        import json

        layer = {"input_layernorm": [4], "self_attn.q_proj": [4, 4], "self_attn.k_proj": [2, 4], "self_attn.v_proj": [2, 4],
                 "self_attn.o_proj": [4, 4], "post_attention_layernorm": [4], "mlp.gate_proj": [6, 4], "mlp.up_proj": [6, 4],
                 "mlp.down_proj": [4, 6]}
        shapes = {"model.embed_tokens": [5, 4], "model.norm": [4], **{"model.layers.0." + name: shape for name, shape in layer.items()}}
        header, at = {"__metadata__": about}, 0
        for name, shape in shapes.items():
            size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
            header[name + ".weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header).encode()
        return b"\0" + struct.pack("<Q", len(text)) + text + bytes(range(128)) * (at // 128) + b"\0" * (at % 128)

    llmc = struct.pack("<256i", 20240326, 3, 3, 5, 1, 2, 4, 5, *[0] * 248)
    count = 5 * 4 + 3 * 4 + 4 * 4 + 12 * 4 + 12 + 16 + 4 + 64 + 16 + 64 + 4 + 8
    write("weights", "safetensors", tensors())
    write("weights", "safetensors_cut", tensors(cut=40))
    write("weights", "safetensors_dtype", tensors(**{"wpe.weight": {"dtype": "BOOL", "shape": [3, 4], "data_offsets": [0, 12]}}))
    write("weights", "safetensors_metadata", tensors(__metadata__={"n_head": "2"}))
    write("weights", "safetensors_length", b"\0" + b"\xff" * 16)
    for name, changed in (("", {}), ("_heads", {"num_attention_heads": "3"}), ("_lone", {"rope_theta": "1e300"})):
        about = {"num_attention_heads": "2", "max_position_embeddings": "4", "rope_theta": "500", **changed}
        if name == "_lone":
            del about["max_position_embeddings"]
        write("weights", "llama" + name, llama(about))
    write("weights", "llmc", b"\1" + llmc + b"\1\2\3\4" * count)
    write("weights", "llmc_cut", b"\1" + llmc + b"\1\2\3\4" * (count - 1))
    write("weights", "llmc_huge", b"\1" + struct.pack("<256i", 20240326, 5, *[2**31 - 1] * 6, *[0] * 248))


def executor():
    # nranks, collective, dtype, redop, flags, root, count; then { how many, (edge, what, …)… } between two looks
    for collective in range(11):
        for flags in (0, 2, 6, 4, 13, 48):
            start = bytes([1, collective, collective % 10, 0, flags, 1, 40, 0])
            write("ring_executor", "honest%d_%d" % (collective, flags), start + bytes([3, 2, 0, 0, 3, 0, 1, 12, 3, 0, 0, 14, 0, 1]) * 12)
    shared = bytes([0, 0, 8, 0, 6, 0, 0, 2])
    write("ring_executor", "address", shared + bytes([0, 14, 32, 0, 200, 162, 162]) * 4)
    write("ring_executor", "wrong_tag", shared + bytes([0, 14, 64, 0, 255, 1, 2, 3, 4, 5, 6, 7, 8]) * 4)
    write("ring_executor", "too_many_bytes", shared + bytes([0, 14, 128, 0, 200, 255, 255]) * 4)
    write("ring_executor", "counters_run_ahead", shared + bytes([1, 0, 2, 255] + [255] * 8 + [2, 1, 255] + [128] * 8) * 4)
    write("ring_executor", "takes_back", bytes([1, 0, 8, 0, 6, 0, 4, 0, 3, 18, 3, 0, 0, 0, 18, 3, 0, 0, 200, 0, 0]) * 3)


def window():
    def say(edge, what, where, *words):  # edges 4 and 5 are those from ranks 1 and 2
        return bytes([0, edge, what, where]) + b"".join(words)

    right = b"\0"
    for kind in range(4):
        for flags in range(4):
            start = bytes([1, kind, 8, 0, flags, 1, 200, 3])
            turn = b"".join(say(edge, what, where, right, right) + bytes([0, edge - 3, 4])
                            for what in (0, 128) for where in (0, 1) for edge in (4, 5))
            write("ring_window", "honest%d_%d" % (kind, flags), start + turn * 8)
    start = bytes([1, 0, 8, 0, 0, 1, 200, 3])
    write("ring_window", "named_pipe", start + bytes([0, 4, 13]) + right * 3 + say(4, 0, 0, right, b"\377" + struct.pack("<Q", 2 << 48 | 2 << 40)))
    write("ring_window", "too_many_bytes", start + say(4, 0, 0, b"\310\377\377", right) * 4)
    write("ring_window", "beyond_region", start + say(4, 0, 0, right, b"\377" + struct.pack("<Q", 2 << 48 | 1 << 40 | 102390)))
    write("ring_window", "misaligned", start + say(4, 0, 0, right, b"\377" + struct.pack("<Q", 2 << 48 | 1 << 40 | 1))
          + say(5, 0, 0, right, right))
    write("ring_window", "gave_up", start + bytes([0, 4, 135]) + say(4, 0, 0, right, right) * 4)
    write("ring_window", "counters_run_ahead", start + bytes([1, 1, 3, 255] + [255] * 8 + [4, 2, 255] + [128] * 8) * 4)


def manifest():
    write("checkpoint_manifest", "honest", b"\1")
    for place in (2, 40, 300, 700, 900, 1000):
        write("checkpoint_manifest", "changed%d" % place, b"\1" + struct.pack("<HB", place, 0x39))
    write("checkpoint_manifest", "nothing", b"\0")
    write("checkpoint_manifest", "deep", b"\0" + b"[" * 2000)
    write("checkpoint_manifest", "version", b'\0{"format":"ringzero checkpoint","version":2}')
    write("checkpoint_manifest", "settings", b'\0{"format":"ringzero checkpoint","version":1,"model":[],"settings":{}}')


LAUNCH = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
          "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
          "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID", "SLURM_LOCALID", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NODELIST",
          "SLURM_JOB_NODELIST", "SLURM_JOB_ID", "MASTER_ADDR"]


def launch():
    def variables(mode, rest=b"", **values):
        pairs = b"".join(bytes([LAUNCH.index(name), len(text)]) + text for name, text in values.items())
        return bytes([mode]) + pairs + b"\xff" + rest

    write("launch", "torchrun", variables(0, RANK=b"1", WORLD_SIZE=b"4", LOCAL_RANK=b"1", LOCAL_WORLD_SIZE=b"2", MASTER_PORT=b"29500"))
    write("launch", "openmpi", variables(0, OMPI_COMM_WORLD_RANK=b"3", OMPI_COMM_WORLD_SIZE=b"3", MASTER_PORT=b"1"))
    write("launch", "slurm_step", variables(0, SLURM_PROCID=b"1", SLURM_NTASKS=b"4", SLURM_STEP_ID=b"0", SLURM_STEP_NUM_NODES=b"1", SLURM_LOCALID=b"1", MASTER_PORT=b"99999"))
    answers = (b"cmd=response_to_init rc=0\n", b"cmd=maxes vallen_max=1024\n", b"cmd=my_kvsname kvsname=k\n", b"cmd=barrier_out\n",
               b"cmd=get_result rc=0 value=1,127.0.0.1,4000,00c0ffee00c0ffee,boot/net\n", b"cmd=finalize_ack\n")
    write("launch", "pmi1", variables(1, b"".join(answers)))
    write("launch", "pmi1_refuses", variables(1, b"".join(answers[:4]) + b"cmd=get_result rc=-1 msg=no\n"))
    write("launch", "pmi1_endless", variables(1, b"cmd=response_to_init " + b"x" * 3000))
    write("launch", "slurm_list", variables(2, b"rack[02-04,7]n[1-2]-ib,login", SLURM_STEP_NODELIST=b"n[001-3],m", SLURM_JOB_ID=b"77", SLURM_STEP_ID=b"4294967294"))
    write("launch", "slurm_brackets", variables(2, b"a[[1-" * 90, SLURM_JOB_NODELIST=b"[", SLURM_JOB_ID=b"-1"))


def tunables():
    def variables(*pairs):
        return b"".join(bytes([name, len(text)]) + text for name, text in pairs)

    write("tunables", "good", variables((0, b"4096"), (1, b"1024"), (2, b"4"), (3, b"2"), (4, b"tcp"), (5, b"500"), (6, b"here"), (8, b"info")))
    write("tunables", "not_a_multiple", variables((1, b"1025")))
    write("tunables", "not_a_power", variables((2, b"6")))
    write("tunables", "below_zero", variables((3, b"-18446744073709551615")))
    write("tunables", "words", variables((0, b"4K"), (4, b"pigeon"), (5, b"soon")))
    write("tunables", "interface", variables((7, b"lo")))


for make in (hub, member, join, tcp, shm, tokens, choices, tokenizer, weights, executor, window, manifest, launch, tunables):
    make()

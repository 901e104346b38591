"""Read a HEAD or a segment by docs/format.md alone, and print what it says as JSON.

Usage: read_head.py FILE [--image OUT]

The standard library only. It has no XXH3 and no zstd, so hashes are not checked, and a delta is looked into only
where its frame is stored as it is. With --image the database is rebuilt from such a HEAD without a base.
"""

import json
import struct
import sys

PAGE = 4096


class Bytes:
    """Takes fields off the front; reading past the end is an error."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def raw(self, n):
        if self.at + n > len(self.data):
            raise ValueError(f"it ends within {n} bytes at {self.at}")
        self.at += n
        return self.data[self.at - n : self.at]

    def hex(self, n):
        return self.raw(n).hex()

    def number(self, kind):
        return struct.unpack("<" + kind, self.raw(struct.calcsize("<" + kind)))[0]

    def leb(self):
        value = shift = 0
        while True:
            byte = self.raw(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value


def u8(b):
    return b.number("B")


def u16(b):
    return b.number("H")


def u32(b):
    return b.number("I")


def u64(b):
    return b.number("Q")


def i64(b):
    return b.number("q")


def id16(b):
    return b.hex(16)


def id8(b):
    return b.hex(8)


def gap(n):
    return lambda b: b.raw(n) and None


HEADER = [
    ("format", u16), ("min_reader", u16), ("min_writer", u16), ("header_len", u16),
    ("reader_features", u32), ("writer_features", u32), ("file_id", id16), ("lineage_id", id16),
    ("commit_seq", u64), ("commit_id", id16), ("prev_commit_id", id16), ("commit_ms", i64),
    ("page_count", u32), ("max_skew_ms", u32), ("checksum", id16), ("gc_floor", u64),
    ("floor_candidate", u64), ("floor_candidate_ms", i64), ("forgotten_seq", u64),
]  # fmt: skip
BASE = [("seq", u64), ("rand", id8), ("codec", u8), (None, gap(7)), ("len", u64), ("hash", id16)]
SEGMENT = [("from", u64), ("to", u64), ("rand", id8), ("len", u32), ("codec", u8), (None, gap(3)), ("hash", id16)]
WRITER = [("id", id8), ("attempt", u64), ("commit_id", id16), ("seq", u64)]
RETIRED = [("kind", u8), (None, gap(7)), ("from", u64), ("seq", u64), ("rand", id8), ("at", u64)]
RECORD = [
    ("seq", u64), ("commit_id", id16), ("prev_commit_id", id16), ("commit_ms", i64), ("writer", id8),
    ("ops", u32), ("page_count", u32), ("checksum", id16), ("codec", u8), (None, gap(7)), ("raw_len", u32),
]  # fmt: skip


def fields(b, layout):
    read = {name: take(b) for name, take in layout}
    read.pop(None, None)
    return read


def record(b):
    read = fields(b, RECORD)
    read["frame"] = b.hex(u32(b))
    return read


def head(b):
    read = fields(b, HEADER)
    read["base"] = fields(b, BASE)
    counts = [u32(b) for _ in range(4)]
    read["extra"] = b.hex(read["header_len"] - b.at)
    read["gap"] = gap_of(read)
    for name, layout, count in zip(["segments", "writers", "retired"], [SEGMENT, WRITER, RETIRED], counts):
        read[name] = [fields(b, layout) for _ in range(count)]
    read["tail"] = [record(b) for _ in range(counts[3])]
    return read


def gap_of(read):
    """The gap that this commit asks for: the first field behind the header, if it is of this commit."""
    extra = bytes.fromhex(read["extra"])
    if len(extra) < 24:
        return None
    b = Bytes(extra)
    seq, writer, ms = u64(b), id8(b), u32(b)
    return {"writer": writer, "ms": ms} if seq == read["commit_seq"] and ms > 0 else None


def segment(b):
    read = {"format": u16(b), "min_reader": u16(b)}
    count = u32(b)
    read |= {"file_id": id16(b), "lineage_id": id16(b)}
    read["records"] = [record(b) for _ in range(count)]
    return read


def patches(b):
    """Per page: its number and its runs (at, length, where the bytes stand in the old page or None)."""
    found, number = [], 0
    for _ in range(b.leb()):
        number += b.leb()
        runs, end = [], 0
        for _ in range(b.leb()):
            at = end + b.leb()
            length, is_copy = divmod(b.leb(), 2)
            source = None
            if is_copy:
                zigzag = b.leb()
                source = at + ((zigzag >> 1) ^ -(zigzag & 1))
            runs.append((at, length, source))
            end = at + length
        found.append((number, runs))
    return found


def apply(pages, delta):
    """The pages after a delta; those before stay as they are."""
    b = Bytes(delta)
    count = b.leb()
    after = (pages + [bytes(PAGE)] * (count - len(pages)))[:count]
    for number, runs in patches(b):
        old = after[number - 1]
        new = bytearray(old)
        for at, length, source in runs:
            new[at : at + length] = b.raw(length) if source is None else old[source : source + length]
        after[number - 1] = bytes(new)
    if b.at != len(delta):
        raise ValueError("bytes are left over after the literals")
    return after


def read(data):
    b = Bytes(data[:-16])
    what = {b"BUCKETQ\n": head, b"BUCKETQS": segment}.get(bytes(b.raw(8)))
    if what is None:
        raise ValueError("neither a HEAD nor a segment")
    found = what(b)
    if b.at != len(data) - 16:
        raise ValueError("bytes are left over after the last field")
    return found | {"trailer": data[-16:].hex()}


def main():
    with open(sys.argv[1], "rb") as file:
        found = read(file.read())
    if sys.argv[2:3] == ["--image"]:
        pages = []
        for r in found["tail"]:
            if r["codec"] != 0:
                raise ValueError("its frames are compressed")
            pages = apply(pages, bytes.fromhex(r["frame"]))
        with open(sys.argv[3], "wb") as out:
            out.write(b"".join(pages))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()

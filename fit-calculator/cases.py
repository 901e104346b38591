"""Calculate cases.json from the formulas of docs/fit.md, with 50 decimal digits (sheet.py).

Run it by hand when a formula changes: python3 fit-calculator/cases.py. It calls none of the three models;
tests compare them with its output. Numbers are rounded to 15 digits; null means "without end".
"""

import json
import pathlib

from sheet import ENDLESS, D, evaluate

# name, default, minimum, maximum, then "whole" or "above" (the minimum itself is refused)
INPUTS = """
mutations 3 1 1000
batch 10 1 4096
arrival 5.2 0 1000000
work_ms 1000 0 86400000
budget_ms 200 0 86400000 above
producers 4 1 100000 whole
consumers 8 1 100000 whole
prefetch 10 1 10000 whole
writers 1 1 64 whole
broker 0 0 1 whole
broker_ms 1 0 10000
payload 1024 0 16777216 whole
retries 0 0 100
lease_ms 60000 0 86400000 above
latency_min_ms 60 0 60000
latency_ms 90 0 60000
latency_p99_ms 250 0 60000
per_mib_ms 10 0 60000
writes_per_s 0 0 100000
commit_interval_ms 0 0 60000
file_mib 10 0 65536
price_put 5 0 1000
price_get 0.4 0 1000
price_gb 0.023 0 1000
price_sqs 0.4 0 1000
sqs_batch 1 1 10 whole
"""
ROWS = [line.split() for line in INPUTS.split("\n") if line]
DEFAULTS = {row[0]: D(row[1]) for row in ROWS}

LAN = {"latency_min_ms": 3, "latency_ms": 5, "latency_p99_ms": 20}
NEAR = {"latency_min_ms": 15, "latency_ms": 25, "latency_p99_ms": 120}
FAR = {"latency_min_ms": 60, "latency_ms": 80, "latency_p99_ms": 400}
NONE = {"latency_min_ms": 0, "latency_ms": 0, "latency_p99_ms": 0}
MANY = {"producers": 500, "consumers": 1000}

CASES = {
    "the published example": {},
    "nothing arrives": {"arrival": 0},
    "nothing arrives, four writers": {"arrival": 0, "writers": 4},
    "nothing arrives, no work, no latency": {"arrival": 0, "work_ms": 0, **NONE},
    "a batch larger than the mutations": {"batch": 50},
    "a batch of one": {"batch": 1},
    "the largest batch": {"batch": 4096},
    "a store without latency": {**NONE},
    "a store without latency, and no cost per MiB": {**NONE, "per_mib_ms": 0},
    "no work at all": {"work_ms": 0},
    "no work and no latency": {"work_ms": 0, **NONE, "per_mib_ms": 0},
    "overload of the plain model alone": {"arrival": 40},
    "overload of both": {"arrival": 100},
    "overload by far": {"arrival": 100000},
    "overload with a broker": {"arrival": 1000, "broker": 1, "writers": 8},
    "overload of four writers": {"arrival": 60, "writers": 4},
    "overhead of exactly 5 %": {"work_ms": 513},
    "overhead just under 5 %": {"work_ms": "513.01"},
    "overhead of exactly 20 %": {"work_ms": 108},
    "overhead just over 20 %": {"work_ms": "107.99"},
    "load of exactly 0.7": {
        "mutations": 2,
        "batch": 4,
        "latency_ms": 100,
        "latency_min_ms": 100,
        "arrival": 14,
    },
    "load of exactly 0.9": {
        "mutations": 2,
        "batch": 4,
        "latency_ms": 100,
        "latency_min_ms": 100,
        "arrival": 18,
    },
    "load of exactly 1.0": {
        "mutations": 2,
        "batch": 4,
        "latency_ms": 100,
        "latency_min_ms": 100,
        "arrival": 20,
    },
    "a load between 0.9 and 1.0": {"arrival": 35},
    "a delay of exactly half the budget": {"arrival": 0, "budget_ms": 270},
    "a delay of exactly the budget": {"arrival": 0, "budget_ms": 135},
    "a budget just too small": {"arrival": 0, "budget_ms": "134.9"},
    "one mutation a job": {"mutations": 1},
    "a fraction of mutations": {"mutations": "2.1"},
    "a thousand mutations": {"mutations": 1000, "consumers": 5000},
    "one caller each": {"producers": 1, "consumers": 1},
    "64 workers on a fast store": {**LAN, "producers": 64, "consumers": 64, "arrival": 300, "work_ms": 100},
    "64 workers on a near store": {**NEAR, "producers": 64, "consumers": 64, "arrival": 300, "work_ms": 100},
    "64 workers on a far store": {**FAR, "producers": 64, "consumers": 64, "arrival": 300, "work_ms": 100},
    "one write a second to a key": {"writes_per_s": 1},
    "one write a second, a patient dispatch": {
        "writes_per_s": 1,
        "budget_ms": 10000,
        "work_ms": 60000,
        "consumers": 400,
    },
    "one write a second, overload": {"writes_per_s": 1, "arrival": 50},
    "one write a second, many callers": {"writes_per_s": 1, "arrival": 50, **MANY},
    "one write a second, four writers": {"writes_per_s": 1, "writers": 4, **MANY},
    "one write a second behind a broker": {"writes_per_s": 1, "writers": 4, "broker": 1, **MANY},
    "one write a second and a longer interval": {"writes_per_s": 1, "commit_interval_ms": 5000, **MANY},
    "a commit interval": {"commit_interval_ms": 500, **NEAR, "arrival": 20, **MANY},
    "two writers": {"writers": 2},
    "four writers": {"writers": 4, **NEAR, "arrival": 20},
    "sixteen writers": {"writers": 16, **NEAR, "arrival": 10, "producers": 32, "consumers": 64},
    "sixteen writers with a broker": {
        "writers": 16,
        "broker": 1,
        **NEAR,
        "arrival": 10,
        "producers": 32,
        "consumers": 64,
    },
    "sixty-four writers, rarely": {"writers": 64, "arrival": "0.01"},
    "a slow broker": {"broker": 1, "broker_ms": 40},
    "retries": {"retries": "0.5"},
    "many retries": {"retries": 4, **NEAR},
    "work much longer than the lease": {
        "work_ms": 600000,
        "lease_ms": 60000,
        "arrival": "0.1",
        "consumers": 100,
    },
    "work of exactly a third of the lease": {"work_ms": 20000, "consumers": 200},
    "retries of long work": {"work_ms": 90000, "retries": "0.25", "arrival": 1, "consumers": 200},
    "no payload": {"payload": 0},
    "a payload of 64 KiB": {"payload": 65536, **NEAR, "arrival": 20},
    "a payload of 256 KiB, many callers": {"payload": 262144, **NEAR, "arrival": 20, **MANY},
    "the largest payload": {"payload": 16777216, **NEAR, "arrival": "0.5", "per_mib_ms": 20},
    "a commit that spills": {**NEAR, "arrival": 1500, "producers": 2000, "consumers": 4000, "payload": 2000},
    "the limit of a commit": {
        **LAN,
        "arrival": 20000,
        "producers": 50000,
        "consumers": 100000,
        "payload": 100,
    },
    "more than the engine can pass on": {
        **LAN,
        "arrival": 100000,
        "producers": 50000,
        "consumers": 100000,
        "payload": 100,
    },
    "a budget for a person": {**NEAR, "budget_ms": 1000, "work_ms": 10000, "consumers": 100},
    "a strong fit": {**NEAR, "budget_ms": 2000, "work_ms": 30000, "arrival": 2, "consumers": 100},
    "a budget of 5 ms": {**NEAR, "budget_ms": 5},
    "a budget of 30 ms on a far store": {**FAR, "budget_ms": 30},
    "tiny jobs": {"work_ms": 5, **NEAR},
    "small jobs": {"work_ms": 60, **NEAR, "arrival": 50},
    "tiny jobs that are retried": {"work_ms": 12, "retries": 1, **NEAR},
    "no prefetch": {"prefetch": 1},
    "large claims": {"prefetch": 1000, "mutations": 2},
    "a large file": {"file_mib": 4096},
    "a store that costs nothing": {"price_put": 0, "price_get": 0, "price_gb": 0},
    "SQS in tens": {"sqs_batch": 10},
    "SQS in tens of large messages": {"sqs_batch": 10, "payload": 40000},
    "one job an hour": {"arrival": "0.000277777777777777", "work_ms": 60000},
    "a day of work": {"work_ms": 86400000, "lease_ms": 3600000, "arrival": "0.001", "consumers": 200},
    "too few workers": {"consumers": 4, **NEAR},
    "idle workers": {"consumers": 1000, "producers": 1},
    "a slow link": {"per_mib_ms": 5000, "arrival": 1},
    "a store on the same machine": {
        "latency_min_ms": 1,
        "latency_ms": 3,
        "latency_p99_ms": 20,
        "arrival": 500,
        **MANY,
        "work_ms": 100,
    },
    "ten thousand jobs a second": {
        **NEAR,
        "arrival": 10000,
        "producers": 20000,
        "consumers": 40000,
        "payload": 200,
        "work_ms": 100,
    },
    "a spill at the very largest batch": {
        **NEAR,
        "producers": 200,
        "consumers": 400,
        "payload": 1000,
        "arrival": 4000,
    },
}

REFUSED = [
    ({"mutations": 0}, "mutations", "1 to 1,000"),
    ({"batch": 4097}, "batch", "1 to 4,096"),
    ({"arrival": -1}, "arrival", "0 to 1,000,000"),
    ({"budget_ms": 0}, "budget_ms", "more than 0"),
    ({"lease_ms": 0}, "lease_ms", "more than 0"),
    ({"producers": 1.5}, "producers", "a whole number"),
    ({"writers": 65}, "writers", "1 to 64"),
    ({"payload": 16777217}, "payload", "0 to 16,777,216"),
    ({"work_ms": 86400001}, "work_ms", "0 to 86,400,000"),
    ({"latency_min_ms": 91}, "latency_min_ms", "not over the typical latency"),
    ({"latency_p99_ms": 89}, "latency_p99_ms", "not under the typical latency"),
    ({"sqs_batch": 11}, "sqs_batch", "1 to 10"),
]


def number(n):
    """Return the value for JSON: 15 digits, "without end" as null."""
    if isinstance(n, dict):
        return {k: number(x) for k, x in n.items()}
    if not isinstance(n, (D, int)) or isinstance(n, bool):
        return n
    if n == ENDLESS:
        return None
    rounded = float(f"{n:.15g}") if isinstance(n, D) else n
    return int(rounded) if rounded == int(rounded) and abs(rounded) < 1e15 else rounded


def main():
    cases = []
    for name, given in CASES.items():
        given = {k: D(str(x)) for k, x in given.items()}
        v = {**DEFAULTS, **given}
        more = {**v, **{k: 10 * v[k] for k in ("arrival", "producers", "consumers")}}
        expected = {**evaluate(v), "tenfold": evaluate(more)}
        cases.append({"name": name, "inputs": number(given), "expected": number(expected)})
    inputs = [
        {"key": k, "default": number(D(d)), "min": number(D(a)), "max": number(D(b))}
        | dict.fromkeys(marks, True)
        for k, d, a, b, *marks in ROWS
    ]
    refused = [{"inputs": given, "field": field, "message": message} for given, field, message in REFUSED]
    lines = lambda rows: ",\n".join("  " + json.dumps(row) for row in rows)  # noqa: E731
    tables = {"inputs": inputs, "cases": cases, "refused": refused}
    text = ",\n".join(f'"{name}": [\n{lines(rows)}\n]' for name, rows in tables.items())
    text = f"{{\n{text}\n}}\n"
    pathlib.Path(__file__).with_name("cases.json").write_text(text)
    print(f"{len(cases)} cases, {len(refused)} refused")


if __name__ == "__main__":
    main()

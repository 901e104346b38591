"""The formulas of docs/fit.md with 50 decimal digits and the same names. Called by cases.py; calls no model."""

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, getcontext

getcontext().prec = 50
D = Decimal
ENDLESS = D("Infinity")
MI = D(2) ** 20


def amount(n):
    """Return three significant digits; round halves up."""
    if n == ENDLESS:
        return "any number"
    places = 0 if n >= 100 else 1 if n >= 10 else 2 if n >= 1 else 3 if n >= D("0.1") else 4
    rounded = (n.scaleb(places) + D("0.5")).to_integral_value(ROUND_FLOOR).scaleb(-places)
    text = f"{rounded:,.{places}f}"
    return text.rstrip("0").rstrip(".") if places else text


def percent(share):
    return amount(share * 100) + "%"


def time(ms):
    for most, unit, size in (
        (1000, "ms", 1),
        (120_000, "s", 1000),
        (7_200_000, "min", 60_000),
        (ENDLESS, "h", 3_600_000),
    ):
        if ms < most:
            return f"{amount(ms / size)} {unit}"
    raise AssertionError(ms)


def penalty(writers):
    return 1 + D("0.3") * (1 - 1 / writers)


def share(a, b):
    if a == 0:
        return D(0)
    return a / (a + b)


def plain(v):
    w = D(1) if v["broker"] else v["writers"]
    held = v["latency_ms"] * penalty(w)
    out = {"penalty": penalty(w)}
    out["queue_ms"] = v["mutations"] / v["batch"] * held
    out["capacity"] = 1000 / out["queue_ms"] if out["queue_ms"] else ENDLESS
    out["overhead"] = share(out["queue_ms"], v["work_ms"])
    out["load"] = v["arrival"] * out["queue_ms"] / 1000
    out["puts_per_job"] = v["mutations"] / v["batch"]
    rho = out["load"]
    out["dispatch_ms"] = ENDLESS if rho >= 1 else D("1.5") * held + rho / (1 - rho) * out["queue_ms"]

    def change(by):
        if by == "load":
            return "batch", v["batch"] * rho / D("0.7")
        if by == "overhead":
            return "work", 19 * out["queue_ms"]
        if by == "dispatch":
            return "budget", 2 * out["dispatch_ms"]
        return ("arrival", D("0.7") * out["capacity"]) if out["queue_ms"] else ("nothing", None)

    out.update(judge(out, v, change))
    return out


class Engine:
    """One column of a sheet: each name as in docs/fit.md, calculated once."""

    def __init__(self, v):
        self.v = v
        self.w = D(1) if v["broker"] else v["writers"]
        self.hop = v["broker_ms"] if v["broker"] else D(0)
        self.attempts = 1 + v["retries"]
        thirds = (3 * v["work_ms"] / v["lease_ms"]).to_integral_value(ROUND_FLOOR)
        self.extensions = self.attempts * thirds
        self.mutations = v["mutations"] + 2 * v["retries"] + self.extensions
        self.op_bytes = 100 + v["payload"] / self.mutations
        self.fixed = v["latency_ms"] + D("0.4") + v["per_mib_ms"] * (18432 + 110) / MI
        self.per_op = D("0.015") + v["per_mib_ms"] * self.op_bytes / MI
        limit = 1000 / v["writes_per_s"] if v["writes_per_s"] else D(0)
        self.interval = max(v["commit_interval_ms"], limit)
        self.work = self.attempts * v["work_ms"]
        self.most_ops = max(D(1), min(D(4096), 8 * MI / self.op_bytes))
        jobs = v["producers"]
        calls = v["mutations"] + 2 * v["retries"] - 1
        if calls:
            jobs = min(jobs, v["consumers"] / calls)
        self.caller_ops = max(D(1), jobs * self.mutations / self.w)
        self.batch_max = min(self.most_ops, self.caller_ops)
        self.full_cycle = max(self.commit_of(self.batch_max) * penalty(self.w), self.interval)
        self.capacity = 1000 * self.batch_max / (self.mutations * self.full_cycle)
        self.load = v["arrival"] / self.capacity
        self.rho = min(self.load, D(1))
        several = self.w > 1
        waiting = 1 - min(D(1), v["arrival"] * self.work / (1000 * v["consumers"])) ** v["consumers"]
        gap = 500 / v["arrival"] if v["arrival"] else ENDLESS
        self.poll = min(D(1000), 200 + gap) if several else D(1000)
        own = v["arrival"] / 1000 * self.mutations / self.w
        shown = own / (2 / self.poll + own) if several else D(1)
        self.alone = self.mutations - (waiting * shown if v["mutations"] >= 2 else 0)
        y = v["arrival"] * self.alone / 1000 * self.fixed
        self.near = y / (y + (-y).exp()) if self.load < 1 else D(1)
        self.stale = 1 - (1 - self.near) / self.alone
        self.tries = 1 + D("1.5") * (1 - 1 / self.w) * self.stale * (1 - self.near) ** 2
        self.line = D("1.3") * (self.w - 1) * self.near * (4 - 3 * self.near)
        self.once = 1 + 2 * (self.tries - 1)
        self.slower = self.once + self.line
        self.joins = self.once + D("0.4") * self.line
        self.reads = self.tries - 1 + (3 + self.w if several else 0)
        self.turns = 1 + (self.w - 1) * self.near
        self.gather()
        once = self.commit_of(self.batch)
        self.commit = once * self.slower
        self.joined = once * self.joins
        least = self.commit + self.busy * self.gather_of(once)
        self.cycle = max(least, self.interval * self.turns)
        self.wait = ENDLESS
        if self.load < 1:
            running = self.cycle - least if several else self.cycle
            self.wait = self.busy * running / 2 + self.cycle * self.rho**2 / (2 * (1 - self.rho))
        self.commits = self.mutations / self.batch
        self.done = min(v["arrival"], self.capacity)
        self.commits_per_s = self.done * self.commits
        self.notice_and_dispatch()

    def spills(self, n):
        return 110 + n * self.op_bytes > 114688

    def commit_of(self, n):
        return self.fixed + n * self.per_op + (self.v["latency_ms"] if self.spills(n) else 0)

    def gather_of(self, ms):
        return min(D("0.15") * ms, D(10))

    def gather(self):
        v = self.v
        if self.load >= 1:
            self.batch, self.busy, self.none = self.batch_max, D(1), D(0)
            return
        each = self.mutations / self.alone
        events = v["arrival"] / 1000 * self.alone / self.w
        for fixed in (self.fixed, self.fixed + v["latency_ms"]):
            free = max(D("0.001"), 1 - events * each * self.per_op * self.slower)
            busy_ms = (fixed * self.slower + self.gather_of(fixed)) / free
            x = events * max(busy_ms, self.interval * self.turns)
            self.none = (-x).exp()
            self.batch = min((x + self.none) * each, self.batch_max)
            self.busy = x / (x + self.none)
            if not self.spills(self.batch):
                break

    def notice_and_dispatch(self):
        v, several = self.v, self.w > 1
        self.notice = D(0)
        if several:
            noticed = 1 / (2 / self.poll + self.commits_per_s / 1000 / self.w) / (self.w - 1)
            self.notice = noticed + self.joined + self.wait
        self.dispatch = self.joined + self.wait + self.hop + self.notice
        self.best = v["latency_min_ms"] + D("0.4") + self.hop
        self.p99 = (
            self.dispatch
            + (v["latency_p99_ms"] - v["latency_ms"]) * self.joins
            + (self.poll / 2 if several else 0)
        )
        claims = 1 / v["prefetch"]
        self.felt = max(D(0), v["mutations"] - 2) + claims + v["retries"] * (1 + claims)
        self.queue = self.felt * (self.commit + min(self.wait, self.w * self.full_cycle) + self.hop)
        self.overhead = share(self.queue, self.work)
        self.worker_load = v["arrival"] * (self.work + self.queue) / (1000 * v["consumers"])
        spills = self.spills(self.batch)
        self.upkeep = D(0)
        if not spills:
            self.upkeep = (self.mutations * self.op_bytes + self.commits * 110) / 32768 * 65 / 64
        self.puts = self.commits * (self.tries + (1 if spills else 0)) + self.upkeep
        self.gets = self.commits * self.reads + self.none
        self.polls_per_s = 1000 * self.w / self.poll * (-self.commits_per_s / 1000 * self.poll / self.w).exp()

    def figures(self):
        v = self.v
        out = {
            "mutations": self.mutations,
            "extensions": self.extensions,
            "batch": self.batch,
            "batch_max": self.batch_max,
            "commit_ms": self.commit,
            "cycle_ms": self.cycle,
            "capacity": self.capacity,
            "load": self.load,
            "queue_ms": self.queue,
            "overhead": self.overhead,
            "dispatch_best_ms": self.best,
            "dispatch_ms": self.dispatch,
            "dispatch_p99_ms": self.p99,
            "puts_per_job": self.puts,
            "gets_per_job": self.gets,
            "bytes_per_commit": 18432 + 110 + self.batch * self.op_bytes,
            "commits_per_s": self.commits_per_s,
            "polls_per_s": self.polls_per_s,
            "worker_load": self.worker_load,
            "cold_open_ms": 2 * v["latency_ms"] + v["file_mib"] * v["per_mib_ms"],
            "whole_file_ms": 2 * (v["latency_ms"] + v["file_mib"] * v["per_mib_ms"]),
        }
        out.update(judge(out, v, self.change))
        out["instead"] = self.instead(out["classes"])
        return out

    def change(self, by):
        slow_store = self.interval > self.commit_of(self.batch_max) * penalty(self.w)
        if by is None:
            return "arrival", D("0.7") * self.capacity
        if slow_store:
            return "store", None
        if self.w > 1:
            return "broker", None
        if by == "dispatch":
            return ("budget", 2 * self.dispatch) if self.load < 1 else ("callers", None)
        if by == "overhead":
            return "work", 19 * self.queue / self.attempts
        times = self.load / D("0.7")
        if self.caller_ops < self.most_ops:
            return "callers", times
        return "split", times.to_integral_value(ROUND_CEILING)

    def instead(self, classes):
        poor = [name for name in ("load", "overhead", "dispatch") if classes[name] == 2]
        for name in poor:
            if name == "load":
                ideal = 1000 * self.most_ops / (self.mutations * self.commit_of(self.most_ops))
                if self.v["arrival"] > D("0.9") * ideal:
                    return "log"
            if name == "overhead" and share(self.felt * self.best, self.work) > D("0.2"):
                return "memory" if self.work < 20 else "database"
            if name == "dispatch" and self.v["budget_ms"] < self.best:
                return "memory" if self.v["budget_ms"] < 20 else "managed"
        return None

    def month(self):
        v, seconds = self.v, 730 * 3600
        puts = seconds * self.done * self.puts
        gets = seconds * (self.done * self.gets + self.polls_per_s)
        storage = 2 * v["file_mib"] / 1024
        chunks = max(D(1), (v["payload"] * v["sqs_batch"] / 65536).to_integral_value(ROUND_CEILING))
        each = ((1 + self.attempts) * chunks + 1 + v["retries"] + self.extensions) / v["sqs_batch"]
        idle = (1 - min(D(1), self.worker_load)) * v["consumers"]
        sqs = seconds * (v["arrival"] * each + idle / 20)
        return {
            "puts": puts,
            "gets": gets,
            "storage_gb": storage,
            "cost": (puts * v["price_put"] + gets * v["price_get"]) / 10**6 + storage * v["price_gb"],
            "sqs_requests": sqs,
            "sqs_cost": sqs * v["price_sqs"] / 10**6,
        }


def judge(out, v, change):
    load, overhead, delay = out["load"], out["overhead"], out["dispatch_ms"]
    classes = {
        "load": 0 if load < D("0.7") else 1 if load <= D("0.9") else 2,
        "overhead": 0 if overhead < D("0.05") else 1 if overhead <= D("0.2") else 2,
        "dispatch": 0 if 2 * delay <= v["budget_ms"] else 1 if delay <= v["budget_ms"] else 2,
    }
    worst = max(classes.values())
    by = next((k for k, c in classes.items() if c == worst), None) if worst else None
    name, value = change(by)
    verdict = ("strong", "tradeoff", "poor")[worst]
    if by is None:
        why = "overhead, load and dispatch are all well inside their limits"
    elif by == "load" and load >= 1:
        faster = "jobs arrive faster than the queue can pass them on"
        why = f"{faster} ({percent(load)} of its capacity), so the backlog grows"
    elif by == "load":
        why = f"the queue runs at {percent(load)} of its capacity"
    elif by == "overhead":
        why = f"{percent(overhead)} of a worker's time goes to the queue"
    else:
        why = f"a ready job reaches a worker after {time(delay)}, and the budget is {time(v['budget_ms'])}"
    then = {
        "nothing": lambda: "Nothing here would change it.",
        "arrival": lambda: f"Load stays healthy up to {amount(value)} jobs/s.",
        "batch": lambda: f"A batch over {amount(value)} would make that strong.",
        "work": lambda: f"Jobs with over {time(value)} of work would make that strong.",
        "budget": lambda: f"A budget of {time(value)} would make that strong.",
        "store": lambda: "A store without the limit on commits would change it.",
        "broker": lambda: "One process that commits for all, a broker, would change it.",
        "callers": lambda: "More calls at once, or more jobs in a call, would change it.",
        "split": lambda: f"Sharing the work among {amount(value)} queue files would change it.",
    }[name]()
    return {
        "classes": classes,
        "verdict": verdict,
        "decided_by": by,
        "backlog_grows": load >= 1,
        "change": name,
        "change_value": value,
        "sentence": f"{verdict.capitalize()}: {why}. {then}",
    }


def evaluate(v):
    engine = Engine(v)
    return {"plain": plain(v), "engine": engine.figures(), "month": engine.month()}

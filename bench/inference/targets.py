"""What has to hold, and whether it does."""

import statistics
from dataclasses import dataclass
from typing import Optional

from contenders import DEPTHS, PROMPT

# Decode is as good as it has to be when it reaches this share of the bandwidth floor, whatever a peer reaches.
FLOOR_ENOUGH = 0.85
# What two processes reach that run at the same time, each on one thread: two cores do no more.
TWO_PROCESSES = "ropewalk 2 processes"
# Stages may lose this much of that to waiting for each other.
BUBBLES = 0.1
# How much sooner the first token of a second start is there.
SECOND_START = 1.25


@dataclass
class Target:
    """A ratio of two figures that is wanted, the larger the better."""

    model: str
    what: str
    ours: tuple
    theirs: tuple
    wanted: float
    # The figures are times or sizes: the ratio is theirs by ours.
    smaller_is_better: bool = False
    # Threads by whose bandwidth a figure may be good enough by itself.
    floor_threads: Optional[int] = None
    # The figure that two processes reach together, where the ratio is one of two cores to one.
    two_processes: Optional[str] = None
    # Share of what two processes reach by which a figure is good enough by itself.
    share_enough: Optional[float] = None


def targets(model, is_largest):
    """The targets of one model."""
    wanted = []
    for threads in ("1 thread", "2 threads"):
        ours, theirs = f"ropewalk {threads}", f"llama.cpp {threads}"
        for depth in DEPTHS:
            figure = f"decode at {depth}"
            wanted.append(Target(model, f"{figure}, {threads}", (ours, figure), (theirs, figure), 1.2,
                                 floor_threads=int(threads[0])))
        figure = f"prefill {PROMPT}"
        wanted.append(Target(model, f"{figure}, {threads}", (ours, figure), (theirs, figure), 1.5))
    two, one, ranks = "ropewalk 2 threads", "ropewalk 1 thread", "ropewalk 2 ranks"
    for figure in (*(f"decode at {depth}" for depth in DEPTHS), f"prefill {PROMPT}"):
        wanted.append(Target(model, f"{figure}, two ranks by one", (ranks, figure), (one, figure), 1.8, two_processes=figure))
        wanted.append(Target(model, f"{figure}, two ranks by two threads", (ranks, figure), (two, figure), 0.95))
    for figure in ("first token, short prompt", "first token, long prompt"):
        wanted.append(Target(model, figure, (two, figure), ("llama.cpp 2 threads", figure), 1.0, smaller_is_better=True))
    wanted.append(Target(model, "peak memory", (two, "peak memory"), ("llama.cpp 2 threads", "peak memory"), 1 / 1.15,
                         smaller_is_better=True))
    wanted.append(Target(model, "batch of 8 by one sequence", (two, "decode of 8"), (two, "decode of 1"), 3.0))
    wanted.append(Target(model, "batch of 8", (two, "decode of 8"), ("llama.cpp 2 threads", "decode of 8"), 1.2))
    wanted.append(Target(model, "three stages, three sequences, by one", ("ropewalk 3 stages", "decode of 3"),
                         (one, "decode of 1"), 2 * (1 - BUBBLES), two_processes="decode of 1", share_enough=1 - BUBBLES))
    wanted.append(Target(model, "second start by first", (two, "first token, second start"), (two, "first token, first start"),
                         SECOND_START, smaller_is_better=True))
    for ours in (two, ranks):
        wanted.append(Target(model, f"decode, {ours.removeprefix('ropewalk ')}, busy core by quiet", (ours, "decode at 0, busy core"),
                             (ours, "decode at 0"), 1 / 2.5))
    if is_largest:
        wanted.append(Target(model, "decode at 0, 2 threads, by bandwidth floor", (two, "decode at 0"),
                             ("machine", "floor of 2 threads"), 0.7))
    return wanted


def judge(target, values):
    """The ratios of a target round by round and whether it holds; `None` if it was not measured."""
    ratios = ratios_of(target, values)
    if not ratios:
        return None
    ratio = statistics.median(ratios)
    floor_share = median_ratio(target, target.ours, ("machine", f"floor of {target.floor_threads} threads"), values)
    both = (TWO_PROCESSES, target.two_processes)
    share = median_ratio(target, target.ours, both, values)
    holds = ratio >= target.wanted or reaches(floor_share, FLOOR_ENOUGH) or reaches(share, target.share_enough)
    return {"model": target.model, "what": target.what, "wanted": target.wanted, "ratio": ratio, "ratio_min": min(ratios),
            "ratio_max": max(ratios), "floor_share": floor_share, "two_processes_share": share,
            "two_processes_ratio": median_ratio(target, both, target.theirs, values), "holds": holds}


def median_ratio(target, ours, theirs, values):
    """The median ratio of two other figures of a target's model, `None` if they were not measured."""
    ratios = ratios_of(Target(target.model, "", ours, theirs, 0.0), values)
    return statistics.median(ratios) if ratios else None


def reaches(share, enough):
    return share is not None and enough is not None and share >= enough


def ratios_of(target, values):
    """Round by round, so that what disturbs a round disturbs both."""
    series = [values.get((target.model, *key), []) for key in (target.ours, target.theirs)]
    pairs = [pair for pair in zip(*series) if None not in pair]
    return [their / our if target.smaller_is_better else our / their for our, their in pairs]

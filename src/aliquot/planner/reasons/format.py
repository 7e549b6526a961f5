"""Amounts and times in words."""

from __future__ import annotations

from aliquot.planner.model import GPU, Amount, Request


def amount_text(amount: int, resource: int) -> str:
    if resource == 0:
        return f"{amount / GPU:g} {'GPU' if amount == GPU else 'GPUs'}"
    if resource == 1:
        return f"{amount / 1000:g} {'core' if amount == 1000 else 'cores'}"
    return memory_text(amount)


def memory_text(amount: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if amount >= size:
            return f"{round(amount / size, 1):g} {unit}"
    return f"{amount} bytes"


def amounts_text(amount: Amount) -> str:
    """The GPUs if there are any, else CPU and memory."""
    if amount[0]:
        return amount_text(amount[0], 0)
    return " and ".join(amount_text(amount[r], r) for r in (1, 2) if amount[r]) or "nothing"


def request_text(request: Request) -> str:
    """What one task asks for."""
    if request.mig:
        return " and ".join(f"{count} × {profile}" for profile, count in request.mig)
    if not request.devices:
        return amounts_text((0, request.cpu, request.memory))
    if request.memory_mib:
        each = f"{request.memory_mib} MiB of GPU memory"
        return each if request.devices == 1 else f"{each} on each of {request.devices} GPUs"
    if request.milli != GPU and request.devices > 1:
        return f"{request.milli / GPU:g} of each of {request.devices} GPUs"
    return amount_text(request.devices * request.milli, 0)


def count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def span_text(seconds: float) -> str:
    """A duration in one unit. Less than two of a unit is written in the next smaller one."""
    whole = max(0, round(seconds))
    for size, word in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if whole >= 2 * size:
            return count(whole // size, word)
    return count(whole, "second")

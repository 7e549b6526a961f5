"""`together`: several processes under one limit, and 2, 4 and 8 tenants that fill the whole GPU at once."""

from __future__ import annotations

from lab import Lab, Program
from table import Table

FILL = """
cuda = Cuda()
step(ready=True)
frees, code = cuda.fill(cuda.alloc, 2 * MIB)
step(got=2 * len(frees), code=code)
"""


def fill(programs: list[Program]) -> list[dict[str, int]]:
    """Lets all programs allocate at the same time; returns their reports."""
    for program in programs:
        program.receive()
    for program in programs:
        program.resume()
    return [program.receive(300) for program in programs]


def together(lab: Lab, table: Table) -> None:
    limit = lab.small_limit * 2
    for count in (2, 4):
        tenant = lab.tenant(limit)
        programs = [tenant.start(FILL) for _ in range(count)]
        full = fill(programs)
        ledger, held = tenant.ledger_mib(), lab.held(*programs)
        for program in programs:
            program.kill()
        table.near(f"{count} processes, one limit: ledger", ledger, limit, 2, " MiB")
        table.near(f"{count} processes, one limit: driver", held, limit, count, " MiB")
        table.equal(f"{count} processes: codes", [result["code"] for result in full], [2] * count)
    for count in (2, 4, 8):
        tenants = [lab.tenant(lab.fraction_mib(1000 // count)) for _ in range(count)]
        programs = [tenant.start(FILL) for tenant in tenants]
        full = fill(programs)
        held_by_each = [lab.held(program) for program in programs]
        for program in programs:
            program.kill()
        limit = tenants[0].limit
        short = [limit - held for held in held_by_each]
        figure = f"{limit} MiB each, short by {', '.join(map(str, short))} MiB"
        # The driver uses 6 to 9 MiB per context itself; they are missing for the last tenant.
        most = 32 if count <= 4 else 9 * count
        good = all(-2 <= result <= most for result in short) and all(result["code"] == 2 for result in full)
        table.check(f"{count} tenants of {1 / count:g}", good, figure, f"short by ≤ {most} MiB, over by ≤ 2, code 2")

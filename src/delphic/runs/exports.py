"""Tables as the W&B page exports a chart: a column `Step` and for each run `<run> - <key>`, with its least and greatest."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from delphic.runs.rows import Raw

BETWEEN = " - "


def one_run(raw: Raw) -> Raw:
    """Such a table with the keys of one run, the one with the most numbers; any other table as it is."""
    table = raw.table
    plain = [name for name in table.columns if BETWEEN not in name]
    if len(plain) != 1 or plain[0].lower() not in ("step", "_step", "global_step", "relative time (process)"):
        return raw
    values = [name for name in table.columns if BETWEEN in name and not name.endswith(("__MIN", "__MAX"))]
    counts: dict[str, int] = {}
    for name in values:
        run = name.rpartition(BETWEEN)[0]
        counts[run] = counts.get(run, 0) + table[name].count()
    if not counts:
        return raw
    taken = max(counts, key=lambda run: counts[run])
    problems = list(raw.problems)
    if len(counts) > 1:
        problems.append(f'the export holds {len(counts)} runs; "{taken}", which has the most numbers, is used')
    kept = {name.rpartition(BETWEEN)[2]: name for name in values if name.rpartition(BETWEEN)[0] == taken}
    renamed = [pl.col(name).alias(key) for key, name in kept.items() if key != plain[0]]
    return replace(raw, table=table.select(pl.col(plain[0]), *renamed), problems=problems)

"""docs/metrics.md, written from the table of metrics."""

from __future__ import annotations

from delphic.training.metrics import METRICS, TIMING

INTRO = """# Metrics

*Written by `scripts/write_docs.py` from the code; edit the code, not this page.*

A run writes one JSON row a step into `metrics.jsonl`; an interrupted and resumed run writes the same bytes as an
uninterrupted one. Wall-clock figures never repeat, so they are in `timing.jsonl`.

A figure whose name ends in `_learned` covers only the completions that were learned: rows where every term of the
gradient is zero are skipped. All others cover every completion of the step. Figures that do not apply are left out.
Step 0 is the evaluation before training.

Two things that people ask: a clip (mask) share of 0 is normal with one update per batch and no lag, since every ratio
is 1 there; and the loss says nothing about progress, being near 0 by construction. Look at `gradient_norm`: it is 0
only when no completion had a gradient, and `silent_share` and the masked shares say why.
"""


def render_markdown() -> str:
    """The whole page."""
    parts = [INTRO]
    for title, table in (("metrics.jsonl", METRICS), ("timing.jsonl", TIMING)):
        parts.append(f"\n## {title}\n\n| name | unit | over the step's parts | meaning |\n| --- | --- | --- | --- |\n")
        parts += [f"| `{name}` | {m.unit} | {m.reduction} | {m.about} |\n" for name, m in table.items()]
    return "".join(parts)

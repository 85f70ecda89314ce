"""A run as a Markdown table, a row a step: run_table.py RUN_FOLDER"""

from __future__ import annotations

import json
import sys
from pathlib import Path

COLUMNS = (
    ("reward_mean", "reward", ".3f"),
    ("silent_share", "silent", ".2f"),
    ("lag", "lag", ".0f"),
    ("entropy", "entropy", ".3f"),
    ("kl_reference", "KL to start", ".4f"),
    ("ratio_max_learned", "max ratio", ".3f"),
    ("gradient_norm", "gradient", ".3f"),
    ("seconds_sample", "sample s", ".1f"),
    ("seconds_score", "score s", ".1f"),
    ("seconds_learn", "learn s", ".1f"),
    ("seconds_sync", "sync s", ".1f"),
)


def table(run: Path) -> str:
    rows: dict[int, dict[str, float]] = {}
    for name in ("metrics.jsonl", "timing.jsonl"):
        for line in (run / name).read_text().splitlines():
            row = json.loads(line)
            rows.setdefault(row["step"], {}).update(row)
    lines = ["| step | " + " | ".join(title for _, title, _ in COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for step, row in sorted(rows.items()):
        if "reward_mean" in row:
            cells = [format(row[key], style) if key in row else "" for key, _, style in COLUMNS]
            lines.append(f"| {step} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(table(Path(sys.argv[1])))

"""docs/logs.md, written from the tables of columns and keys."""

from __future__ import annotations

from delphic.runs.columns import CANONICAL
from delphic.runs.frameworks import FRAMEWORKS
from delphic.runs.synonyms import GENERIC

INTRO = """# What logs are read

*Written by `scripts/write_docs.py` from the code; edit the code, not this page.*

`delphic diagnose PATH`, `watch`, `compare`, `forecast` and `backtest` take a file or a folder, and find out what it is. Nothing in
it is ever unpickled or run.

| file | of |
| --- | --- |
| `trainer_state.json`, a folder with `checkpoint-*` | TRL, ms-swift, anything on transformers |
| console output, with ANSI codes and progress bars | transformers' dicts, verl's `step:…` lines, AReaL's tables |
| JSON lines, one object a row, or `{"step", "data"}` | verl's file logger, prime-rl, tinker-cookbook, ms-swift, delphic, your own |
| JSON: a list of rows, or of columns | exports of trackers, your own |
| CSV, TSV, with `,` `;` or tabs | W&B's run and chart exports, your own |
| TensorBoard events, one file or a tree of them | all of them; Trinity's explorer and trainer, NeMo-RL's train and validation are joined by step |
| SQLite | trackio |
| dumps of completions, Parquet, CSV or JSON lines | TRL (`completions_*.parquet`), verl (`rollout_data_dir`), NeMo-RL, prime-rl, tinker-cookbook, AReaL, delphic |

All but SQLite, Parquet and events may be gzipped. W&B's own `.wandb` file has no supported reader outside W&B; export it.

**What is cleaned, and said.** A file may hold several sessions: the last is used that has at least half the steps of the longest. A
resume replaces the steps that it does again. Rows of one step are merged, their mean where two have a value. Columns without numbers,
numbers that are not finite, rows without a step, damaged or cut-off lines are left out and counted. Where the log has no steps, its
rows are counted. Percent becomes shares. `delphic diagnose PATH --columns` prints which key was taken for what, of which kind, and
what was not used; `--map NAME=COLUMN` (`reward`, `eval`, `kl`, `length`, `step` or any name below) overrides it.

**Groups** are told by an id column or by the prompt within its step, never by position: where neither tells, `--group-key COLUMN` or
`--group-size G` is asked for.

**Refused**, with exit status 2: no such file, no permission, nothing that is known, no column of rewards, a mapped column that holds
text, a folder with logs of several frameworks or of several runs.

Same name, other meaning, which is why a column has a kind:

- *kl*: to the reference (k3 or k1), of the policy against the one that sampled (verl's `actor/ppo_kl`), or of the sampler's
  probabilities against the trainer's. Only the first two measure drift from the start.
- *entropy*: exact, −log p of the sampled tokens, or that weighted by the ratio.
- *reward*: raw, with a KL term in it, of kept groups only, or normalised. TRL before 1.0 left out the functions' weights.
- *reward std*: within groups (TRL before 0.27) or of the batch (after); the keys do not always tell which.
- *silent groups*: counted as groups, or as samples whose leave-one-out baseline is 0 or 1 (NeMo-RL), which counts a lone success.
"""


def render_markdown() -> str:
    """The whole page."""
    parts = [INTRO, "\n## Columns\n\n| column | unit | kinds | meaning |\n| --- | --- | --- | --- |\n"]
    parts += [
        f"| `{c.name}` | {c.unit} | {', '.join(filter(None, c.kinds))} | {_cell(c.meaning)} |\n"
        for c in CANONICAL.values()
    ]
    parts.append("| `reward/<function>` | reward |  | mean of one reward function |\n")
    parts.append(
        "\n## Keys\n\n`train/` in front of a key is ignored; `*` stands for anything. Of several keys for one column the first that has "
        "numbers is used. Keys that no framework of the table explains are tried as common names.\n"
    )
    tables = [(framework.name, framework.keys) for framework in FRAMEWORKS if framework.name != "ms-swift"]
    for name, keys in [*tables, ("common names", GENERIC)]:
        rows: dict[str, list[str]] = {}
        for key in keys:
            if key.canonical != "-":
                note = ", ".join(filter(None, (key.kind, key.change)))
                rows.setdefault(key.canonical, []).append(f"`{key.source}`" + (f" ({note})" if note else ""))
        title = "trl, ms-swift" if name == "trl" else name
        parts.append(f"\n### {title}\n\n| column | keys |\n| --- | --- |\n")
        parts += [f"| `{column}` | {', '.join(found)} |\n" for column, found in rows.items()]
    return "".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")

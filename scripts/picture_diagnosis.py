"""The README's picture of a diagnosis: the built-in model under a verifier that also pays for a minus sign in front.

    python scripts/picture_diagnosis.py docs/images/diagnosis.png

Trains for a minute, writes the page and takes its picture with chromium.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from delphic.diagnosis.verdict import diagnose
from delphic.report.diagnosis_page import draw_diagnosis
from delphic.reproduce.scenarios_model import MODEL_SCENARIOS, model_run


def main() -> None:
    target = Path(sys.argv[1]).resolve()
    leaky = next(scenario for scenario in MODEL_SCENARIOS if scenario.name == "model_leaky_verifier")
    with tempfile.TemporaryDirectory() as folder:
        log = replace(model_run(leaky, 0, Path(folder) / "runs.jsonl"), path=Path("metrics.jsonl"))
        page = Path(folder) / "page.html"
        draw_diagnosis(log, diagnose(log), page)
        command = [
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--blink-settings=primaryHoverType=2,availableHoverTypes=2",
            "--window-size=1120,960",
        ]
        subprocess.run(
            [*command, f"--screenshot={target}", "--virtual-time-budget=8000", page.as_uri()], check=True, timeout=120
        )
    print(target)


if __name__ == "__main__":
    main()

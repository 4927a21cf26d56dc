"""The published sparse networks on IPUs by the performance model: writes its JSON and its chart.

python benchmarks/ipu_published.py
"""

import json
from pathlib import Path

from snnipu.ipu import published
from snnipu.ipu.charts import draw_published

ROOT = Path(__file__).resolve().parent.parent


def main():
    found = published.results()
    text = json.dumps(found, indent=1, allow_nan=False) + "\n"
    (ROOT / "benchmarks" / "results" / "ipu-model.json").write_text(text, encoding="utf-8")
    draw_published(found, ROOT / "docs" / "how-to" / "ipu-published.png")


if __name__ == "__main__":
    main()

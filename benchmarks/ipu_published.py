"""The published sparse networks on IPUs by the performance model: writes its JSON and its chart.

python benchmarks/ipu_published.py [--json FILE] [--chart FILE]
"""

import argparse
import json
from pathlib import Path

from snnipu.ipu import published
from snnipu.ipu.charts import draw_published

ROOT = Path(__file__).resolve().parent.parent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "results" / "ipu-model.json")
    parser.add_argument("--chart", type=Path, default=ROOT / "docs" / "how-to" / "ipu-published.png")
    arguments = parser.parse_args()
    found = published.results()
    arguments.json.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    draw_published(found, arguments.chart)


if __name__ == "__main__":
    main()

"""Draw the picture at the top of README: training steps of two networks, from the records in this folder.

python -m benchmarks.readme_picture
"""

import json
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.report import summarise

RESULTS = Path(__file__).resolve().parent / "results"
OURS, OTHERS = "#1f6f8b", "#b9c4c9"
# Record, beginning of the table's title, title of the panel, labels of the rows by their names.
PANELS = (
    (
        "cpu.json",
        "Tutorial network 784-1000-10,",
        "snnTorch's tutorial network, 784-1000-10\n25 steps, batch of 128",
        {
            "snntorch": "snnTorch",
            "spikingjelly": "SpikingJelly",
            "compile": "snnTorch, torch.compile",
            "snnipu-multistep": "snnipu MultiStep",
        },
    ),
    (
        "sparse-cpu.json",
        "Sparse network 2312-1466-1466-10, 2 % active,",
        "2312-1466-1466-10, at 2 % activity\n100 steps, batch of 48",
        {
            "snntorch": "snnTorch",
            "spikingjelly": "SpikingJelly",
            "dense": "snnipu, dense",
            "sparse-network": "snnipu SparseNetwork",
        },
    ),
)


def main():
    figure = Figure(figsize=(9.6, 2.7), layout="constrained")
    for axes, (file, table, title, labels) in zip(figure.subplots(1, 2), PANELS):
        document = json.loads((RESULTS / file).read_text(encoding="utf-8"))
        if "records" in document:
            rows = summarise([row for row in document["records"] if row["title"].startswith(table)])
            medians = dict(zip(rows.contender, rows.milliseconds))
        else:  # a record of version 0.2 or before
            rows = next(case["results"] for case in document["cases"] if case["title"].startswith(table))
            medians = {row["name"]: 1e3 * row["time"]["median_s"] for row in rows if row["time"]}
        times = [medians[name] for name in labels]
        bars = axes.barh(list(labels.values()), times, color=[*[OTHERS] * 3, OURS], height=0.7)
        texts = [f"{time:,.0f} ms" if time > 100 else f"{time:.3g} ms" for time in times]
        texts[:-1] = [f"{text}  ({time / times[-1]:.1f} ×)" for text, time in zip(texts[:-1], times)]
        axes.bar_label(bars, texts, padding=4, fontsize=9)
        axes.invert_yaxis()
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_xlim(0, 1.28 * max(times))
        axes.xaxis.set_visible(False)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.tick_params(left=False, labelsize=9)
    figure.savefig(RESULTS / "training-step.png", dpi=110, facecolor="white")


if __name__ == "__main__":
    main()

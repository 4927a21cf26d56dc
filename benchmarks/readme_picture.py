"""The picture at the top of README: training steps of two networks, from the records in this folder.

python benchmarks/readme_picture.py
"""

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

RESULTS = Path(__file__).resolve().parent / "results"
OURS, OTHERS = "#1f6f8b", "#b9c4c9"
# Record, which table of it, title, rows by the record's names.
PANELS = (
    (
        "cpu.json",
        lambda case: case["name"] == "network",
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
        lambda case: (
            case.get("parameters", {}).get("activity") == 0.02 and case.get("parameters", {}).get("hidden_layers") == 2
        ),
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
    figure, axes = plt.subplots(1, 2, figsize=(9.6, 2.7), constrained_layout=True)
    for ax, (file, is_wanted, title, labels) in zip(axes, PANELS):
        cases = json.loads((RESULTS / file).read_text(encoding="utf-8"))["cases"]
        rows = {row["name"]: row for row in next(filter(is_wanted, cases))["results"]}
        times = [1e3 * rows[name]["time"]["median_s"] for name in labels]
        places = range(len(labels))[::-1]
        colours = [OURS if name == list(labels)[-1] else OTHERS for name in labels]
        ax.barh(places, times, color=colours, height=0.7)
        for place, time in zip(places, times):
            told = f"{time:,.0f} ms" if time > 100 else f"{time:.3g} ms"
            told += "" if time == times[-1] else f"  ({time / times[-1]:.1f} ×)"
            ax.text(time + 0.015 * max(times), place, told, va="center", fontsize=9)
        ax.set_yticks(places, list(labels.values()), fontsize=9)
        ax.set_title(title, fontsize=10, loc="left")
        ax.set_xlim(0, 1.28 * max(times))
        ax.xaxis.set_visible(False)
        ax.spines[["top", "right", "bottom"]].set_visible(False)
        ax.tick_params(left=False)
    figure.savefig(RESULTS / "training-step.png", dpi=110, facecolor="white")


if __name__ == "__main__":
    main()

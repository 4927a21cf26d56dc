"""The picture of the page "Find out what is wrong": a network that does not spike, before and after a change.

``python docs/does_not_spike.py`` draws it again. The two reports are those of the page's code.
"""

import re
from pathlib import Path
from textwrap import dedent
from typing import Any, Dict, List

from snnipu import plotting
from snnipu.diagnose import LayerDiagnosis

HOW_TO = Path(__file__).resolve().parent / "how-to"


def report() -> List[LayerDiagnosis]:
    """Run the code of the page's section; return the rows of both reports."""
    page = (HOW_TO / "troubleshooting.md").read_text(encoding="utf-8")
    section = page.split("\n## My network does not spike\n")[1].split("\n## ")[0]
    names: Dict[str, Any] = {}
    for block in re.findall(r"^ *```python\n(.*?)^ *```$", section, re.MULTILINE | re.DOTALL):
        exec(dedent(block), names)
    return [row._replace(name=f"{row.name}, {when}") for when in ("before", "after") for row in names[when]]


if __name__ == "__main__":
    plotting.diagnosis(report()).savefig(HOW_TO / "does-not-spike.png")

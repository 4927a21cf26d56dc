"""What the compiler did."""

from dataclasses import dataclass
from typing import Any, Optional

@dataclass
class GraphReport:
    before: int
    after: int
    seconds: float
    failed: str
    plan: Any
    code: str
    reason: Any


def report_of(module: Any, rolled: Any, plan: Optional[Any], seconds: float, failed: str) -> GraphReport:
    return GraphReport(len(module.graph.nodes), len(rolled.graph.nodes), seconds, failed, plan, rolled.code, getattr(module, "compile_subgraph_reason", None))

"""Strongly connected components of a graph: nodes that depend on their own results."""

from typing import Any, Callable, Dict, Iterable, Iterator, List, Set, Tuple


def components(roots: Iterable[Any], needs: Callable[[Any], Iterable[Any]]) -> Iterator[List[Any]]:
    """Yield the strongly connected components of a graph, each after the components that it needs (Tarjan 1972)."""
    index: Dict[Any, int] = {}
    low: Dict[Any, int] = {}
    stack: List[Any] = []
    on_stack: Set[Any] = set()
    for root in roots:
        if root in index:
            continue
        work: List[Tuple[Any, Iterator[Any]]] = [(root, iter(needs(root)))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            unit, needed = work[-1]
            for other in needed:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(needs(other))))
                    break
                if other in on_stack:
                    low[unit] = min(low[unit], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[unit])
                if low[unit] == index[unit]:
                    component = []
                    while True:
                        other = stack.pop()
                        on_stack.discard(other)
                        component.append(other)
                        if other is unit:
                            break
                    yield component

"""Files of a program, and the code of their functions before and after their loops were taken out."""

import ast
import linecache
import os
import re
import sysconfig
from typing import Any, Dict, Iterator, List, Optional, Tuple

from snnipu.compiler import bodies, outline
from snnipu.compiler.reasons import PACKAGES

Key = Tuple[str, int]
_INSTALLED = tuple({str(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_SITE = re.compile(r"[/\\](site|dist)-packages[/\\]")


def is_others(filename: str) -> bool:
    """Return True if code is of another package than the program."""
    return filename.startswith((*PACKAGES, *_INSTALLED)) or _SITE.search(filename) is not None


class Source:
    """A file, a script or a cell of a notebook.

    Attributes:
        tree: its statements, with branches in front of loops.
        hosts: the functions with such loops, or the module.
    """

    def __init__(self, tree: ast.Module, filename: str) -> None:
        """
        Raises:
            SyntaxError: Python does not compile it.
        """
        self.tree, self._filename = tree, filename
        self.hosts: List[bodies.Host] = []
        self._versions: Dict[Key, List[Any]] = {}  # of a function's code, the first as the program has it
        self._compile()

    @classmethod
    def of_file(cls, filename: str) -> Optional["Source"]:
        """The source of what was compiled under this name; None: there is none, or not of this Python."""
        try:
            return cls(ast.parse("".join(linecache.getlines(filename))), filename)
        except (OSError, SyntaxError, ValueError, RecursionError):
            return None

    def take_out(
        self,
        numbers: Iterator[int],
        of_module: bool = False,
    ) -> List[bodies.Host]:
        """Put branches into the functions, and in front of the module's own loops if they are asked for."""

        def chosen(function: outline.Function) -> bool:
            return (function.name, outline.first_line(function)) in self._versions

        hosts = bodies.outlined(self.tree, numbers, chosen, of_module)
        if hosts:
            self.hosts += hosts
            self._compile()
        return hosts

    def key(self, code: Any) -> Optional[Key]:
        """By what a function of this code is found here; None: it is not of this source."""
        key = code.co_name, code.co_firstlineno
        return key if code in self._versions.get(key, ()) else None

    def newest(self, key: Key) -> Any:
        """The code of a function, its loops taken out."""
        return self._versions[key][-1]

    def _compile(self) -> None:
        waiting = [compile(self.tree, self._filename, "exec", dont_inherit=True)]
        while waiting:
            code = waiting.pop()
            versions = self._versions.setdefault((code.co_name, code.co_firstlineno), [])
            if code not in versions:
                versions.append(code)
            waiting.extend(constant for constant in code.co_consts if hasattr(constant, "co_code"))

"""Files of a program, and the code of their functions before and after branches were put in front of loops."""

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
    """Return True if a file belongs to an installed package, and not to the program."""
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
        self._versions: Dict[Key, List[Any]] = {}  # a function's code, first the program's
        self._compile()

    @classmethod
    def of_file(cls, filename: str) -> Optional["Source"]:
        """Return the source of a file, or None if there is no source that this Python can parse."""
        try:
            return cls(ast.parse("".join(linecache.getlines(filename))), filename)
        except (OSError, SyntaxError, ValueError, RecursionError):
            return None

    def take_out(
        self,
        numbers: Iterator[int],
        of_module: bool = False,
    ) -> List[bodies.Host]:
        """Put branches into the functions, and with ``of_module`` in front of the loops of the module itself."""

        def chosen(function: outline.Function) -> bool:
            return (function.name, outline.first_line(function)) in self._versions

        hosts = bodies.outlined(self.tree, numbers, chosen, of_module)
        if hosts:
            self.hosts += hosts
            self._compile()
        return hosts

    def key(self, code: Any) -> Optional[Key]:
        """Return the key of the function with this code, or None if the function is not in this source."""
        key = code.co_name, code.co_firstlineno
        return key if code in self._versions.get(key, ()) else None

    def newest(self, key: Key) -> Any:
        """Return the code of a function, with branches in front of its loops."""
        return self._versions[key][-1]

    def _compile(self) -> None:
        waiting = [compile(self.tree, self._filename, "exec", dont_inherit=True)]
        while waiting:
            code = waiting.pop()
            versions = self._versions.setdefault((code.co_name, code.co_firstlineno), [])
            if code not in versions:
                versions.append(code)
            waiting.extend(constant for constant in code.co_consts if hasattr(constant, "co_code"))

"""``clang++ -fsyntax-only`` on machines without clang++, by libclang (``pip install libclang``).

    python csrc/ipu_model/popc/check.py -std=c++17 -Wall -Werror -I csrc -fsyntax-only custom_ops/common.cpp

Take clang++'s options and one file, print Clang's messages, and fail on errors and, with -Werror, on warnings. Standard
headers are those of the host's compiler, without the intrinsics, which only GCC compiles.
"""

import sys

from popc import PopcError, system_includes


def main(arguments):
    from clang import cindex

    options = ["-x", "c++", "-nostdinc", "-U__SSE2__", "-U__AVX__"]
    options += [f"-isystem{folder}" for folder in system_includes("c++")]
    try:
        unit = cindex.Index.create().parse(None, args=[*options, *arguments])
    except cindex.TranslationUnitLoadError:
        print("check.py: libclang does not accept these options, or the file does not exist", file=sys.stderr)
        return 1
    for item in unit.diagnostics:
        print(item.format(), file=sys.stderr)
    return 1 if any(item.severity >= cindex.Diagnostic.Error for item in unit.diagnostics) else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except PopcError as error:
        sys.exit(str(error))

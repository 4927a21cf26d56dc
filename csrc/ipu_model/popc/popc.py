"""The host's popc step: find the codelets of a C++ file and write their table for the IPU model.

    python csrc/ipu_model/popc/popc.py            # csrc/vertices -> csrc/ipu_model/codelets_*.cpp
    python csrc/ipu_model/popc/popc.py --check    # fail if a table is not up to date
    python csrc/ipu_model/popc/popc.py adder_codelets.cpp -o adder_table.cpp

A codelet is a class that derives from poplar::Vertex or poplar::MultiVertex and is no template, or an explicit
instantiation of a template. It is registered with its public fields and the name that Graph::addVertex takes, with all
template arguments. libclang (``pip install libclang``) parses sources as popc would: with ``__POPC__`` and lanes of a
float2.
"""

import argparse
import contextlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

CSRC = Path(__file__).resolve().parent.parent.parent
ROOT = CSRC.parent
INCLUDES = [CSRC, CSRC / "ipu_model" / "poplar" / "include"]
BASES = ("poplar::Vertex", "poplar::MultiVertex")


class PopcError(RuntimeError):
    """A source that popc would refuse; the message names file, class and field."""


def system_includes(compiler):
    """Return the folders of the compiler's standard headers, because libclang has none."""
    done = subprocess.run([compiler, "-E", "-x", "c++", "-v", "/dev/null"], capture_output=True, text=True)
    lines = done.stderr.splitlines()
    begin, end = "#include <...> search starts here:", "End of search list."
    if begin not in lines or end not in lines:
        raise PopcError(f"{compiler} does not tell where its headers are: {done.stderr.strip()[:200]}")
    return [line.strip() for line in lines[lines.index(begin) + 1 : lines.index(end)]]


def split_arguments(name):
    """'a::B<c, d<e, f>>' -> ['c', 'd<e, f>']"""
    if "<" not in name:
        return []
    inner = name[name.index("<") + 1 : name.rindex(">")]
    parts, depth = [""], 0
    for character in inner:
        depth += {"<": 1, ">": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def qualified(cursor):
    names = []
    while cursor is not None and cursor.kind.name != "TRANSLATION_UNIT":
        names.append(cursor.spelling)
        cursor = cursor.semantic_parent
    return "::".join(reversed([name for name in names if name]))


@contextlib.contextmanager
def generated():
    """Yield a folder with the header of the generated neurons."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "_generator", folder], cwd=ROOT / "snnipu", check=True)
        yield folder


class Reader:
    """The codelets of one source file."""

    def __init__(self, source, compiler="c++", includes=()):
        from clang import cindex

        self.cindex = cindex
        self.source = Path(source).resolve()
        arguments = ["-x", "c++", "-std=c++17", "-D__POPC__", "-DSNNIPU_LANE_BYTES=8", "-nostdinc"]
        # A tile does not have the host's vector registers.
        arguments += ["-U__SSE2__", "-U__AVX__"]
        arguments += [f"-I{folder}" for folder in (*INCLUDES, *includes)]
        arguments += [f"-isystem{folder}" for folder in system_includes(compiler)]
        self.unit = cindex.Index.create().parse(str(self.source), args=arguments)
        errors = [str(item) for item in self.unit.diagnostics if item.severity >= cindex.Diagnostic.Error]
        if errors:
            raise PopcError("\n".join(errors))

    def template_of(self, cursor):
        template = self.cindex.conf.lib.clang_getSpecializedCursorTemplate(cursor)
        return template if template is not None and template.spelling else None

    def is_codelet(self, cursor):
        declared = self.template_of(cursor) or cursor
        kinds = self.cindex.CursorKind
        bases = [
            child.type.get_canonical().spelling
            for child in declared.get_children()
            if child.kind == kinds.CXX_BASE_SPECIFIER
        ]
        return any(base in BASES for base in bases)

    def enumerator(self, enum_type, value):
        enum = enum_type.get_canonical().get_declaration()
        for child in enum.get_children():
            if child.enum_value == value:
                return f"{qualified(enum)}::{child.spelling}"
        raise PopcError(f"{qualified(enum)} has no value {value}")

    def argument(self, cursor, index, parameter):
        try:
            kind = cursor.get_template_argument_kind(index)
        except ValueError:
            kind = None  # a template, for which libclang has no kind in Python
        if kind == self.cindex.TemplateArgumentKind.TYPE:
            return cursor.get_template_argument_type(index).get_canonical().spelling
        if kind == self.cindex.TemplateArgumentKind.INTEGRAL:
            value = cursor.get_template_argument_value(index)
            parameter_type = parameter.type.get_canonical()
            if parameter_type.kind == self.cindex.TypeKind.ENUM:
                return self.enumerator(parameter_type, value)
            return str(bool(value)).lower() if parameter_type.kind == self.cindex.TypeKind.BOOL else str(value)
        raise PopcError(
            f"{cursor.displayname}: template parameter {parameter.spelling} is neither a type nor a number: popc's "
            "spelling of such an argument is unknown"
        )

    def name(self, cursor):
        """Return the name with all template arguments, including defaults."""
        template = self.template_of(cursor)
        base = qualified(cursor)
        if template is None:
            return base
        kinds = self.cindex.CursorKind
        parameters = [
            child
            for child in template.get_children()
            if child.kind
            in (kinds.TEMPLATE_TYPE_PARAMETER, kinds.TEMPLATE_NON_TYPE_PARAMETER, kinds.TEMPLATE_TEMPLATE_PARAMETER)
        ]
        count = cursor.get_num_template_arguments()
        arguments = [self.argument(cursor, i, parameters[i]) for i in range(count)]
        name = f"{base}<{', '.join(arguments)}>"
        # Clang omits default arguments, and the namespace of an enumerator.
        printed = split_arguments(cursor.type.get_canonical().spelling)
        if not all(full == short or full.endswith(f"::{short}") for full, short in zip(arguments, printed)):
            raise PopcError(f"{name}: Clang prints {cursor.type.get_canonical().spelling}")
        return name

    def fields(self, cursor):
        names = []
        for field in cursor.type.get_fields():
            if field.access_specifier != self.cindex.AccessSpecifier.PUBLIC:
                raise PopcError(f"{self.source.name}: field {field.spelling} of {cursor.displayname} is not public")
            names.append(field.spelling)
        return names

    def codelets(self):
        """Return (name, base name without arguments, fields) of each codelet, in the order of the source."""
        kinds = self.cindex.CursorKind
        classes = (kinds.CLASS_DECL, kinds.STRUCT_DECL)
        codelets = []

        def walk(cursor):
            for child in cursor.get_children():
                if child.location.file is None or Path(child.location.file.name).resolve() != self.source:
                    continue
                if child.kind == kinds.NAMESPACE:
                    walk(child)
                elif child.kind in classes and child.is_definition() and self.is_codelet(child):
                    codelets.append((self.name(child), qualified(child), self.fields(child)))

        walk(self.unit.cursor)
        return codelets


def table(source, include, file, compiler="c++", includes=()):
    """Return the table of ``source``, which it includes as ``include``, for the codelet file ``file``."""
    codelets = Reader(source, compiler, includes).codelets()
    fields = {}
    for name, base, names in codelets:
        if fields.setdefault(base, names) != names:
            raise PopcError(f"{name} has other fields than another {base}")
    lines = [
        f"// Written by csrc/ipu_model/popc/popc.py from {include}; not to be edited.",
        "// clang-format off",
        "#define __POPC__ 1",
        "#if !defined(SNNIPU_LANE_BYTES)",
        "#define SNNIPU_LANE_BYTES 8",
        "#endif",
        f'#include "{include}"',
        "",
        '#include "ipu_model/codelet.hpp"',
        "",
        "#define SNNIPU_CODELET(FIELDS, ...) FIELDS<__VA_ARGS__>(#__VA_ARGS__)",
        "",
        "namespace {",
        "",
        "using snnipu::ipu_model::Codelet;",
        "using snnipu::ipu_model::CodeletOf;",
        "",
    ]
    function = {base: "fieldsOf" + "".join(part[:1].upper() + part[1:] for part in base.split("::")) for base in fields}
    for base, names in fields.items():
        lines.append(f"template <typename V> Codelet {function[base]}(const char *name) {{")
        lines.append("  return CodeletOf<V>(name)" + "".join(f'\n      .field("{n}", &V::{n})' for n in names) + ";")
        lines += ["}", ""]
    # The name is unique, because setup.py compiles several tables as one file.
    registration = "registrationOf_" + re.sub(r"\W", "_", Path(source).name.split(".")[0])
    lines.append(f'const snnipu::ipu_model::CodeletRegistration {registration}("{file}", {{')
    lines += [f"    SNNIPU_CODELET({function[base]}, {name})," for name, base, _ in codelets]
    lines += ["});", "", "} // namespace", ""]
    return "\n".join(lines)


def vertex_tables(compiler="c++"):
    """Return path -> text of the tables for the files of csrc/vertices that have codelets."""
    tables = {}
    with generated() as folder:
        for source in sorted((CSRC / "vertices").glob("*.cpp")):
            if re.search(r"public poplar::(Multi)?Vertex", source.read_text()):
                path = CSRC / "ipu_model" / f"codelets_{source.stem}.cpp"
                text = table(source, f"vertices/{source.name}", "snnipu", compiler, [folder])
                if "SNNIPU_CODELET(f" in text:
                    tables[path] = text
    return tables


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", nargs="?", help="a codelet file; without one, those of csrc/vertices")
    parser.add_argument("-o", "--output", help="the table to write")
    parser.add_argument("--file", help="name for Graph::addCodelets; by default the source's, without endings")
    parser.add_argument("--include", help="how the table includes the source; by default its name")
    parser.add_argument("--compiler", default="c++", help="whose standard headers are used")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a table is not up to date")
    options = parser.parse_args()
    if options.source:
        if not options.output:
            parser.error("-o is missing")
        source = Path(options.source)
        name = options.file or source.name.split(".")[0]
        tables = {Path(options.output): table(source, options.include or source.name, name, options.compiler)}
    else:
        tables = vertex_tables(options.compiler)
    stale = [path for path, text in tables.items() if not path.is_file() or path.read_text() != text]
    if options.check:
        for path in stale:
            print(f"{path} is not up to date: run {Path(__file__).name}", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(tables[path])
        print(path)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PopcError as error:
        sys.exit(str(error))

"""The printer of the Triton kernels that loop over time: ``name_fwd_kernel`` and ``name_bwd_kernel``.

A program keeps the states of a block of elements (one neuron of one sample each) in registers over all steps. Loads are
prefetched by AHEAD steps, so AHEAD rows are in registers. Moving a row to another register would wait for its load. The
loops are therefore unrolled by AHEAD steps, and no row is moved. The number of steps and all sizes are arguments at run
time; a kernel is compiled for its options and dtypes.
"""

from typing import Callable, List, NamedTuple, Sequence

from .neuron import Neuron

# Number of rows that are prefetched, and of steps in the body of a loop.
AHEAD = 4


class _Stream(NamedTuple):
    """A tensor that is read row by row; ``row(index)`` is the code of a load."""

    name: str
    row: Callable[[str], str]

    def start(self, index: Callable[[int], str]) -> List[str]:
        """Return the loads of the first rows; ``index(n)`` is the code of the index of row n."""
        return [f"{self.name}{n} = {self.row(index(n))}" for n in range(AHEAD)]

    def advance(self, index: str) -> List[str]:
        """Return the lines that move to the next row and prefetch the row ``index``."""
        moves = [f"{self.name}{n} = {self.name}{n + 1}" for n in range(AHEAD - 1)]
        return [f"coming = {self.row(index)}", *moves, f"{self.name}{AHEAD - 1} = coming"]


def _in(lines: Sequence[str]) -> List[str]:
    return [f"    {line}" for line in lines]


def _if(condition: str, lines: Sequence[str]) -> List[str]:
    return [f"if {condition}:", *_in(lines)]


def _row(pointer: str, index: str) -> str:
    return f"_row({pointer}, {index}, steps, elements, offsets)"


def _repeated(pointer: str, index: str, rows: str) -> str:
    return f"_repeated({pointer}, {index}, steps, elements, offsets, {rows})"


def forward_arguments(neuron: Neuron) -> List[str]:
    """Return the names of the tensors and sizes of the forward kernel, in order."""
    s, p = range(len(neuron.states)), range(max(1, len(neuron.parameters)))
    names = ["x", *(f"initial{n}" for n in s), *(f"given{n}" for n in p), "spk"]
    return [*names, *(f"kept{n}" for n in s), *(f"final{n}" for n in s), "steps", "units", *(f"count{n}" for n in p)]


def backward_arguments(neuron: Neuron) -> List[str]:
    """Return the names of the tensors, sizes and numbers of the backward kernel, in order."""
    s, p = range(len(neuron.states)), range(max(1, len(neuron.parameters)))
    names = ["x", *(f"initial{n}" for n in s), *(f"kept{n}" for n in s), *(f"given{n}" for n in p), "grad_spk"]
    names += [*(f"upstream{n}" for n in s), *(f"grad_final{n}" for n in s), "into_x"]
    names += [*(f"into{n}" for n in s), *(f"total{n}" for n in p), "steps", "units", *(f"count{n}" for n in p)]
    return [*names, "p_high", "p_low", "q_high", "q_low"]


def _loop(index: str, lines: Sequence[str], unrolls: bool) -> List[str]:
    steps = f"tl.range(0, steps, loop_unroll_factor={AHEAD})" if unrolls else "range(0, steps)"
    return [f"for {index} in {steps}:", *_in(lines)]


def _kernel(name: str, arguments: Sequence[str], constants: Sequence[str], body: Sequence[str]) -> str:
    numbers = [a for a in arguments if a in ("steps", "units") or a.startswith(("count", "p_", "q_"))]
    constants = ["UNIT", "BLOCK", "WIDE", "VARIANT", "PER_ELEMENT", "CONSTANT_INPUT", *constants]
    head = f"@triton.jit(do_not_specialize=[{', '.join(map(repr, numbers))}])"
    signature = ", ".join([*arguments, *(f"{constant}: tl.constexpr" for constant in constants)])
    return "\n".join([head, f"def {name}({signature}):", *_in(body)])


def _begin(neuron: Neuron) -> List[str]:
    return [
        # The product with UNIT lets the compiler deduce the alignment of rows.
        "elements = units.to(tl.int64) * UNIT",
        "offsets = _offsets(0, BLOCK, WIDE)",
        "mask = offsets < elements",
        "zeros = (offsets * 0).to(given0.dtype.element_ty)",
        *(
            f"parameter{n} = tl.broadcast_to(_parameter(given{n}, count{n}, offsets, mask, PER_ELEMENT), (BLOCK,))"
            for n in range(len(neuron.parameters))
        ),
    ]


def print_kernels(neuron: Neuron, name: str, unrolls: bool) -> List[str]:
    """Return both kernels; they call the functions ``name_step`` and ``name_adjoint``."""
    return [_forward(neuron, name, unrolls), _backward(neuron, name, unrolls)]


def _forward(neuron: Neuron, name: str, unrolls: bool) -> str:
    states = range(len(neuron.states))
    parameters = [f"parameter{n}" for n in range(len(neuron.parameters))]
    current = _Stream("x", lambda index: _row("x", index))
    body = _begin(neuron)
    for s in states:
        body += [f"state{s} = zeros"]
        body += _if(f"HAS_INITIAL{s}", [f"state{s} = tl.load(initial{s} + offsets, mask=mask, other=0.0)"])
    body += ["x0 = " + current.row("0")]
    body += _if("not CONSTANT_INPUT", current.start(str))
    before = ", ".join(f"state{s}" for s in states)
    loop = [
        "current = x0.to(zeros.dtype)",
        *_if("not CONSTANT_INPUT", current.advance(f"t + {AHEAD}")),
        f"fired, {before} = {name}_step({', '.join(['current', before, *parameters])}, x, VARIANT)",
        "row = t * elements + offsets",
        *_if("STORE_SPK", ["tl.store(spk + row, fired.to(spk.dtype.element_ty), mask=mask)"]),
    ]
    for s in states:
        loop += _if(f"KEEP{s}", [f"tl.store(kept{s} + row, state{s}.to(kept{s}.dtype.element_ty), mask=mask)"])
    body += _loop("t", loop, unrolls)
    body += _if("STORE_FINAL", [f"tl.store(final{s} + offsets, state{s}, mask=mask)" for s in states])
    constants = [*(f"HAS_INITIAL{s}" for s in states), *(f"KEEP{s}" for s in states), "STORE_SPK", "STORE_FINAL"]
    return _kernel(f"{name}_fwd_kernel", forward_arguments(neuron), constants, body)


def _backward(neuron: Neuron, name: str, unrolls: bool) -> str:
    states, parameters = range(len(neuron.states)), range(len(neuron.parameters))
    current = _Stream("x", lambda index: _row("x", index))
    spk = _Stream("g", lambda index: _repeated("grad_spk", index, "SPK_ROWS"))
    befores = [_Stream(f"m{s}_", lambda index, s=s: _row(f"kept{s}", index)) for s in states]  # type: ignore[misc]
    seeds = [
        _Stream(f"h{s}_", lambda index, s=s: _repeated(f"upstream{s}", index, f"ROWS{s}"))  # type: ignore[misc]
        for s in states
    ]
    body = [*_begin(neuron), "p = (zeros + p_high) + p_low", "q = (zeros + q_high) + q_low", "last = steps - 1"]
    body += ["sum_x = zeros", *(f"sum{n} = zeros" for n in parameters)]
    for s in states:
        # The gradient of the states after the last step starts with their upstream gradients. Seeds add those of the
        # other steps.
        body += [f"carry{s} = zeros", f"after{s} = zeros"]
        body += _if(f"HAS_FINAL{s}", [f"carry{s} = tl.load(grad_final{s} + offsets, mask=mask, other=0.0)"])
        after = f"after{s} = {befores[s].row('last')}.to(zeros.dtype)"
        body += _if(f"READ{s}", [after, *befores[s].start(lambda n: f"last - {n + 1}")])
        begin = [f"carry{s} = carry{s} + {seeds[s].row('last')}.to(zeros.dtype)"]
        body += _if(f"HAS_UPSTREAM{s}", [*begin, *seeds[s].start(lambda n: f"last - {n + 1}")])
    body += _if("HAS_GRAD_SPK", spk.start(lambda n: f"last - {n}"))
    body += _if("READ_X", ["x0 = " + current.row("0")])
    body += _if("READ_X and not CONSTANT_INPUT", current.start(lambda n: f"last - {n}"))
    loop = ["t = last - back", "current = zeros", "from_spk = zeros"]
    loop += _if("READ_X", ["current = x0.to(zeros.dtype)"])
    loop += _if("READ_X and not CONSTANT_INPUT", current.advance(f"t - {AHEAD}"))
    loop += _if("HAS_GRAD_SPK", ["from_spk = g0.to(zeros.dtype)", *spk.advance(f"t - {AHEAD}")])
    for s in states:
        # A row before the first step is loaded as zeros, so the initial state can be added.
        first = ["length = elements * (t == 0).to(tl.int64)"]
        first += [f"before{s} = before{s} + tl.load(initial{s} + offsets, mask=offsets < length, other=0.0)"]
        loop += [f"before{s} = zeros", f"seed{s} = zeros"]
        loop += _if(f"READ{s}", [f"before{s} = m{s}_0.to(zeros.dtype)", *befores[s].advance(f"t - {1 + AHEAD}")])
        loop += _if(f"READ{s} and HAS_INITIAL{s}", first)
        loop += _if(f"HAS_UPSTREAM{s}", [f"seed{s} = h{s}_0.to(zeros.dtype)", *seeds[s].advance(f"t - {1 + AHEAD}")])
    given = ["current", *(f"before{s}" for s in states), *(f"after{s}" for s in states)]
    given += [f"parameter{n}" for n in parameters]
    given += ["from_spk", *(f"carry{s}" for s in states), *(f"seed{s}" for s in states)]
    results = ["grad_x", *(f"carry{s}" for s in states), *(f"term{n}" for n in parameters)]
    call = f"{name}_adjoint({', '.join(given)}, x, p, q, VARIANT, SURROGATE, PARAMETERS)"
    loop += [f"{', '.join(results)} = {call}", *(f"after{s} = before{s}" for s in states)]
    for n in parameters:
        loop += _if(f"NEED{n}", [f"sum{n} = sum{n} + term{n}"])
    store = "tl.store(into_x + t * elements + offsets, grad_x.to(into_x.dtype.element_ty), mask=mask)"
    loop += ["if CONSTANT_INPUT:", "    sum_x = sum_x + grad_x", "else:", f"    {store}"]
    body += _loop("back", loop, unrolls)
    body += _if("CONSTANT_INPUT", ["tl.store(into_x + offsets, sum_x.to(into_x.dtype.element_ty), mask=mask)"])
    for s in states:
        body += _if(f"NEED_INITIAL{s}", [f"tl.store(into{s} + offsets, carry{s}, mask=mask)"])
    for n in parameters:
        body += _if(f"NEED{n}", [f"_store_sum(total{n}, sum{n}, offsets, mask, PER_ELEMENT)"])
    constants = ["SURROGATE", "PARAMETERS", "READ_X", "HAS_GRAD_SPK", "SPK_ROWS"]
    for kind in ("READ", "HAS_INITIAL", "HAS_UPSTREAM", "ROWS", "HAS_FINAL", "NEED_INITIAL"):
        constants += [f"{kind}{s}" for s in states]
    constants += [f"NEED{n}" for n in parameters]
    return _kernel(f"{name}_bwd_kernel", backward_arguments(neuron), constants, body)

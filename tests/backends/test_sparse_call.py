"""Calls of the C functions of csrc/host/sparse.h."""

import types

import pytest
import torch
from support.tables import assert_refused, each_row

from snnipu.backends import host, sparse_call

pytestmark = pytest.mark.skipif(host.library is None, reason=f"no native library: {host.unavailable_reason}")

SIZES = {"steps": 1, "batch": 1, "slots": 2, "cells": 1, "neurons": 4}


def slots():
    return {
        "ids": torch.tensor([[[3, 1]]], dtype=torch.int32),
        "values": torch.tensor([[[2.0, 5.0]]]),
        "counts": torch.tensor([[[2, 2]]], dtype=torch.int32),
    }


@each_row(r"""
run(out=torch.empty(1, 8)[:, ::2]) | ValueError: out must be a contiguous .* got torch.float32 of shape \(1, 4\)
run(ids=slots["ids"].long()) | TypeError: ids must be a contiguous torch
run(values=slots["values"].double()) | TypeError: values must be a contiguous torch
run(counts=slots["counts"][..., :1]) | ValueError: counts must be a contiguous torch
run(out=torch.empty(1, 3)) | ValueError: out must be a contiguous torch
run(out=torch.empty(1, 4, device="meta")) | ValueError: out must be a contiguous torch
run(torch.float16) | TypeError: takes float32 and float64, got torch.float16
run(threshold_size=1.0) | KeyError: threshold_size
run(input_scale=1) | KeyError: input_scale
run(beta=0.5) | KeyError: beta
run(no_such_field=1) | KeyError: no_such_field
""")
def test_fields_that_do_not_fit_are_refused(row):
    def run(dtype=torch.float32, **wrong):
        sparse_call.run("sparse_to_dense_fwd", dtype, {"out": torch.empty(1, 4), **slots(), **SIZES, **wrong})

    assert_refused(row, globals(), run=run, slots=slots())


def test_a_library_with_another_struct_is_refused():
    size = host.library.snnipu_sparse_call_size() + 8
    other = types.SimpleNamespace(snnipu_sparse_call_size=lambda: size)
    other.snnipu_sparse_call_size.restype = None
    with pytest.raises(host.NativeLibraryError, match="snnipu_sparse_call has another size in the library"):
        sparse_call.declare_functions(other)

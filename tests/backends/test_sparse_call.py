"""Calls of the C functions of csrc/host/sparse.h."""

import types

import pytest
import torch

from snnipu.backends import host, sparse_call

pytestmark = pytest.mark.skipif(host.library is None, reason=f"no native library: {host.unavailable_reason}")

SIZES = {"steps": 1, "batch": 1, "slots": 2, "cells": 1, "neurons": 4}


def slots():
    return {
        "ids": torch.tensor([[[3, 1]]], dtype=torch.int32),
        "values": torch.tensor([[[2.0, 5.0]]]),
        "counts": torch.tensor([[[2, 2]]], dtype=torch.int32),
    }


def test_what_is_not_contiguous_is_not_written():
    with pytest.raises(ValueError, match=r"out must be a contiguous .* got torch.float32 of shape \(1, 4\)"):
        sparse_call.run("sparse_to_dense_fwd", torch.float32, {"out": torch.empty(1, 8)[:, ::2], **slots(), **SIZES})


@pytest.mark.parametrize(
    ("field", "wrong", "error"),
    [
        ("ids", lambda tensor: tensor.long(), TypeError),
        ("values", lambda tensor: tensor.double(), TypeError),
        ("counts", lambda tensor: tensor[..., :1], ValueError),
        ("out", lambda tensor: tensor[:, :3], ValueError),
        ("out", lambda tensor: tensor.to("meta"), ValueError),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused(field, wrong, error):
    fields = {"out": torch.empty(1, 4), **slots(), **SIZES}
    fields[field] = wrong(fields[field])
    with pytest.raises(error, match=f"{field} must be a contiguous torch"):
        sparse_call.run("sparse_to_dense_fwd", torch.float32, fields)


def test_a_dtype_that_no_function_takes_is_refused():
    with pytest.raises(TypeError, match=r"takes float32 and float64, got torch.float16"):
        sparse_call.run("sparse_to_dense_fwd", torch.float16, {"out": torch.empty(1, 4), **slots(), **SIZES})


@pytest.mark.parametrize("wrong", [{"threshold_size": 1.0}, {"input_scale": 1}, {"beta": 0.5}, {"no_such_field": 1}])
def test_a_field_of_another_kind_is_refused(wrong):
    with pytest.raises(KeyError, match=next(iter(wrong))):
        sparse_call.run("sparse_to_dense_fwd", torch.float32, {"out": torch.empty(1, 4), **slots(), **SIZES, **wrong})


def test_a_library_with_another_struct_is_refused():
    size = host.library.snnipu_sparse_call_size() + 8
    other = types.SimpleNamespace(snnipu_sparse_call_size=lambda: size)
    other.snnipu_sparse_call_size.restype = None
    with pytest.raises(host.NativeLibraryError, match="snnipu_sparse_call has another size in the library"):
        sparse_call.declare_functions(other)

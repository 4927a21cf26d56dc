"""Wrapping, compiling, running and unwrapping models."""

import copy
import pickle

import pytest
import torch
from support.poptorch_models import model_of, options, refused, training, warnings_in
from support.tables import assert_refused, each_row
from torch import nn

from snnipu import poptorch
from snnipu.poptorch import inferenceModel, trainingModel


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(4, 3)
        self.drop = nn.Dropout(0.5)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, x, y=None):
        out = self.fc(x)
        return out if y is None else (out, self.criterion(out, y))


X = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
Y = torch.arange(8) % 3


# Losses.


def with_losses(losses):
    def forward(self, x):
        out = self.fc(x)
        return out, losses(out)

    return model_of(forward, fc=nn.Linear(4, 3))


def mse(out):
    return nn.functional.mse_loss(out, torch.ones_like(out))


@each_row("""
mse(out)
poptorch.identity_loss(mse(out) + 2 * mse(out), "none")
poptorch.identity_loss(out, "mean")
poptorch.identity_loss(poptorch.identity_loss(out, "none") ** 2, "sum")
(poptorch.identity_loss(mse(out), "none") * 3, "not even a tensor")[1]
""")
def test_the_final_loss_is_found(row):
    model = with_losses(eval(f"lambda out: {row}"))
    before = copy.deepcopy(model.state_dict())
    trained = trainingModel(model)
    for _ in range(2):
        trained(X)
    assert not torch.equal(model.fc.weight, before["fc.weight"])


def test_the_loss_need_not_be_returned():
    def forward(self, x):
        out = self.fc(x)
        mse(out)
        return out

    model = model_of(forward, fc=nn.Linear(4, 3))
    reference = copy.deepcopy(model)
    training(model, "SGD", lr=0.1)[0](X)
    mse(reference(X)).backward()
    torch.testing.assert_close(model.fc.weight, reference.fc.weight - 0.1 * reference.fc.weight.grad)


@each_row("""
out.sum() | forward computes no loss
mse(out) + mse(out) * 5 | computes 2 losses of which 2 are independent
(poptorch.identity_loss(out, "mean"), mse(out)) | computes 2 losses of which 2 are independent
poptorch.identity_loss(out, "none") | must be a scalar, got shape
mse(out.detach()) | no parameter that requires a gradient
""")
def test_a_loss_that_cannot_be_found_or_used_is_refused(row):
    losses, message = row.split(" | ")
    model = trainingModel(with_losses(eval(f"lambda out: {losses}")))
    for run in (model.compile, model):
        with refused(message):
            run(X)
    assert not model.isCompiled()


def test_a_model_without_weights_to_train_runs():
    model = with_losses(mse).requires_grad_(False)
    out, loss = trainingModel(model)(X)
    torch.testing.assert_close(loss, mse(out))


def test_an_unknown_reduction_names_the_argument():
    with refused("reduction 'sum', 'mean' or 'none', got 'max'"):
        poptorch.identity_loss(torch.ones(2), "max")


def test_identity_loss_outside_wrappers_only_reduces():
    x = torch.arange(4.0)
    assert poptorch.identity_loss(x, "sum") == 6
    assert poptorch.identity_loss(x, "mean") == 1.5
    assert torch.equal(poptorch.identity_loss(x, reduction="none"), x)


# Wrapping.


def test_wrapping_twice_is_refused_until_destroyed():
    model = Net()
    wrapped = trainingModel(model)
    for again in (model, wrapped):
        with refused("Model has already been wrapped"):
            trainingModel(again)
    with pytest.raises(RuntimeError, match=r"Call model.destroy\(\)"):  # the class that PopTorch raises
        trainingModel(model)
    assert isinstance(model, Net)
    model.destroy()
    assert type(model) is Net
    trainingModel(model)(X, Y)


def test_a_destroyed_model_must_be_compiled_again():
    wrapped = trainingModel(Net())
    wrapped(X, Y)
    wrapped.destroy()
    assert not wrapped.isCompiled()
    with refused("the model is not compiled"):
        wrapped.copyWeightsToHost()
    wrapped.compile(X[:4], Y[:4])
    assert wrapped.isCompiled()


def test_weights_are_shared_by_model_training_and_inference():
    model = Net()
    trained, _ = training(model, "SGD", lr=1.0)
    inference = inferenceModel(trained)
    before = inference(X)
    trained(X, Y)
    after = inference(X)
    assert not torch.equal(before, after)
    assert torch.equal(after, nn.functional.linear(X, model.fc.weight, model.fc.bias))
    assert all(torch.equal(a, b) for a, b in zip(trained.parameters(), model.parameters()))
    trained.load_state_dict({name: torch.zeros_like(value) for name, value in model.state_dict().items()})
    assert not inference(X).any()
    assert list(trained.state_dict()) == list(model.state_dict())


def test_attributes_are_the_models_and_parameters_share_memory():
    wrapped = inferenceModel(nn.Linear(2, 2))
    assert wrapped.in_features == 2
    assert wrapped.weight.data_ptr() == wrapped.model.weight.data_ptr()
    assert isinstance(wrapped.weight, nn.Parameter)
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = wrapped.no_such_thing
    wrapped.weight.replicaGrouping(poptorch.CommGroupType.All, 0, poptorch.VariableRetrievalMode.OnePerGroup)
    with refused("replicaGrouping is not available"):
        wrapped.weight.replicaGrouping(poptorch.CommGroupType.NoGrouping, 0, poptorch.VariableRetrievalMode.OnePerGroup)


def test_copies_and_pickles_of_a_wrapped_model_have_the_original_class():
    model = Net()
    trainingModel(model)
    for other in (copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(other) is Net
        assert torch.equal(other.fc.weight, model.fc.weight)


@pytest.mark.parametrize("wrap", [trainingModel, inferenceModel])
def test_arguments_of_the_wrong_type_are_named(wrap):
    with refused(r"model: expected a torch\.nn\.Module, got .* of type function"):
        wrap(lambda x: x)
    with refused(r"options: expected a poptorch\.Options, got {} of type dict"):
        wrap(Net(), {})


def test_training_in_several_processes_needs_them_in_one_group():
    opts = poptorch.Options()
    opts.Distributed.configureProcessId(0, 2)
    with refused(r"training in 2 processes .* needs them in one group .* torchrun"):
        trainingModel(Net(), opts)


# Modes of modules, isRunningOnIpu, and changes that forward makes.


def test_is_running_on_ipu_only_inside_forward():
    seen = []

    def forward(self, x):
        seen.append((poptorch.isRunningOnIpu(), torch.is_grad_enabled()))
        return x

    model = inferenceModel(model_of(forward))
    model.compile(X)
    model(X)
    assert seen == [(True, False)] * 2
    assert not poptorch.isRunningOnIpu()
    assert not poptorch.ipuHardwareIsAvailable()
    with refused("there is no IPU"):
        poptorch.ipuHardwareVersion()


def test_the_number_of_pretended_ipus(monkeypatch):
    monkeypatch.setenv("SNNIPU_IPUS", "4")
    assert [poptorch.ipuHardwareIsAvailable(count) for count in (1, 4, 5)] == [True, True, False]
    assert poptorch.ipuHardwareVersion() == 2
    monkeypatch.setenv("SNNIPU_IPU_MODEL_TARGET", "bow:16")
    assert poptorch.ipuHardwareVersion() == 21
    monkeypatch.setenv("SNNIPU_IPUS", "-1")
    with refused("SNNIPU_IPUS: expected a number of IPUs, got '-1'"):
        poptorch.ipuHardwareIsAvailable()


def test_a_failing_forward_changes_no_state():
    model = inferenceModel(model_of(lambda self, x: {}["mine"]))
    with pytest.raises(KeyError, match="mine"):
        model(X)
    assert not poptorch.isRunningOnIpu()
    assert not model.isCompiled()


def test_modules_keep_the_mode_that_they_were_compiled_in():
    model = model_of(lambda self, x: self.drop(x), drop=nn.Dropout(0.5)).eval()
    compiled = inferenceModel(model)
    assert torch.equal(compiled(X), X)
    model.train()
    assert torch.equal(compiled(X), X)
    assert model.drop.training
    fresh = inferenceModel(model)
    assert not torch.equal(fresh(X), X)


def test_compile_changes_neither_weights_nor_statistics_nor_random_numbers():
    model = model_of(
        lambda self, x: poptorch.identity_loss(self.norm(self.fc(x) * torch.rand(1)), "sum"),
        fc=nn.Linear(4, 4),
        norm=nn.BatchNorm1d(4),
    )
    before = copy.deepcopy(model.state_dict())
    wrapped = trainingModel(model)
    state = torch.get_rng_state()
    wrapped.compile(X)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    wrapped(X)
    assert not torch.equal(model.norm.running_mean, before["norm.running_mean"])


def test_a_parameter_replaced_in_forward_is_refused():
    def forward(self, x):
        self.w = nn.Parameter(self.w * 2)
        return x * self.w

    with refused("Parameter w is reassigned within the model"):
        inferenceModel(model_of(forward, w=nn.Parameter(torch.ones(4))))(X)


# Inputs.


@pytest.mark.parametrize("wrap", [inferenceModel, trainingModel])
def test_changed_inputs_are_refused_and_named(wrap):
    model = wrap(Net())
    model(X, Y)
    with refused(r"input x: expected shape torch.Size\(\[8, 4\]\) but got torch.Size\(\[4, 4\]\).*destroy"):
        model(X[:4], Y)
    with refused(r"input x: expected torch.float32 but got torch.float16"):
        model(X.half(), Y)
    with refused(r"input y: expected a Tensor but got a NoneType"):
        model(X)
    model.destroy()
    model(X[:4], Y[:4])


def test_arguments_are_matched_to_the_parameters_of_forward():
    def forward(self, a, *more, scale=1, **named):
        return a * scale + sum(more) + named.get("extra", 0)

    model = inferenceModel(model_of(forward))
    out = model(X, X, X, scale=2, extra=X)
    assert torch.allclose(out, 5 * X)
    with refused("input scale: expected 2 but got 3"):
        model(X, X, X, scale=3, extra=X)
    with refused(r"inputs: missing \['\*more\[1\]'\]"):
        model(X, X, scale=2, extra=X)
    with refused(r"inputs: missing \['extra'\]"):
        model(X, X, X, scale=2)


@each_row(r"""
inferenceModel(Net())() | poptorch.Error: forward: missing a required argument: 'x'
inferenceModel(Net())(X, Y, Y) | poptorch.Error: forward: too many positional arguments; its parameters are \['x', 'y'\]
inferenceModel(Net())(X, x=X) | poptorch.Error: forward: multiple values for argument 'x'
inferenceModel(Net())(X, z=Y) | poptorch.Error: forward: got an unexpected keyword argument 'z'
inferenceModel(Net())(X.to(torch.complex64)) | poptorch.Error: input x: IPUs have no type torch.complex64
inferenceModel(Net())(X[:0]) | poptorch.Error: input x: zero-sized tensors
""")
def test_wrong_arguments_of_forward_are_named(row):
    assert_refused(row, globals())


def test_inputs_inside_structures_are_split_and_checked():
    nested = model_of(lambda self, pair, table: pair[0] + table["b"])
    model = inferenceModel(nested, options(2))
    assert torch.equal(model((X, [Y]), {"b": X}), 2 * X)
    with refused(r"input pair\[1\]\[0\]: expected shape"):
        model((X, [Y[:4]]), {"b": X})
    with refused(r"input table\['b'\]: expected shape"):
        model((X, [Y]), {"b": X[:2]})


def test_custom_types_use_their_parser():
    class Pair:
        def __init__(self, first=None, second=None):
            self.first, self.second = first, second

    class PairParser(poptorch.ICustomArgParser):
        def yieldTensors(self, struct):
            yield struct.first
            yield struct.second

        def reconstruct(self, original_structure, tensor_iterator):
            return Pair(next(tensor_iterator), next(tensor_iterator))

    swap = model_of(lambda self, pair: Pair(pair.second, pair.first))
    poptorch.registerCustomArgParser(Pair, PairParser())
    try:
        model = inferenceModel(swap, options(2))
        out = model(Pair(X, 2 * X))
        assert torch.equal(out.first, 2 * X)
        assert torch.equal(out.second, X)
    finally:
        poptorch.registerCustomArgParser(Pair, None)
    with refused("arg_parser: expected an ICustomArgParser"):
        poptorch.registerCustomArgParser(Pair, object())


def test_inputs_that_require_gradients_are_detached_with_a_warning(caplog):
    model = inferenceModel(Net())
    with warnings_in(caplog):
        model(X.clone().requires_grad_())
        model(X.clone().requires_grad_())
    assert [record.message for record in caplog.records if "requires_grad" in record.message] == [
        "input x has requires_grad=True and is detached: a call runs its own backward"
    ]


# Outputs.


@pytest.mark.parametrize("wrap", [inferenceModel, trainingModel])
def test_backward_on_outputs_is_refused(wrap):
    out, loss = wrap(Net())(X, Y)
    for tensor in (out, loss):
        assert not tensor.requires_grad
        with refused(r"backward\(\): outputs of a PopTorch model carry no gradient"):
            tensor.backward()


def test_outputs_can_be_saved_and_turned_into_arrays(tmp_path):
    out = inferenceModel(Net())(X)
    assert out.numpy().shape == (8, 3)
    torch.save(out, tmp_path / "out.pt")
    assert torch.equal(torch.load(tmp_path / "out.pt"), out)


def test_an_output_is_not_the_input_or_a_weight():
    model = model_of(lambda self, x: (x, self.w), w=nn.Parameter(torch.ones(2)))
    x = torch.ones(4)
    out, weight = inferenceModel(model)(x)
    out.zero_()
    weight.zero_()
    assert x.all()
    assert model.w.all()


# Devices, files, hooks and warnings.


def test_attaching_and_detaching():
    model = inferenceModel(Net())
    with refused("the model is not compiled"):
        model.detachFromDevice()
    model.compile(X)
    assert model.isAttachedToDevice()
    with refused("is attached already"):
        model.attachToDevice()
    model.detachFromDevice()
    assert not model.isAttachedToDevice()
    with refused("is not attached"):
        model.detachFromDevice()
    model(X)
    assert model.isAttachedToDevice()
    assert model.copyWeightsToHostIfNeeded() is False
    model.copyWeightsToHost()
    model.copyWeightsToDevice()


def test_an_offline_target_compiles_and_refuses_to_run():
    model = inferenceModel(Net(), poptorch.Options().useOfflineIpuTarget())
    model.compile(X)
    assert model.isCompiled()
    assert not model.isAttachedToDevice()
    with refused(r"ConnectionType\.Never"):
        model(X)
    with refused(r"ConnectionType\.Never does not allow it"):
        model.attachToDevice()


def test_named_buffers_must_be_declared():
    def buffered():
        model = model_of(lambda self, x: x + self.offset)
        model.register_buffer("offset", torch.ones(1))
        return model

    plain = inferenceModel(buffered())
    plain(X)
    with refused("updatableNamedBuffers"):
        plain.copyNamedBuffersToDevice()
    model = inferenceModel(buffered(), poptorch.Options().updatableNamedBuffers(["offset"]))
    model(X)
    model.offset.add_(1)
    model.copyNamedBuffersToDevice()
    assert torch.equal(model(X), X + 2)
    with refused(r"no buffers \['ofset'\]"):
        inferenceModel(buffered(), poptorch.Options().updatableNamedBuffers(["ofset"]))(X)


def test_a_saved_training_model_continues_where_it_stopped(tmp_path):
    def run(model, times):
        return [float(model(X, Y)[1]) for _ in range(times)]

    file = str(tmp_path / "folder" / "model.poptorch")
    expected = run(training(Net(), "Adam", lr=0.1)[0], 5)
    first, _ = training(Net(), "Adam", lr=0.1)
    with refused("the model is not compiled"):
        first.save(file)
    losses = run(first, 2)
    first.save(file)
    second = poptorch.load(file)
    assert second.isCompiled()
    assert losses + run(second, 3) == expected
    with refused("input x: expected shape"):
        second(X[:4], Y[:4])


def test_an_exported_executable_loads_into_a_new_wrapper(tmp_path):
    file = str(tmp_path / "model.poptorch")
    inferenceModel(Net(), poptorch.Options().useOfflineIpuTarget()).compileAndExport(file, X)
    loaded = poptorch.load(file, lambda opts: opts.modelName("edited"))
    assert loaded.options.model_name == "edited"
    assert loaded(X).shape == (8, 3)
    other = inferenceModel(Net())
    other.compile(X[:4])
    other.save(file, export_model=False)
    with refused("export_model=False"):
        poptorch.load(file)
    again = inferenceModel(Net())
    again.loadExecutable(file)
    with refused("input x: expected shape"):
        again(X)
    for content in ([1], {"format": "snnipu.poptorch/1"}):
        (tmp_path / "other").write_bytes(pickle.dumps(content))
        with refused("was not written by this version"):
            poptorch.load(str(tmp_path / "other"))


def test_the_seed_makes_a_model_repeat_itself():
    def random():
        return model_of(lambda self, x: x + torch.rand_like(x))

    outs = [inferenceModel(random(), poptorch.Options().randomSeed(7))(X) for _ in range(2)]
    assert torch.equal(*outs)
    model = inferenceModel(random())
    model.compile(X)
    state = model.rng_state
    first = model(X)
    model.rng_state = state
    assert torch.equal(model(X), first)


def test_hooks_run_around_compiling_only():
    events = []
    with refused("expected a callable"):
        poptorch.registerPreCompileHook(1)
    handles = [
        poptorch.registerPreCompileHook(lambda: events.append("before")),
        poptorch.registerPostCompileHook(lambda: events.append("after")),
    ]
    model = inferenceModel(Net())
    model(X)
    model(X)
    for handle in handles:
        handle.remove()
    inferenceModel(Net())(X)
    assert events == ["before", "after"]


def test_methods_without_meaning_on_a_host_raise():
    model = inferenceModel(Net(), poptorch.Options().logCycleCount(True))
    with refused("the model is not compiled"):
        model.compilationTime()
    model(X)
    assert model.compilationTime().total_seconds() > 0
    with refused("not available in snnipu's host runtime"):
        model.cycleCount()


def test_compiling_twice_is_ignored_with_a_warning(caplog):
    model = inferenceModel(Net())
    model.compile(X)
    with warnings_in(caplog):
        model.compile(X)
    assert "compiled already" in caplog.text


def test_weights_changed_on_the_host_warn_until_copied(caplog):
    model = Net()
    trained, inference = trainingModel(model), inferenceModel(model)
    trained(X, Y)
    inference(X)
    with warnings_in(caplog):
        trained(X, Y)
        inference(X)
        trained.load_state_dict(model.state_dict())
        inference(X)
        with torch.no_grad():
            model.fc.bias.add_(1)
        inference.copyWeightsToDevice()
        inference(X)
        assert not caplog.records
        with torch.no_grad():
            model.fc.bias.add_(1)
        inference(X)
        inference(X)
    assert len(caplog.records) == 1
    assert "Weights were changed on the host (fc.bias)" in caplog.text

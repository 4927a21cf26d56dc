"""Small programs in the style of snnTorch's users; ``snn`` is the library that they import.

The docstring of a program is part of the titles of its tables.
"""

import torch
from snntorch import utils
from torch import nn
from torch.nn import functional

import snnipu

INPUTS, CLASSES = 784, 10
# Inputs of the programs that read one vector for each step, such as a sensor's values or an embedding.
CHANNELS = 64
# Output neurons of each class in population coding.
PER_CLASS = 10
# Weights and inputs are multiples of these, so that float32 sums of their products are exact in any order. Then no
# spike depends on the order of a matrix product's sums.
WEIGHT_GRID, INPUT_GRID = 2.0**-12, 2.0**-4
_WEIGHTED = (nn.Linear, nn.Conv2d, nn.ConvTranspose2d, nn.Embedding)


def sparse_pixels(*shape, generator):
    """Return random numbers between 0 and 1, four fifths of them 0."""
    x = torch.rand(shape, generator=generator)
    is_active = torch.rand(shape, generator=generator) < 0.2
    return (x / INPUT_GRID).round() * INPUT_GRID * is_active


def tutorial_loss(mem_rec, targets):
    """Return the tutorial's loss: the sum over the steps of the cross-entropy of the membranes."""
    loss = nn.CrossEntropyLoss()
    loss_val = torch.zeros((1), dtype=mem_rec.dtype, device=mem_rec.device)
    for step in range(mem_rec.shape[0]):
        loss_val += loss(mem_rec[step], targets)
    return loss_val


def batched_loss(mem_rec, targets):
    """Return the value of :func:`tutorial_loss` in one call: every step has the same number of samples."""
    steps = mem_rec.shape[0]
    return steps * functional.cross_entropy(mem_rec.flatten(0, 1), targets.repeat(steps))


def forward_pass(net, steps, data, frames):
    """Run the network step by step, like the tutorials' function of this name."""
    mem_rec = []
    spk_rec = []
    utils.reset(net)  # resets hidden states for all LIF neurons in net
    for step in range(steps):
        spk_out, mem_out = net(data[step] if frames else data)
        spk_rec.append(spk_out)
        mem_rec.append(mem_out)
    return torch.stack(spk_rec), torch.stack(mem_rec)


class Program(nn.Module):
    """A network and its training step. The docstring of each program names what it exemplifies.

    Attributes:
        trains: True if :meth:`step` includes the backward pass and the optimizer.
        rewrites: True if :class:`snnipu.MultiStep` can replace the loop.
        draws: True if :meth:`over_time` draws random numbers for all steps at once; on a CPU they are those of the
            loop.
        frames: True if the input has a vector, or a frame, for each step.
        recorded: index of the result of ``MultiStep`` that the loss reads: 0 for spikes, 1 for membranes.
        optimizer: the optimizer of the parameters.
    """

    trains = rewrites = draws = frames = False
    recorded = 0

    def __init__(self, snn, settings):
        super().__init__()
        self.snn, self.steps = snn, settings.steps

    @staticmethod
    def data(settings, generator):
        """Return the input of one training step."""
        return sparse_pixels(settings.batch_size, INPUTS, generator=generator)

    @staticmethod
    def terms(settings):
        """Return the number of terms of the longest gradient sum that a convolution may compute in one accumulator."""
        return 0

    def record(self, x):
        """Return the input of the loss, for all steps. This method, or one that it calls, has the loop over time."""
        return self.select(self(x))

    def select(self, out):
        return out[self.recorded] if isinstance(out, tuple) else out

    def loss(self, record, x, targets):
        """Return the loss; ``targets [B]`` are classes."""
        return functional.cross_entropy(record.sum(0), targets)

    def batched(self, record, x, targets):
        """Return the value of :meth:`loss` in one call for all steps."""
        return self.loss(record, x, targets)

    def step(self, x, targets):
        return self.loss(self.record(x), x, targets)

    def layers(self):
        """Return the modules of the :class:`snnipu.MultiStep` that replaces the loop."""
        return list(self.children())

    def over_time(self, x):
        """Return the record by :class:`snnipu.MultiStep`."""
        return snnipu.MultiStep(*self.layers())(x, num_steps=None if self.frames else self.steps)[self.recorded]

    def rewritten(self, x, targets):
        return self.batched(self.over_time(x), x, targets)

    @classmethod
    def has_rewrite(cls, device):
        """Return True if :meth:`rewritten` computes the loop's numbers on this device."""
        return cls.rewrites and not (cls.draws and device.type != "cpu")

    def to_grid(self):
        """Round the weights to multiples of :data:`WEIGHT_GRID`."""
        with torch.no_grad():
            for module in self.modules():
                for parameter in module.parameters(recurse=False) if isinstance(module, _WEIGHTED) else ():
                    parameter.copy_((parameter / WEIGHT_GRID).round() * WEIGHT_GRID)


class _TutorialLoss:
    """The loss of the tutorials, on membranes."""

    recorded = 1

    def loss(self, record, x, targets):
        return tutorial_loss(record, targets)

    def batched(self, record, x, targets):
        return batched_loss(record, targets)


class _Frames(Program):
    """A program that reads another vector at each step."""

    frames = True

    @staticmethod
    def data(settings, generator):
        return sparse_pixels(settings.steps, settings.batch_size, CHANNELS, generator=generator) * 4


class _Images(Program):
    """A program that reads an image."""

    @staticmethod
    def data(settings, generator):
        return sparse_pixels(settings.batch_size, 1, 28, 28, generator=generator) * 2

    @staticmethod
    def terms(settings):
        return settings.steps * settings.batch_size * 28 * 28


class _TwoLayers(Program):
    """Two linear layers and their neurons."""

    inputs, outputs, share = INPUTS, CLASSES, 1

    def __init__(self, snn, settings):
        super().__init__(snn, settings)
        hidden = settings.neurons // self.share
        lif1, lif2 = self.neurons(snn, settings)
        self.fc1, self.lif1 = nn.Linear(self.inputs, hidden), lif1
        self.fc2, self.lif2 = nn.Linear(hidden, self.outputs), lif2

    def neurons(self, snn, settings):
        return [snn.Leaky(beta=settings.beta) for _ in range(2)]


class TutorialNet(_TutorialLoss, _TwoLayers):
    """loop in forward"""

    rewrites = True

    def forward(self, x):
        mem1 = self.lif1.init_leaky()
        mem2 = self.lif2.init_leaky()
        spk2_rec = []
        mem2_rec = []
        for _ in range(self.steps):
            cur1 = self.fc1(x)
            spk1, mem1 = self.lif1(cur1, mem1)
            cur2 = self.fc2(spk1)
            spk2, mem2 = self.lif2(cur2, mem2)
            spk2_rec.append(spk2)
            mem2_rec.append(mem2)
        return torch.stack(spk2_rec, dim=0), torch.stack(mem2_rec, dim=0)


class HiddenStates(Program):
    """Layers with hidden states; the loop is in a function."""

    def __init__(self, snn, settings):
        super().__init__(snn, settings)
        self.net = nn.Sequential(*self.modules_of(snn, settings))

    def record(self, x):
        return self.select(forward_pass(self.net, self.steps, x, self.frames))

    def layers(self):
        # MultiStep starts from zeros in each call if the states are not hidden.
        for layer in self.net:
            if isinstance(layer, snnipu.Leaky):
                layer.init_hidden = False
        return self.net


class InFunction(_TutorialLoss, HiddenStates):
    """loop in a free function, hidden states"""

    rewrites = True

    def modules_of(self, snn, settings):
        return [
            nn.Linear(INPUTS, settings.neurons),
            snn.Leaky(beta=settings.beta, init_hidden=True),
            nn.Linear(settings.neurons, CLASSES),
            snn.Leaky(beta=settings.beta, init_hidden=True, output=True),
        ]


class InTraining(_TwoLayers):
    """loop in the middle of the training function"""

    trains = True

    def neurons(self, snn, settings):
        return [snn.Leaky(beta=settings.beta, init_hidden=True, output=output) for output in (False, True)]

    def forward(self, x):
        spk1 = self.lif1(self.fc1(x))
        return self.lif2(self.fc2(spk1))

    def step(self, x, targets):
        self.train()
        self.optimizer.zero_grad()
        self.snn.utils.reset(self)
        spk_rec = []
        for _ in range(self.steps):
            spk, _ = self(x)
            spk_rec.append(spk)
        counts = torch.stack(spk_rec).sum(0)
        loss = functional.cross_entropy(counts, targets)
        loss.backward()
        self.optimizer.step()
        self.accuracy = (counts.argmax(1) == targets).float().mean().item()
        self.running_loss = loss.item()
        return loss.detach()


class Counters(_TwoLayers):
    """counters kept in place"""

    def forward(self, x):
        mem1, mem2 = self.lif1.reset_mem(), self.lif2.reset_mem()
        out = torch.zeros(x.shape[0], CLASSES, device=x.device)
        total = torch.zeros(1, device=x.device)
        rates = torch.zeros(2, device=x.device)
        for _ in range(self.steps):
            spk1, mem1 = self.lif1(self.fc1(x), mem1)
            spk2, mem2 = self.lif2(self.fc2(spk1), mem2)
            out += spk2
            total += spk1.sum()
            rates[0] += spk1.mean()
            rates[1] += spk2.mean()
        return out, total, rates / self.steps

    def step(self, x, targets):
        out, total, rates = self(x)
        regularizer = (rates - 0.1).pow(2).sum() + 1e-6 * total.sum()
        return functional.cross_entropy(out, targets) + regularizer


class Learnt(_Images):
    """learnt beta and threshold of each channel"""

    rewrites = True

    def __init__(self, snn, settings):
        super().__init__(snn, settings)
        self.conv1, self.pool = nn.Conv2d(1, 8, 5), nn.AvgPool2d(2)
        self.conv2 = nn.Conv2d(8, 16, 5)
        learn = {"learn_beta": True, "learn_threshold": True}
        self.lif1, self.lif2 = (
            snn.Leaky(beta=torch.full(shape, settings.beta), threshold=torch.full(shape, 0.5), **learn)
            for shape in ((8, 1, 1), (16, 1, 1))
        )
        self.flatten, self.fc = nn.Flatten(), nn.Linear(16 * 4 * 4, CLASSES)
        self.lif3 = snn.Leaky(beta=settings.beta, threshold=0.5, **learn)

    def forward(self, x):
        mem1, mem2, mem3 = self.lif1.reset_mem(), self.lif2.reset_mem(), self.lif3.reset_mem()
        spk3_rec = []
        for _ in range(self.steps):
            spk1, mem1 = self.lif1(self.pool(self.conv1(x)), mem1)
            spk2, mem2 = self.lif2(self.pool(self.conv2(spk1)), mem2)
            spk3, mem3 = self.lif3(self.fc(spk2.flatten(1)), mem3)
            spk3_rec.append(spk3)
        return torch.stack(spk3_rec)

    def layers(self):
        hidden = self.conv1, self.pool, self.lif1, self.conv2, self.pool, self.lif2
        return [*hidden, self.flatten, self.fc, self.lif3]


class OneToOne(_TwoLayers, _Frames):
    """RLeaky, one-to-one"""

    rewrites, inputs = True, CHANNELS

    def neurons(self, snn, settings):
        weight = torch.full((settings.neurons,), 0.25)
        return snn.RLeaky(beta=settings.beta, V=weight, all_to_all=False), snn.Leaky(beta=settings.beta)

    def forward(self, x):
        spk1, mem1 = self.lif1.init_rleaky()
        mem2 = self.lif2.init_leaky()
        spk2_rec = []
        for step in range(x.size(0)):
            spk1, mem1 = self.lif1(self.fc1(x[step]), spk1, mem1)
            spk2, mem2 = self.lif2(self.fc2(spk1), mem2)
            spk2_rec.append(spk2)
        return torch.stack(spk2_rec)


class AllToAll(_TwoLayers, _Frames):
    """RSynaptic, all-to-all"""

    rewrites, inputs = True, CHANNELS

    def neurons(self, snn, settings):
        recurrent = snn.RSynaptic(alpha=0.8, beta=settings.beta, linear_features=settings.neurons)
        return recurrent, snn.Leaky(beta=settings.beta)

    def forward(self, x):
        spk1, syn1, mem1 = self.lif1.init_rsynaptic()
        mem2 = self.lif2.init_leaky()
        out = []
        for current in x:
            spk1, syn1, mem1 = self.lif1(self.fc1(current), spk1, syn1, mem1)
            spk2, mem2 = self.lif2(self.fc2(spk1), mem2)
            out.append(spk2)
        return torch.stack(out)


class Lstm(_Frames):
    """SLSTM"""

    rewrites = True

    def __init__(self, snn, settings):
        super().__init__(snn, settings)
        # snnTorch's SLSTM only keeps its states if both sizes are equal.
        self.slstm1 = snn.SLSTM(CHANNELS, CHANNELS, threshold=0.1)
        self.slstm2 = snn.SLSTM(CHANNELS, CHANNELS, threshold=0.1)
        self.fc = nn.Linear(CHANNELS, CLASSES)

    def forward(self, x):
        syn1, mem1 = self.slstm1.init_slstm()
        syn2, mem2 = self.slstm2.init_slstm()
        outs = []
        for step in range(x.size(0)):
            spk1, syn1, mem1 = self.slstm1(x[step], syn1, mem1)
            spk2, syn2, mem2 = self.slstm2(spk1, syn2, mem2)
            outs.append(self.fc(spk2))
        return torch.stack(outs)

    def layers(self):
        return [self.slstm1, self.slstm2]

    def over_time(self, x):
        return self.fc(super().over_time(x))


class ByHand(_Frames):
    """recurrence by hand"""

    def __init__(self, snn, settings):
        super().__init__(snn, settings)
        self.neurons = settings.neurons
        self.inp, self.rec = nn.Linear(CHANNELS, self.neurons), nn.Linear(self.neurons, self.neurons)
        self.lif = snn.Leaky(beta=settings.beta)
        self.out, self.readout = nn.Linear(self.neurons, CLASSES), snn.Leaky(beta=settings.beta, threshold=0.5)

    def forward(self, x):
        mem, mem_out = self.lif.reset_mem(), self.readout.reset_mem()
        spk = torch.zeros(x.shape[1], self.neurons, device=x.device)
        spk_rec = []
        for t in range(x.shape[0]):
            spk, mem = self.lif(self.inp(x[t]) + self.rec(spk), mem)
            spk_out, mem_out = self.readout(self.out(spk), mem_out)
            spk_rec.append(spk_out)
        return torch.stack(spk_rec, dim=0)


class BatchNorm(_Images):
    """convolutions and batch norm in training"""

    rewrites = True

    def __init__(self, snn, settings):
        super().__init__(snn, settings)
        self.conv1, self.bn1 = nn.Conv2d(1, 8, 3, stride=2, bias=False), nn.BatchNorm2d(8)
        self.lif1 = snn.Leaky(beta=settings.beta)
        self.conv2, self.bn2 = nn.Conv2d(8, 16, 3, stride=2, bias=False), nn.BatchNorm2d(16)
        self.lif2 = snn.Leaky(beta=settings.beta)
        self.fc = nn.Linear(16 * 6 * 6, CLASSES)
        self.lif3 = snn.Leaky(beta=settings.beta)

    def forward(self, x):
        mem1, mem2, mem3 = self.lif1.reset_mem(), self.lif2.reset_mem(), self.lif3.reset_mem()
        spk_rec = []
        for _ in range(self.steps):
            spk1, mem1 = self.lif1(self.bn1(self.conv1(x)), mem1)
            spk2, mem2 = self.lif2(self.bn2(self.conv2(spk1)), mem2)
            spk3, mem3 = self.lif3(self.fc(spk2.view(x.size(0), -1)), mem3)
            spk_rec.append(spk3)
        return torch.stack(spk_rec)

    def layers(self):
        hidden = self.conv1, self.bn1, self.lif1, self.conv2, self.bn2, self.lif2
        return [*hidden, nn.Flatten(), self.fc, self.lif3]


class _Between(_TwoLayers, _Frames):
    """A program with a module between the layers."""

    rewrites, inputs = True, CHANNELS

    def __init__(self, snn, settings):
        super().__init__(snn, settings)
        self.between = nn.Identity()

    def forward(self, x):
        mem1, mem2 = self.lif1.reset_mem(), self.lif2.reset_mem()
        spk_rec = []
        for step in range(x.size(0)):
            spk1, mem1 = self.lif1(self.fc1(x[step]), mem1)
            spk2, mem2 = self.lif2(self.fc2(self.between(spk1)), mem2)
            spk_rec.append(spk2)
        return torch.stack(spk_rec)

    def layers(self):
        return [self.fc1, self.lif1, self.between, self.fc2, self.lif2]


class Dropout(_Between):
    """dropout"""

    draws = True

    def __init__(self, snn, settings):
        super().__init__(snn, settings)
        self.between = nn.Dropout(0.25)


class RateCoding(_TwoLayers):
    """rate coding drawn in the loop"""

    def forward(self, x):
        mem1, mem2 = self.lif1.reset_mem(), self.lif2.reset_mem()
        spk_sum = 0
        for _ in range(self.steps):
            spikes = (torch.rand_like(x) < x).float()
            spk1, mem1 = self.lif1(self.fc1(spikes), mem1)
            spk2, mem2 = self.lif2(self.fc2(spk1), mem2)
            spk_sum = spk_sum + spk2
        return spk_sum

    def step(self, x, targets):
        return functional.cross_entropy(self(x), targets)


class Convolutional(HiddenStates, _Images):
    """convolutional, hidden states"""

    channels, maps, side = 1, 64, 4

    def modules_of(self, snn, settings):
        beta = settings.beta
        return [
            nn.Conv2d(self.channels, 12, 5),
            nn.MaxPool2d(2),
            snn.Leaky(beta=beta, init_hidden=True),
            nn.Conv2d(12, self.maps, 5),
            nn.MaxPool2d(2),
            snn.Leaky(beta=beta, init_hidden=True),
            nn.Flatten(),
            nn.Linear(self.maps * self.side * self.side, CLASSES),
            snn.Leaky(beta=beta, init_hidden=True, output=True),
        ]


class Tutorial6(_TutorialLoss, Convolutional):
    """convolutional, constant image, hidden states"""

    terms = Program.terms


class Tutorial7(Tutorial6):
    """convolutional, event frames x[step], hidden states"""

    channels, maps, side, frames = 2, 32, 5, True

    @staticmethod
    def data(settings, generator):
        return sparse_pixels(settings.steps, settings.batch_size, 2, 34, 34, generator=generator)


class Autoencoder(_Images):
    """autoencoder"""

    rewrites, recorded = True, 1

    def __init__(self, snn, settings):
        super().__init__(snn, settings)
        # A bias before a norm has a gradient of rounding errors alone.
        self.conv1, self.norm = nn.Conv2d(1, 16, 3, padding=1, stride=2, bias=False), nn.BatchNorm2d(16)
        self.lif1 = snn.Leaky(beta=settings.beta)
        self.conv2 = nn.ConvTranspose2d(16, 1, 3, padding=1, output_padding=1, stride=2)
        self.lif2 = snn.Leaky(beta=settings.beta, reset_mechanism="none")

    def forward(self, x):
        mem1 = self.lif1.init_leaky()
        mem2 = self.lif2.init_leaky()
        mem2_rec = []
        for _ in range(self.steps):
            spk1, mem1 = self.lif1(self.norm(self.conv1(x)), mem1)
            _, mem2 = self.lif2(self.conv2(spk1), mem2)
            mem2_rec.append(mem2)
        return torch.stack(mem2_rec)

    def loss(self, record, x, targets):
        return functional.mse_loss(record[-1], x)


class AutoencoderOfAllSteps(Autoencoder):
    """convolutions and batch norm in training"""

    def loss(self, record, x, targets):
        return functional.mse_loss(record, x.expand_as(record))


class Regression(_TwoLayers, _Frames):
    """regression on membranes"""

    rewrites, recorded, inputs, outputs = True, 1, 1, 1

    def neurons(self, snn, settings):
        # No result depends on the second threshold: it has no gradient.
        return [
            snn.Leaky(beta=torch.full((settings.neurons,), settings.beta), learn_beta=True),
            snn.Leaky(beta=settings.beta, learn_beta=True, learn_threshold=True, reset_mechanism="none"),
        ]

    @staticmethod
    def data(settings, generator):
        return torch.rand(settings.steps, settings.batch_size, 1, generator=generator)

    def forward(self, x):
        mem1 = self.lif1.init_leaky()
        mem2 = self.lif2.init_leaky()
        mem2_rec = []
        for step in range(x.shape[0]):
            spk1, mem1 = self.lif1(self.fc1(x[step]), mem1)
            _, mem2 = self.lif2(self.fc2(spk1), mem2)
            mem2_rec.append(mem2)
        return torch.stack(mem2_rec)

    def loss(self, record, x, targets):
        return functional.mse_loss(record, x)


class Attention(Program):
    """attention of spikes"""

    TOKENS = 16

    def __init__(self, snn, settings):
        super().__init__(snn, settings)
        self.width = width = settings.neurons // 4
        self.q, self.k, self.v = (nn.Linear(CHANNELS, width) for _ in range(3))
        self.q_lif, self.k_lif, self.v_lif = (snn.Leaky(beta=settings.beta) for _ in range(3))
        self.attn_lif = snn.Leaky(beta=settings.beta, threshold=0.5)
        self.proj, self.proj_lif = nn.Linear(width, width), snn.Leaky(beta=settings.beta)
        self.head = nn.Linear(width, CLASSES)

    @staticmethod
    def data(settings, generator):
        return sparse_pixels(settings.batch_size, Attention.TOKENS, CHANNELS, generator=generator) * 4

    def forward(self, x):
        q_mem, k_mem, v_mem = self.q_lif.reset_mem(), self.k_lif.reset_mem(), self.v_lif.reset_mem()
        attn_mem, proj_mem = self.attn_lif.reset_mem(), self.proj_lif.reset_mem()
        logits = []
        for _ in range(self.steps):
            q, q_mem = self.q_lif(self.q(x), q_mem)
            k, k_mem = self.k_lif(self.k(x), k_mem)
            v, v_mem = self.v_lif(self.v(x), v_mem)
            attention = (q @ k.transpose(-2, -1)) * 0.125
            spk, attn_mem = self.attn_lif(attention @ v, attn_mem)
            spk, proj_mem = self.proj_lif(self.proj(spk), proj_mem)
            logits.append(self.head(spk.mean(dim=1)))
        return torch.stack(logits)


class Lists(_TwoLayers):
    """lists on self that grow from call to call"""

    def __init__(self, snn, settings):
        super().__init__(snn, settings)
        self.activity = []

    def forward(self, x):
        mem1, mem2 = self.lif1.reset_mem(), self.lif2.reset_mem()
        spk2_rec = []
        for _ in range(self.steps):
            spk1, mem1 = self.lif1(self.fc1(x), mem1)
            spk2, mem2 = self.lif2(self.fc2(spk1), mem2)
            self.activity.append(spk1.detach().mean())
            spk2_rec.append(spk2)
        return torch.stack(spk2_rec)


class Subclass(_Between):
    """subclass that replaces a part of the step"""

    def neurons(self, snn, settings):
        class LeakyInput(snn.Leaky):
            """A Leaky neuron whose input is multiplied by 1 - beta."""

            def _base_state_function(self, input_):
                beta = self.beta.clamp(0, 1)
                return beta * self.mem + (1 - beta) * input_

        return [LeakyInput(beta=settings.beta, threshold=threshold) for threshold in (0.25, 0.05)]


class Quantised(_Between):
    """quantised states"""

    def neurons(self, snn, settings):
        quantiser = snn.functional.quant.state_quant(num_bits=4, uniform=True, threshold=1.0)
        return [snn.Leaky(beta=settings.beta, state_quant=quantiser) for _ in range(2)]


class Tokens(Program):
    """a call for each token, states in the neurons"""

    VOCABULARY = 100

    def __init__(self, snn, settings):
        super().__init__(snn, settings)
        width = settings.neurons // 4
        self.embedding = nn.Embedding(self.VOCABULARY, CHANNELS)
        self.fc1, self.lif1 = nn.Linear(CHANNELS, width), snn.Leaky(beta=settings.beta)
        self.fc2, self.lif2 = nn.Linear(width, self.VOCABULARY), snn.Leaky(beta=settings.beta)

    @staticmethod
    def data(settings, generator):
        return torch.randint(Tokens.VOCABULARY, (settings.batch_size, settings.steps + 1), generator=generator)

    def forward(self, token):
        spk1, _ = self.lif1(self.fc1(self.embedding(token)))
        _, mem2 = self.lif2(self.fc2(spk1))
        return mem2

    def step(self, x, targets):
        self.lif1.reset_mem()
        self.lif2.reset_mem()
        loss = torch.zeros((), device=x.device)
        for position in range(x.shape[1] - 1):
            logits = self(x[:, position])
            loss = loss + functional.cross_entropy(logits, x[:, position + 1])
        return loss / (x.shape[1] - 1)


class Population(_TwoLayers):
    """population coding"""

    rewrites, outputs = True, CLASSES * PER_CLASS

    def neurons(self, snn, settings):
        return [snn.Leaky(beta=settings.beta, threshold=threshold) for threshold in (1.0, 0.2)]

    def forward(self, x):
        mem1 = self.lif1.init_leaky()
        mem2 = self.lif2.init_leaky()
        spk2_rec = []
        for _ in range(self.steps):
            spk1, mem1 = self.lif1(self.fc1(x), mem1)
            spk2, mem2 = self.lif2(self.fc2(spk1), mem2)
            spk2_rec.append(spk2)
        return torch.stack(spk2_rec)

    def loss(self, record, x, targets):
        counts = record.sum(0).view(-1, CLASSES, PER_CLASS).sum(2)
        return functional.cross_entropy(counts, targets)


class Deep(_TutorialLoss, Program):
    """784-N-N/2-10, Synaptic, Alpha and RLeaky"""

    rewrites = True

    def __init__(self, snn, settings):
        super().__init__(snn, settings)
        beta, neurons = settings.beta, settings.neurons
        self.fc1, self.lif1 = nn.Linear(INPUTS, neurons), snn.Synaptic(alpha=0.8, beta=beta)
        self.fc2, self.lif2 = nn.Linear(neurons, neurons // 2), snn.Alpha(alpha=0.95, beta=beta, threshold=0.3)
        self.fc3, self.lif3 = nn.Linear(neurons // 2, CLASSES), snn.RLeaky(beta=beta, V=0.5, all_to_all=False)

    def forward(self, x):
        syn, mem1 = self.lif1.init_synaptic()
        exc, inh, mem2 = self.lif2.init_alpha()
        spk3, mem3 = self.lif3.init_rleaky()
        mem3_rec = []
        for _ in range(self.steps):
            spk1, syn, mem1 = self.lif1(self.fc1(x), syn, mem1)
            spk2, exc, inh, mem2 = self.lif2(self.fc2(spk1), exc, inh, mem2)
            spk3, mem3 = self.lif3(self.fc3(spk2), spk3, mem3)
            mem3_rec.append(mem3)
        return torch.stack(mem3_rec)


class Episode(_TwoLayers):
    """reinforcement learning, a short episode"""

    MOVES, STEPS, ACTIONS = 8, 5, 4
    inputs, outputs, share = CHANNELS, ACTIONS, 4

    def __init__(self, snn, settings):
        super().__init__(snn, settings)
        # The change of the observation by each action.
        self.register_buffer("effect", torch.eye(self.ACTIONS).repeat(1, CHANNELS // self.ACTIONS) - 0.25)

    def neurons(self, snn, settings):
        return [snn.Leaky(beta=settings.beta, reset_mechanism=reset) for reset in ("subtract", "none")]

    @staticmethod
    def data(settings, generator):
        return sparse_pixels(settings.batch_size, CHANNELS, generator=generator) * 4

    def policy(self, observation):
        mem1, mem2 = self.lif1.reset_mem(), self.lif2.reset_mem()
        for _ in range(self.STEPS):
            spk1, mem1 = self.lif1(self.fc1(observation), mem1)
            _, mem2 = self.lif2(self.fc2(spk1), mem2)
        return mem2

    def step(self, x, targets):
        observation, log_probs, rewards = x, [], []
        for _ in range(self.MOVES):
            policy = torch.distributions.Categorical(logits=self.policy(observation))
            action = policy.sample()
            observation = observation + self.effect[action]
            log_probs.append(policy.log_prob(action))
            rewards.append(-observation.pow(2).mean(1))
        returns = torch.stack(rewards).flip(0).cumsum(0).flip(0)
        advantage = (returns - returns.mean()) / (returns.std() + 1e-6)
        return -(torch.stack(log_probs) * advantage).mean()


PROGRAMS = {
    "forward": TutorialNet,
    "function": InFunction,
    "training": InTraining,
    "counters": Counters,
    "learnt": Learnt,
    "rleaky": OneToOne,
    "rsynaptic": AllToAll,
    "slstm": Lstm,
    "by-hand": ByHand,
    "batch-norm": BatchNorm,
    "dropout": Dropout,
    "rate": RateCoding,
    "conv": Convolutional,
    "autoencoder": Autoencoder,
    "regression": Regression,
    "attention": Attention,
    "lists": Lists,
    "subclass": Subclass,
    "quantised": Quantised,
    "tokens": Tokens,
    "population": Population,
    "episode": Episode,
}


# Networks of the tutorials and similar ones, as unmodified loops.
NETWORKS = {
    "tutorial-5": TutorialNet,
    "tutorial-6": Tutorial6,
    "tutorial-7": Tutorial7,
    "population": Population,
    "regression": Regression,
    "autoencoder": AutoencoderOfAllSteps,
    "deep": Deep,
}


def make(kind, snn, settings):
    """Return a program of a library, with the same weights for every library."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        program = kind(snn, settings)
    program.to_grid()
    return program.to(settings.device)

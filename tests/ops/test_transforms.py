"""Every transform of `torch.func`, forward mode and backward through every `fused` variant.

Each gives what it gives of the float64 reference, or one sentence where MAY_REFUSE allows it:
never zeros, and never an error of PyTorch's own.
"""

import math

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import (
    functional_call,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)

import kernels.ops  # noqa: F401  (registers all operations)
from kernels.passes import as_tuple, differentiated
from kernels.registry import DTYPES, operators_of, ops

# What is made of other operations goes through a transform as they do.
FUSED = {op.name: op for op in ops() if "fused" in op.variants and not op.made_of}
SHAPE, BATCH = (3, 5, 4, 2, 2, 3), 2  # as many sizes as an operation has


def seeded(seed):
    return torch.Generator().manual_seed(seed)


class Case:
    """A function of the tensors that get gradients, the tensors, and random directions of them."""

    def __init__(self, op, fn, dtype, cast, few=False):
        sizes = SHAPE[: len(op.dims)]
        if few:  # two along what is independent: enough for one to meet the other by mistake
            sizes = tuple(
                min(size, 2) if dim in op.independent else size
                for size, dim in zip(sizes, op.dims, strict=True)
            )
        inputs = op.inputs(sizes, dtype, "cpu", seed=7)
        names = differentiated(op, inputs) or tuple(op.tensors)
        self.cast = cast
        self.options = {name: value for name, value in inputs.items() if name not in names}
        self.names = names
        self.tensors = tuple(cast(inputs[name]) for name in names)
        self.directions = tuple(self.random(t.shape, 30 + i) for i, t in enumerate(self.tensors))
        self.batched = tuple(
            torch.stack([t, t.flip(-1)]) + self.random((BATCH, *t.shape), 60 + i)
            for i, t in enumerate(self.tensors)
        )
        self.dtype = dtype
        self.fn = fn

    def random(self, shape, seed):
        return self.cast(torch.randn(*shape, generator=seeded(seed)).to(torch.float16))

    def f(self, *tensors):
        return as_tuple(self.fn(**dict(zip(self.names, tensors, strict=True)), **self.options))

    def loss(self, *tensors):
        """A number that each output enters with weights of its own, and not linearly."""
        total = 0.0
        for place, y in enumerate(self.f(*tensors)):
            # No random numbers, which vmap forbids, and numbers that all dtypes hold.
            wave = torch.arange(y.numel()).mul(1.3 + place).cos()
            weights = self.cast(wave.mul(64).round().div(64).reshape(y.shape))
            total = total + (y * weights).sin().sum()
        return total

    @property
    def places(self):
        return tuple(range(len(self.tensors)))

    def leaves(self, tensors=None):
        return tuple(t.detach().clone().requires_grad_() for t in tensors or self.tensors)


def forward_dual(case):
    with forward_ad.dual_level():
        duals = map(forward_ad.make_dual, case.tensors, case.directions)
        return [forward_ad.unpack_dual(y).tangent for y in case.f(*duals)]


def forward_dual_of_leaves(case):
    """Tensors that require grad and have tangents; the gradient goes back inside the level."""
    leaves = case.leaves()
    with forward_ad.dual_level():
        outputs = case.f(*map(forward_ad.make_dual, leaves, case.directions))
        parts = [part for y in outputs for part in forward_ad.unpack_dual(y)]
        return parts + list(torch.autograd.grad(sum(part.sin().sum() for part in parts), leaves))


def batched(case, in_dims, requires_grad=False):
    places = [0 if t.dim() == 1 else in_dims for t in case.tensors]
    tensors = [t.movedim(0, place) for t, place in zip(case.batched, places, strict=True)]
    if not requires_grad:
        return vmap(case.f, in_dims=tuple(places))(*tensors)
    leaves = case.leaves(tensors)
    loss = vmap(case.loss, in_dims=tuple(places))(*leaves).sum()
    return torch.autograd.grad(loss, leaves)


def of_x_alone(case):
    """A batch of x and one weight for all; all want gradients."""
    leaves = case.leaves((case.batched[0], *case.tensors[1:]))
    in_dims = (0, *(None for _ in leaves[1:]))
    return torch.autograd.grad(vmap(case.loss, in_dims=in_dims)(*leaves).sum(), leaves)


def of_what_is_closed_over(case):
    leaves = case.leaves()
    loss = vmap(lambda factor: case.loss(*(factor * t for t in leaves)))(torch.ones(BATCH)).sum()
    return torch.autograd.grad(loss, leaves)


class Layer(torch.nn.Module):
    def __init__(self, case, seed):
        super().__init__()
        self.loss = case.loss
        self.weights = torch.nn.ParameterList(
            t + case.random(t.shape, seed) for t in case.tensors[1:]
        )

    def forward(self, x):
        return self.loss(x, *self.weights)


def called_functionally(case):
    layer = Layer(case, 1)
    parameters = dict(layer.named_parameters())
    found = grad(lambda p, x: functional_call(layer, p, (x,)), argnums=(0, 1))(
        {name: p.detach() for name, p in parameters.items()}, case.tensors[0]
    )
    return [*found[0].values(), found[1]]


def an_ensemble(case):
    layers = [Layer(case, seed) for seed in range(BATCH)]
    stacked, _ = stack_module_state(layers)
    base = layers[0]
    return [vmap(lambda p, x: functional_call(base, p, (x,)))(stacked, case.batched[0])]


def batched_backward(case):
    leaves = case.leaves()
    y = case.f(*leaves)[0]
    upstream = case.random((BATCH, *y.shape), 5).to(y.dtype)
    return torch.autograd.grad(y, leaves, upstream, is_grads_batched=True)


def batched_backward_again(case):
    """A gradient that vmap recorded, differentiated again."""
    leaves = case.leaves()
    y = case.f(*leaves)[0]
    upstream = case.random((BATCH, *y.shape), 5).to(y.dtype)
    first = torch.autograd.grad(y, leaves, upstream, is_grads_batched=True, create_graph=True)
    total = sum(g.sin().sum() for g in first)
    if not total.requires_grad:  # of what is linear a gradient depends on nothing
        return torch.zeros_like(leaves[0])
    return torch.autograd.grad(total, leaves[0])


def vectorised_hessian(case):
    loss = lambda x: case.loss(x, *case.tensors[1:])  # noqa: E731
    return [torch.autograd.functional.hessian(loss, case.tensors[0], vectorize=True)]


def backward_of_backward(case):
    leaves = case.leaves()
    first = torch.autograd.grad(case.loss(*leaves), leaves, create_graph=True)
    return torch.autograd.grad(sum(g.sin().sum() for g in first), leaves)


def compiled(transform):
    """A transform inside `torch.compile`; the truth is what it gives of the reference outside."""

    def call(case):
        torch._dynamo.reset()
        fn = torch.compile(
            lambda *tensors: transform(case, tensors), fullgraph=True, backend="aot_eager"
        )
        return fn(*case.tensors)

    call.truth = lambda case: transform(case, case.tensors)
    return call


TRANSFORMS = {
    "jvp": lambda c: jvp(c.f, c.tensors, c.directions)[1],
    "jvp of jvp": lambda c: jvp(lambda *t: jvp(c.f, t, c.directions)[1], c.tensors, c.directions)[
        1
    ],
    "linearize": lambda c: linearize(c.f, *c.tensors)[1](*c.directions),
    "jacfwd": lambda c: jacfwd(c.f, c.places)(*c.tensors),
    "dual tensors": forward_dual,
    "dual tensors that require grad": forward_dual_of_leaves,
    "vjp": lambda c: vjp(c.loss, *c.tensors)[1](torch.ones_like(c.loss(*c.tensors))),
    "grad": lambda c: grad(c.loss, c.places)(*c.tensors),
    "grad of one": lambda c: [grad(c.loss, c.places[-1])(*c.tensors)],
    "jacrev": lambda c: jacrev(c.f, c.places)(*c.tensors),
    "hessian": lambda c: hessian(c.loss, c.places)(*c.tensors),
    "grad of grad": lambda c: grad(
        lambda *t: sum(g.sin().sum() for g in grad(c.loss, c.places)(*t)), c.places
    )(*c.tensors),
    "vmap": lambda c: batched(c, 0),
    "vmap along rows": lambda c: batched(c, 1),
    "vmap along columns": lambda c: batched(c, -1),
    "vmap, requires grad": lambda c: batched(c, 0, True),
    "vmap along rows, requires grad": lambda c: batched(c, 1, True),
    "vmap of x alone": of_x_alone,
    "vmap of a factor": of_what_is_closed_over,
    "vmap of vmap": lambda c: vmap(vmap(c.f))(*(torch.stack([t, -t]) for t in c.batched)),
    "grad of vmap": lambda c: grad(lambda *t: vmap(c.loss)(*t).sum(), c.places)(*c.batched),
    "vmap of grad": lambda c: vmap(grad(c.loss, c.places))(*c.batched),
    "vmap of jvp": lambda c: vmap(lambda *t: jvp(c.f, t, c.directions)[1])(*c.batched),
    "jvp of vmap": lambda c: jvp(vmap(c.f), c.batched, tuple(t.flip(0) for t in c.batched))[1],
    "functional_call": called_functionally,
    "an ensemble": an_ensemble,
    "batched backward": batched_backward,
    "batched backward, again": batched_backward_again,
    "jvp, compiled": compiled(lambda c, t: jvp(c.f, t, c.directions)[1]),
    "vmap of grad, compiled": compiled(lambda c, t: grad(c.loss, c.places)(*t)),
    "vectorised hessian": vectorised_hessian,
    "double backward": backward_of_backward,
}
# These launch once for every element of x.
ONE_BY_ONE = {"vectorised hessian"}
MAY_REFUSE = {"batched backward, again", "vectorised hessian", "double backward"}


def flat(found):
    if isinstance(found, torch.Tensor):
        return [found]
    return [tensor for part in found for tensor in flat(part)]


def told(call):
    """What `call` returns, or the sentence of the NotImplementedError that it raises."""
    try:
        return call(), ""
    except NotImplementedError as error:
        sentence = str(error)
    assert "\n" not in sentence
    return None, sentence


def check(op, dtype, name):
    transform, few = TRANSFORMS[name], name in ONE_BY_ONE
    exact = getattr(transform, "truth", transform)
    truth = flat(exact(Case(op, op.reference, dtype, lambda t: t.double(), few)))
    case = Case(op, op.variant("fused").fn, dtype, lambda t: t.to(dtype), few)
    found, sentence = told(lambda: flat(transform(case)))
    if sentence:
        assert name in MAY_REFUSE, sentence
        assert "use torch." in sentence or "PyTorch's own operators" in sentence
        return
    assert len(found) == len(truth)
    # What is found went through a dozen roundings, and of a derivative each is magnified by the
    # sums that it is a small difference of.
    unit = torch.finfo(dtype).eps / 2
    scale = max(exact.norm().item() / math.sqrt(max(exact.numel(), 1)) for exact in truth)
    if all(not exact.any() for exact in truth):  # a second derivative of what is linear
        assert not any(ours.any() for ours in found)
        return
    for ours, exact in zip(found, truth, strict=True):
        error = (ours.double() - exact).norm() / math.sqrt(max(exact.numel(), 1))
        assert error <= 128 * unit * scale, (error / scale / unit).item()


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr")
def test_a_transform_is_right(name, transform):
    check(FUSED[name], torch.float32, transform)


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("transform", ["jvp", "vmap, requires grad", "dual tensors"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_a_transform_is_right_in_16_bits(name, transform, dtype):
    check(FUSED[name], dtype, transform)


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_a_transform_keeps_dtype_and_shape(name, dtype):
    op = FUSED[name]
    case = Case(op, op.variant("fused").fn, dtype, lambda t: t.to(dtype))
    outputs = case.f(*case.tensors)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        transformed = jvp(case.f, case.tensors, case.directions)[0]
    for plain, ours in zip(outputs, transformed, strict=True):
        assert (ours.shape, ours.dtype) == (plain.shape, plain.dtype)


OURS = sorted(
    name for name in torch._C._dispatch_get_all_op_names() if name.startswith("fusing_kernels::")
)


def test_every_operator_has_its_place_in_torch_func():
    """A transform goes by what an operator has under this key, or it goes silently wrong."""
    assert OURS
    for name in OURS:
        key = "FuncTorchDynamicLayerFrontMode"
        assert torch._C._dispatch_has_kernel_for_dispatch_key(name, key), name


def calls():
    """Operators that take what an operation's inputs are called."""
    for op in FUSED.values():
        for one in operators_of(op.name):
            name = one.name
            operator = getattr(torch.ops.fusing_kernels, name).default
            names = [argument.name for argument in operator._schema.arguments]
            inputs = op.inputs(SHAPE[: len(op.dims)], torch.float32, "cpu", seed=7) | {"eps": 1e-5}
            if set(names) <= inputs.keys():
                yield pytest.param(operator, [inputs[n] for n in names], id=name)


@pytest.mark.parametrize(("operator", "arguments"), list(calls()))
def test_an_operator_called_by_its_name_loses_no_derivative(operator, arguments):
    x, *others = arguments

    def first(x):
        return as_tuple(operator(x, *others))[0]

    tangent = jvp(first, (x,), (x.flip(0),))[1]
    assert tangent.abs().max() > 1e-3
    assert grad(lambda x: first(x).sin().sum())(x).abs().max() > 1e-3
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward-mode"):
        operator(forward_ad.make_dual(x, x), *others)
    leaf = x.clone().requires_grad_()
    y, sentence = told(lambda: first(leaf))
    if sentence:
        assert "would lose gradients" in sentence
    else:
        assert torch.autograd.grad(y.sin().sum(), leaf)[0].abs().max() > 1e-3
    with torch.no_grad():
        assert not first(leaf).requires_grad


@pytest.mark.parametrize("name", FUSED)
def test_the_variants_without_derivatives_say_so(name):
    op = FUSED[name]
    for variant in op.variants.values():
        if variant.counted not in ("triton", "cuda") or variant.has("train"):
            continue
        if variant.name == "fused" and op.backward is None:  # its gradients are PyTorch's formula
            continue
        if variant.unavailable(torch.device("cpu")):
            continue
        case = Case(op, variant.fn, torch.float32, lambda t: t.float())
        for transform in ("jvp", "dual tensors", "vmap", "grad"):
            with pytest.raises(NotImplementedError, match="PyTorch's own operators"):
                flat(TRANSFORMS[transform](case))


@pytest.mark.parametrize("name", FUSED)
def test_what_was_exported_without_gradients_loses_none_when_it_is_trained(name):
    op = FUSED[name]
    inputs = op.inputs(SHAPE[: len(op.dims)], torch.float32, "cpu", seed=5)
    first, *others = op.backward.differentiates if op.backward else tuple(op.tensors)
    rest = {one: value for one, value in inputs.items() if one not in (first, *others)}

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for one in others:
                setattr(self, one, torch.nn.Parameter(inputs[one]))
            for one, value in rest.items():
                if isinstance(value, torch.Tensor):
                    self.register_buffer(one, value)

        def forward(self, x):
            given = {one: getattr(self, one) for one in others}
            given |= {one: getattr(self, one, value) for one, value in rest.items()}
            return as_tuple(op.variant("fused").fn(**{first: x}, **given))[0]

    x = inputs[first]
    with torch.no_grad():
        exported = torch.export.export(Model(), (x,)).module()
        assert torch.equal(exported(x), Model()(x))
    x = x.clone().requires_grad_()
    y, sentence = told(lambda: exported(x))
    if sentence:
        assert "would lose gradients" in sentence
        return
    y.sin().sum().backward()
    leaves = [x, *exported.parameters()]
    assert all(leaf.grad is not None and leaf.grad.abs().max() > 1e-3 for leaf in leaves)

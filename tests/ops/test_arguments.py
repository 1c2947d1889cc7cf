"""Arguments of another kind get one sentence that names them, whatever function is called."""

import pytest
import torch

from kernels.ops.chains.bias_gelu_dropout_residual import bias_gelu_dropout_residual
from kernels.ops.norms.add_layernorm import add_layer_norm
from kernels.ops.norms.add_rmsnorm import add_rms_norm
from kernels.ops.norms.layernorm import layer_norm
from kernels.ops.norms.rmsnorm import rms_norm
from kernels.ops.softmax.softmax import softmax

NORMS = {
    "layer_norm": lambda x, eps: layer_norm(x, eps=eps),
    "rms_norm": lambda x, eps: rms_norm(x, eps=eps),
    "add_layer_norm": lambda x, eps: add_layer_norm(x, x, eps=eps),
    "add_rms_norm": lambda x, eps: add_rms_norm(x, x, eps=eps),
}
CALLS = {**NORMS, "softmax": lambda x, eps: softmax(x)}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize(("eps", "kind"), [(None, "NoneType"), ("1e-5", "str")])
def test_an_eps_that_is_no_number(norm, trains, eps, kind):
    with pytest.raises(TypeError, match=f"^eps is a {kind}; it takes a number$"):
        NORMS[norm](torch.randn(2, 8, requires_grad=trains), eps)


@pytest.mark.parametrize("call", CALLS)
def test_a_tensor_that_is_not_dense(call):
    told = r"^x has the layout torch.sparse_coo; it takes a dense tensor$"
    with pytest.raises(TypeError, match=told):
        CALLS[call](torch.randn(2, 8).to_sparse(), 1e-5)


@pytest.mark.parametrize(
    ("p", "error", "told"),
    [
        ("0.5", TypeError, "p is a str; the probability to drop is a number from 0 to 1"),
        (None, TypeError, "p is a NoneType; the probability"),
        (1.5, ValueError, "p is 1.5; the probability to drop"),
        (float("nan"), ValueError, "p is nan; the probability to drop"),
    ],
)
def test_a_chance_that_is_none(p, error, told):
    x, bias = torch.randn(2, 8), torch.randn(8)
    with pytest.raises(error, match=told):
        bias_gelu_dropout_residual(x, bias, x, p, torch.tensor([1, 2]))

"""`transformers` beside the book: it looks at any module called `kernels`, and takes ours for none.

Colab has it installed. A subprocess each, because what is imported first decides.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.paths import ROOT

USE_BOTH = """
import torch
from kernels.lab.counting.op_ledger import count_op
from kernels.ops.norms.layernorm import OP, layer_norm
from transformers import LlamaConfig, LlamaModel
from transformers.utils import is_kernels_available
import kernels

config = LlamaConfig(
    vocab_size=16, hidden_size=8, intermediate_size=16, num_hidden_layers=1,
    num_attention_heads=2, num_key_value_heads=2,
)
hidden = LlamaModel(config)(input_ids=torch.arange(6).reshape(1, 6)).last_hidden_state.detach()
close = torch.allclose(layer_norm(hidden), torch.nn.functional.layer_norm(hidden, (8,)), atol=1e-5)
bytes_unique = count_op(OP, "fused", (8, 64), torch.float32).bytes_unique
print(kernels.__file__, is_kernels_available(), tuple(hidden.shape), close, bytes_unique)
"""


def run(code: str, *folders: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a new Python that finds modules in the root of the book, then in `folders`."""
    path = os.pathsep.join(map(str, (ROOT, *folders)))
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("order", [("kernels", "transformers"), ("transformers", "kernels")])
def test_both_work_whichever_comes_first(order: tuple[str, str]) -> None:
    done = run("\n".join(f"import {name}" for name in order) + USE_BOTH)
    ours = ROOT / "kernels" / "__init__.py"
    counted = (8 * 64 + 2 * 64 + 8 * 64) * 4  # x, weight and bias, y
    assert done.stdout == f"{ours} False (1, 6, 8) True {counted}\n", done.stderr


def test_another_distribution_called_kernels_gets_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "kernels-0.18.2.dist-info").mkdir()
    (tmp_path / "kernels-0.18.2.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: kernels\nVersion: 0.18.2\n"
    )
    done = run("import kernels\nprint(kernels.__file__)", tmp_path)
    assert done.stdout == f"{ROOT / 'kernels' / '__init__.py'}\n"
    assert done.stderr.count("UserWarning: another package called kernels (0.18.2)") == 1
    assert f"is the book's, from {ROOT / 'kernels'}: run what needs the other one" in done.stderr

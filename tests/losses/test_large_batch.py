"""Every loss of pairs runs at batch 8,192 with 128 dimensions in 16 GiB, the process included; a memory in 2 GiB."""

import subprocess
import sys

import pytest
from loss_cases import needs_classes, shipped

LOSSES = {loss.__name__ for loss in shipped() if not needs_classes(loss)}
LOSSES.remove("StructuredClusteringLoss")  # whose search takes the square of the number of classes
ARGUMENTS = {"RankedListLoss": "margin=0.4, Tn=5"}
BATCH = """
labels = torch.arange(8192) // 4
embeddings = (torch.randn(2048, 128)[labels] + 2 * torch.randn(8192, 128)).requires_grad_()
loss = losses.{name}({arguments})(embeddings, labels)
"""
MEMORY = """
labels = torch.arange(65536) % 4096
memory = losses.CrossBatchMemory(losses.{name}(), 128, memory_size=65536)
memory.memory.copy_(torch.randn(4096, 128)[labels] + 2 * torch.randn(65536, 128))
memory.memory_labels.copy_(labels)
memory.entered = 65536
embeddings = (torch.randn(32, 128)[labels[:128] // 4] + 2 * torch.randn(128, 128)).requires_grad_()
loss = memory(embeddings, labels[:128] // 4)
"""
SCRIPT = """
import resource, torch
from levelfield import losses
torch.manual_seed(0)
{}
loss.backward()
assert loss.isfinite() and embeddings.grad.isfinite().all() and embeddings.grad.abs().sum() > 0
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "of", "most"),
    [
        *((name, MEMORY, 2) for name in ("AngularLoss", "ContrastiveLoss", "LiftedStructureLoss")),
        *((name, BATCH, 16) for name in sorted(LOSSES)),
    ],
)
def test_peak_memory_in_gib(name, of, most):
    script = SCRIPT.format(of.format(name=name, arguments=ARGUMENTS.get(name, "")))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    print(f"{name}: {float(done.stdout):.1f} GiB")
    assert float(done.stdout) < most

"""What it saves that malloc keeps freed memory (core/processes.py): EfficientNet-Lite0's training steps.

python benchmarks/freed_memory.py

By turns in processes of their own, since a process cannot undo it; channels-last with a fused AdamW, as levelfield
trains.
"""

import json
import resource
import statistics
import subprocess
import sys
import time

import torch

from levelfield.core.processes import keep_freed_memory

TURNS, STEPS = 5, 12


def one_process(kept: bool, size: int, batch: int, threads: int) -> dict[str, float]:
    """Wall and system seconds of a step, and the most memory held."""
    import timm

    if kept:
        keep_freed_memory()
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    trunk = timm.create_model("efficientnet_lite0", num_classes=0).to(memory_format=torch.channels_last)
    pictures = torch.randn(batch, 3, size, size).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(trunk.parameters(), fused=True)

    def step() -> None:
        optimizer.zero_grad()
        trunk(pictures).square().mean().backward()
        optimizer.step()

    step()
    step()
    system, started = resource.getrusage(resource.RUSAGE_SELF).ru_stime, time.perf_counter()
    for _ in range(STEPS):
        step()
    wall = time.perf_counter() - started
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {"wall": wall / STEPS, "system": (used.ru_stime - system) / STEPS, "mib": used.ru_maxrss / 1024}


def main() -> None:
    if sys.argv[1:]:
        print(json.dumps(one_process(*json.loads(sys.argv[1]))))
        return
    print("| pixels | batch | threads | step, ms | with freed memory kept | ratio | of it in the system | peak, MiB |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for size, batch in ((64, 32), (112, 32), (224, 32), (112, 128)):
        for threads in (1, 2):
            turns: dict[bool, list[dict[str, float]]] = {False: [], True: []}
            for _ in range(TURNS):
                for kept, found in turns.items():
                    command = [sys.executable, __file__, json.dumps([kept, size, batch, threads])]
                    found.append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
            plain, kept = ({key: statistics.median(t[key] for t in turns[k]) for key in turns[k][0]} for k in turns)
            print(
                f"| {size} | {batch} | {threads} | {plain['wall'] * 1e3:.0f} | {kept['wall'] * 1e3:.0f} "
                f"| {kept['wall'] / plain['wall']:.2f} | {plain['system'] / plain['wall']:.0%} to "
                f"{kept['system'] / kept['wall']:.0%} | {plain['mib']:,.0f} to {kept['mib']:,.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()

"""A learner whose weights, gradients and optimizer state lie in shards over all processes (FSDP2)."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import ModelParallelStrategy, StrategyRegistry
from timm.layers import convert_sync_batchnorm
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.optim import Optimizer

from levelfield.errors import UserError
from levelfield.losses.base import MetricLoss

BLOCK_WEIGHTS = 2**20  # blocks of fewer are gathered with the rest of the trunk: a message each would take longer


class FullyShardedStrategy(ModelParallelStrategy):
    """Lightning's strategy with all processes in one data-parallel group, and checkpoints that are one plain file.

    `--trainer.strategy fsdp2`, for a trunk that does not fit into one
    device's memory with its gradients and the optimizer's state. Processes hold a share of each tensor, and gather a
    block of the trunk when it is its turn.
    """

    def __init__(self) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=False)

    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Each process takes its shards from the file. Lightning broadcasts tensors as they lie in memory, which mixes
        up those of a channels-last trunk, and numbers the optimizer's state as if every weight learnt.
        """
        checkpoint = torch.load(checkpoint_path, map_location="cpu", mmap=True, weights_only=weights_only)
        assert self.model is not None
        options = StateDictOptions(full_state_dict=True)
        set_model_state_dict(self.model, checkpoint.pop("state_dict"), options=options)
        for optimizer, state in zip(self.optimizers, checkpoint.get("optimizer_states", []), strict=False):
            names = self._learning(optimizer)
            groups = [{**group, "params": [names[each] for each in group["params"]]} for group in state["param_groups"]]
            named: Any = {
                "state": {names[each]: value for each, value in state["state"].items()},
                "param_groups": groups,
            }
            set_optimizer_state_dict(self.model, optimizer, named, options=options)
        return checkpoint

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The whole state, its weights numbered as without shards; empty but on the first process."""
        assert self.model is not None
        optimizer = optimizer.optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        named: Any = get_optimizer_state_dict(self.model, optimizer, options=options)
        if not named:
            return {}
        number = {name: each for each, name in enumerate(self._learning(optimizer))}
        groups = [{**group, "params": [number[name] for name in group["params"]]} for group in named["param_groups"]]
        return {"state": {number[name]: value for name, value in named["state"].items()}, "param_groups": groups}

    def _learning(self, optimizer: Optimizer) -> list[str]:
        """The names of an optimizer's weights, in its order."""
        assert self.model is not None
        names = {weight: name for name, weight in self.model.named_parameters()}
        return [names[weight] for group in optimizer.param_groups for weight in group["params"]]


StrategyRegistry.register("fsdp2", FullyShardedStrategy)


def shard(learner: LightningModule) -> None:
    """Shard what learns of a learner, once, where the Trainer's strategy asks for it; a frozen trunk stays whole."""
    strategy = learner.trainer.strategy
    if getattr(strategy, "_layer_sync", None) is not None:
        _synchronise_batch_norm(learner)
        strategy._layer_sync = None  # type: ignore[attr-defined]
    is_sharded = any(isinstance(part, FSDPModule) for part in learner.modules())
    if is_sharded or not isinstance(strategy, ModelParallelStrategy):
        return
    if learner.trainer.precision == "16-mixed":  # Lightning refuses it of the strategy's object, not of its name
        raise UserError("--trainer.precision 16-mixed: its scaler does not know fsdp2's shards; give bf16-mixed")
    if getattr(learner.trunk, "adapter", None) is not None:
        raise UserError("--model.adapter: fsdp2 would shard the trunk that stays as it is; give --trainer.strategy ddp")
    mesh = strategy.device_mesh["data_parallel"]
    for tensor in [*learner.parameters(), *learner.buffers()]:  # as DistributedDataParallel does
        # FSDP2 takes no channels-last tensors, and NCCL none of the CPU's
        tensor.data = tensor.data.to(strategy.root_device).contiguous()
        dist.broadcast(tensor.data, src=0)
    for part in (learner.trunk, learner.embedder, learner.loss):
        if not (isinstance(part, nn.Module) and any(weight.requires_grad for weight in part.parameters())):
            continue
        for block in large_blocks(part):
            fully_shard(block, mesh=mesh)
        fully_shard(part, mesh=mesh)
        if isinstance(part, MetricLoss):
            register_fsdp_forward_method(part, "over_ranks")


def _synchronise_batch_norm(learner: LightningModule) -> None:
    """`--trainer.sync_batchnorm true` by timm's conversion: torch's drops the activations that timm's layers hold."""
    if learner.trainer.strategy.root_device.type == "cpu" and not learner.freeze_batch_norm:
        raise UserError("--trainer.sync_batchnorm true: torch has it on GPUs alone; leave it out")
    convert_sync_batchnorm(learner)


def large_blocks(network: nn.Module) -> Iterator[nn.Module]:
    """The large members of the lists and sequences in a network, innermost first: its layers, stages and blocks."""
    for module in reversed(list(network.modules())):
        if isinstance(module, nn.Sequential | nn.ModuleList):
            for block in module:
                containers = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
                if not isinstance(block, containers) and _size(block) >= BLOCK_WEIGHTS:
                    yield block


def _size(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())

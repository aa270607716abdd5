"""Samplers for training and evaluation, with the same result on any number of processes."""

from levelfield.data.samplers.base import Draw, TrainingBatchSampler
from levelfield.data.samplers.class_balanced import ClassBalancedBatchSampler
from levelfield.data.samplers.evaluation import EvalSampler
from levelfield.data.samplers.m_per_class import MPerClassBatchSampler
from levelfield.data.samplers.shuffled import ShuffledBatchSampler

__all__ = [
    "ClassBalancedBatchSampler",
    "Draw",
    "EvalSampler",
    "MPerClassBatchSampler",
    "ShuffledBatchSampler",
    "TrainingBatchSampler",
]

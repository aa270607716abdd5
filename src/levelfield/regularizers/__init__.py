"""Regularizers: penalties on the positions of embeddings or class weights, added to any loss."""

from levelfield.regularizers.anti_collapse import AntiCollapse
from levelfield.regularizers.base import Regularizer
from levelfield.regularizers.center_invariance import CenterInvariance
from levelfield.regularizers.koleo import KoLeo
from levelfield.regularizers.spherical_constraint import SphericalConstraint
from levelfield.regularizers.uniformity import Uniformity
from levelfield.regularizers.zero_mean import ZeroMean

__all__ = [name for name in dir() if name[0].isupper()]

from pytorch_metric_learning.regularizers import CenterInvariantRegularizer
from regularizer_cases import points, same_as_loop

from levelfield.regularizers import CenterInvariance


def test_equals_the_equation_and_the_peer():
    w = points(7, 5).requires_grad_()
    squares = [(row * row).sum() for row in w]
    mean = sum(squares) / len(squares)
    same_as_loop(CenterInvariance()(w), sum((square - mean) ** 2 / 4 for square in squares) / len(squares), w)
    same_as_loop(CenterInvariance()(w), CenterInvariantRegularizer()(w), w)

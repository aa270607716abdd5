"""A loss in any form: a module, a class or partial that is called once the training classes are known, or its settings.

The learner passes `num_classes` and `embedding_size`.
"""

import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from jsonargparse import Namespace
from lightning.pytorch.utilities import rank_zero_warn
from torch import nn

from levelfield.core.errors import UserError
from levelfield.training.settings import OF_THE_LOSS, SUPPLIED, parameters


class LossForm(NamedTuple):
    """A loss in one form for all."""

    kind: Any  # the class or function
    given: Mapping[str, Any]  # the arguments by name; of a module, the losses that it holds

    @property
    def wanted(self) -> list[str]:
        """Those of `SUPPLIED` that the class has no default for, or a number as default."""
        known = parameters(self.kind)
        return [name for name in SUPPLIED if name in known and known[name].default is not None]

    @property
    def summed(self) -> dict[str, Any]:
        """The losses of a sum, from its mapping `losses`."""
        losses = self.given.get("losses")
        return dict(losses.items()) if isinstance(losses, Mapping | nn.ModuleDict) else {}


def form_of(loss: Any) -> LossForm:
    """The form of a module, a class, a function, a partial of Python or of the parser, or parsed settings."""
    if isinstance(loss, nn.Module):
        return LossForm(type(loss), {name: getattr(loss, name, None) for name in ("losses", "loss")})
    if isinstance(loss, Namespace):
        return LossForm(pkgutil.resolve_name(loss.class_path), vars(loss.get("init_args") or Namespace()))
    if not isinstance(loss, partial):
        return LossForm(loss, {})
    if loss.func.__module__.startswith("jsonargparse"):  # the parser's, whose last argument is the class
        return LossForm(form_of(loss.args[-1]).kind, loss.keywords)
    kind, given = form_of(loss.func)
    return LossForm(kind, {**given, **dict(zip(parameters(kind), loss.args, strict=False)), **loss.keywords})


def supplied_arguments(loss: Any) -> list[str]:
    """Which of `num_classes` and `embedding_size` the learner passes to a class, partial or function.

    It passes those that have no default or a number as default, also for a base class behind `**kwargs` and for the
    losses in a sum.
    """
    form = form_of(loss)
    of_sum = [form_of(each) for each in form.summed.values() if not isinstance(each, nn.Module)]
    return [name for name in SUPPLIED if any(name in each.wanted for each in (form, *of_sum))]


def make_loss(factory: Callable, num_classes: int | None, embedding_size: int) -> nn.Module:
    """The loss of `factory`; `num_classes` is None if it takes none.

    Raises:
        UserError: a partial sets another number.
    """
    form, supplied = form_of(factory), dict(zip(SUPPLIED, (num_classes, embedding_size), strict=True))
    for name in form.wanted:
        if form.given.get(name, supplied[name]) != supplied[name]:
            raise UserError(f"--model.loss.{name} {form.given[name]}: the training has {supplied[name]}; leave it out")
    made: dict[str, Any] = {name: supplied[name] for name in form.wanted if name not in form.given}
    if form.summed:
        made["losses"] = {
            name: each if isinstance(each, nn.Module) else make_loss(each, num_classes, embedding_size)
            for name, each in form.summed.items()
        }
        if "losses" not in getattr(factory, "keywords", {}):  # given by position
            return form.kind(**{**form.given, **made})
    return factory(**made)


def loss_attribute(loss: Any, option: str) -> Any:
    """The value of an option of `OF_THE_LOSS` that is not given: an attribute of the loss class, or the default.

    Args:
        loss: In any form. One that holds losses takes the value on which they agree.

    Raises:
        UserError: the losses of a sum have different values.
    """
    found = list(_values(loss, option))
    if option == "model.loss_lr":  # a loss without weights needs no rate
        found = [each for each in found if each[1] != OF_THE_LOSS[option]] or found
    if any(value != found[0][1] for _, value in found):
        each = ", ".join(f"{name} {value}" for name, value in found)
        raise UserError(f"--{option}: the losses of the sum differ ({each}); give the option")
    return found[0][1]


def is_normalized(loss: Any, asked: bool | None) -> bool:
    """Whether a loss gets normalized embeddings: by the option, else by its class, else true."""
    if asked is None:
        return bool(loss_attribute(loss, "model.normalize"))
    for name in [name for name, normalize in _values(loss, "model.normalize") if asked and not normalize]:
        rank_zero_warn(f"--model.normalize true: {name} expects raw embeddings; leave the option out")
    return asked


def _values(loss: Any, option: str) -> Iterator[tuple[str, Any]]:
    """Name and value of a loss that has the attribute or holds no other; else of the losses that it holds."""
    form, name = form_of(loss), option.partition(".")[2]
    own = inspect.isclass(form.kind) and hasattr(form.kind, name)
    one = form.given.get("loss")  # as a memory holds it
    is_loss = isinstance(one, nn.Module | partial) or (isinstance(one, Namespace) and "class_path" in one)
    inner = [*form.summed.values()] or [one] * is_loss
    if own or not inner:
        yield getattr(form.kind, "__name__", ""), getattr(form.kind, name) if own else OF_THE_LOSS[option]
    else:
        for each in inner:
            yield from _values(each, option)

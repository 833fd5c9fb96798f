"""Names, signatures and defaults against the specification's own pages."""
import dataclasses
import enum
import importlib
import inspect
import re
from abc import ABC

import pytest
from page_parser import read_page, split_arguments

import mstarc

PAGES = {name: read_page(f"{name}.txt") for name in ("ragged-wrappers", "accelerator-graph-config")}


def ours(page):
    return importlib.import_module(re.sub(r"^mstar\b", "mstarc", page.module))


CLASSES = [(page, cls) for page in PAGES.values() for cls in page.classes.values()]
FUNCTIONS = [(page, function) for page in PAGES.values() for function in page.functions.values()]


class _Torch:
    """What the pages' defaults are written with."""
    bfloat16 = mstarc.bfloat16

    @staticmethod
    def device(name):
        return mstarc.device(name)


def check_default(text, value):
    if text is None:
        assert value is inspect.Parameter.empty
    elif text == "<factory>":
        assert value is not inspect.Parameter.empty  # dataclasses show a marker of their own
    else:
        want = eval(text, {"torch": _Torch})
        assert value == want and type(value) is type(want), (value, text)


def check_parameters(want, have):
    """have: inspect.Parameter without self."""
    names = []
    for (name, default, keyword_only), parameter in zip(want, have):
        assert name.lstrip("*") == parameter.name
        names.append(name)
        if name.startswith("**"):
            assert parameter.kind is parameter.VAR_KEYWORD
            continue
        assert parameter.kind is (parameter.KEYWORD_ONLY if keyword_only
                                  else parameter.POSITIONAL_OR_KEYWORD), name
        check_default(default, parameter.default)
    assert len(want) == len(have), (names, have)


def without_self(function):
    parameters = list(inspect.signature(function).parameters.values())
    return parameters[1:] if parameters and parameters[0].name == "self" else parameters


def test_the_pages_were_read():
    """A parser that found nothing would pass every test below."""
    ragged, graph = PAGES["ragged-wrappers"], PAGES["accelerator-graph-config"]
    assert ragged.module == "mstar.engine.resources.attn.ragged.wrappers"
    assert graph.module == "mstar.engine.accelerator_graph_config"
    assert len(ragged.classes) == 6 and list(ragged.functions) == ["padded_head_dim"]
    assert len(graph.classes) == 10 and len(graph.functions) == 3
    assert [len(cls.constructor.parameters) for cls in graph.classes.values() if cls.bases] == [
        9, 1, 11, 13, 9, 10, 3, 3, 1, 10]
    assert graph.classes["PiecewisePackedConfig"].fields == {"total_tokens": ("list[int]", None)}
    assert graph.functions["distribute_tokens"].returns == "list[int]"
    assert ragged.functions["padded_head_dim"].returns == "int"


@pytest.mark.parametrize("page, function", FUNCTIONS, ids=lambda x: getattr(x, "name", ""))
def test_function(page, function):
    have = getattr(ours(page), function.name)
    check_parameters(function.parameters, list(inspect.signature(have).parameters.values()))
    assert inspect.get_annotations(have)["return"] == function.returns
    assert {name: inspect.get_annotations(have)[name] for name in function.types} == function.types


def test_nothing_is_missing_or_extra():
    for page in PAGES.values():
        module = ours(page)
        assert sorted(module.__all__) == sorted([*page.classes, *page.functions])


@pytest.mark.parametrize("page, cls", CLASSES, ids=lambda x: getattr(x, "name", ""))
def test_class(page, cls):
    have = getattr(ours(page), cls.name)
    for base in cls.bases:
        expected = {"ABC": ABC, "Enum": enum.Enum, "object": object}.get(base) or \
            getattr(ours(page), base)
        assert issubclass(have, expected)
        assert expected is object or expected in have.__bases__
    if issubclass(have, enum.Enum):
        assert {name: repr(member.value) for name, member in have.__members__.items()} == cls.members
        return
    check_parameters(cls.constructor.parameters, list(inspect.signature(have).parameters.values()))
    for name, kind in cls.properties.items():
        assert isinstance(inspect.getattr_static(have, name), property)
        assert have.__dict__[name].fget.__annotations__["return"] == kind


@pytest.mark.parametrize("page, cls", CLASSES, ids=lambda x: getattr(x, "name", ""))
def test_methods(page, cls):
    have = getattr(ours(page), cls.name)
    for method in cls.methods.values():
        function = getattr(have, method.name)
        check_parameters(method.parameters, without_self(function))
        assert bool(getattr(function, "__isabstractmethod__", False)) == method.abstract
        annotations = inspect.get_annotations(function)
        if method.returns:
            assert annotations["return"] == method.returns
        for name, kind in method.types.items():
            assert annotations[name] == kind, (method.name, name)


@pytest.mark.parametrize("page, cls", CLASSES, ids=lambda x: getattr(x, "name", ""))
def test_fields(page, cls):
    have = getattr(ours(page), cls.name)
    if not cls.fields:
        return
    fields = {field.name: field for field in dataclasses.fields(have)}
    for name, (kind, default) in cls.fields.items():
        assert fields[name].type == kind, name
        if default is not None:
            assert fields[name].default == eval(default)


@pytest.mark.parametrize("page, cls", CLASSES, ids=lambda x: getattr(x, "name", ""))
def test_types_of_parameters(page, cls):
    """The page's types of constructor parameters; tensors, devices and dtypes may come from any
    framework here."""
    have = getattr(ours(page), cls.name)
    if issubclass(have, enum.Enum):
        return
    annotations = {}
    for part in reversed(have.__mro__):
        annotations.update(inspect.get_annotations(part))
    annotations.update(inspect.get_annotations(have.__init__))
    for name, kind in cls.constructor.types.items():
        got = annotations[name]
        if kind in ("Tensor", "device", "dtype"):
            assert got == "Any"
        else:
            assert got == kind, name


def test_splitting():
    assert split_arguments("a, b=f('x, y'), *, c=[1, 2]") == ["a", "b=f('x, y')", "*", "c=[1, 2]"]


def test_abstract_and_isinstance():
    graph = ours(PAGES["accelerator-graph-config"])
    wrappers = ours(PAGES["ragged-wrappers"])
    dense = importlib.import_module("mstarc.engine.resources.attn.ragged.dense_wrappers")
    for abstract in (graph.AcceleratorGraphConfig, graph.PiecewiseAcceleratorGraphConfig):
        with pytest.raises(TypeError):
            abstract("walk") if abstract is graph.AcceleratorGraphConfig else \
                abstract(capture_fn=None, make_static_inputs=None)
    with pytest.raises(TypeError):
        wrappers._RaggedPrefillBase(1, 1, 64, device="cpu")
    for kind in ("RaggedPrefillWrapper", "RaggedCrossPrefillWrapper", "PrefixedPrefillWrapper"):
        base = getattr(wrappers, kind)
        made = getattr(wrappers, "FlashInfer" + kind)(None, 2, 1, 64, device="cpu")
        assert isinstance(made, base) and isinstance(made, wrappers._FlashInferRaggedPrefillBase)
        assert isinstance(getattr(dense, "FA3" + kind)(2, 1, 64, device="cpu"), base)
        assert isinstance(base(2, 1, 64, device="cpu"), wrappers._RaggedPrefillBase)
        assert inspect.signature(getattr(dense, "FA3" + kind)) == inspect.signature(base)

"""Reads the two pages of the specification as data: what each name must look like.

A page is the text of a generated API page. A documented name starts with its full path and its
signature; what follows until the next one belongs to it: its bases, its parameters with their
types, its return type, and for classes methods, properties, fields and enum members.
"""
import dataclasses
import pathlib
import re

DATA = pathlib.Path(__file__).parent / "data"


@dataclasses.dataclass
class Callable:
    """A function or method: [(name, default or None, keyword only)], and types as the page has them."""
    name: str
    parameters: list
    types: dict = dataclasses.field(default_factory=dict)
    returns: str | None = None
    abstract: bool = False


@dataclasses.dataclass
class Class:
    name: str
    constructor: Callable
    bases: list = dataclasses.field(default_factory=list)
    methods: dict = dataclasses.field(default_factory=dict)
    properties: dict = dataclasses.field(default_factory=dict)
    fields: dict = dataclasses.field(default_factory=dict)   # name -> (type, default or None)
    members: dict = dataclasses.field(default_factory=dict)  # of an enum: name -> value text


@dataclasses.dataclass
class Page:
    module: str
    functions: dict = dataclasses.field(default_factory=dict)
    classes: dict = dataclasses.field(default_factory=dict)


def split_arguments(text):
    """Splits at commas outside brackets and quotes."""
    parts, depth, quoted, part = [], 0, False, ""
    for letter in text:
        quoted ^= letter == "'"
        depth += (letter in "([{") - (letter in ")]}") if not quoted else 0
        if letter == "," and depth == 0 and not quoted:
            parts.append(part.strip())
            part = ""
        else:
            part += letter
    return parts + [part.strip()] if part.strip() else parts


def read_parameters(text):
    parameters, keyword_only = [], False
    for part in split_arguments(text):
        if part == "*":
            keyword_only = True
            continue
        name, equals, default = part.partition("=")
        parameters.append((name, default if equals else None, keyword_only))
    return parameters


SIGNATURE = re.compile(r"^(abstractmethod )?([A-Za-z_]\w*)\((.*)\)(\[source\])?#?$")
FIELD = re.compile(r"^([a-z_]\w*): (.+?)(?: = (.+))?$")
MEMBER = re.compile(r"^([A-Z_]+) = ('.*')$")
PROPERTY = re.compile(r"^property (\w+): (.+)$")
PARAMETER = re.compile(r"^• +(\w+) \((.*)\)$")


def logical_lines(text, module):
    """Lines without blank ones; a return type that ran into the next heading is cut from it."""
    text = re.sub(r"(?<=\w)#(?=\n)|\[source\]#", "", text)
    text = re.sub(r"(Return type:\n\n\w+)(?=" + re.escape(module) + ")", r"\1\n", text)
    return [line.strip() for line in text.split("\n") if line.strip()]


def read_page(name):
    text = (DATA / name).read_text(encoding="utf-8")
    module = text.split("\n", 1)[0].strip()
    if not re.fullmatch(r"[\w.]+", module) or module.count(".") < 2:
        module = re.search(r"^class (mstar[\w.]*)\.\w+\(", text, re.M).group(1)
    page = Page(module)
    owner = target = None
    lines = logical_lines(text, module)
    for number, line in enumerate(lines):
        heading = re.match(r"^(class )?" + re.escape(module) + r"\.(\w+)\((.*)\)$", line)
        if heading:
            target = Callable(heading.group(2), read_parameters(heading.group(3)))
            owner = Class(heading.group(2), target) if heading.group(1) else None
            (page.classes if owner else page.functions)[target.name] = owner or target
            continue
        if target is None:
            continue
        parameter = PARAMETER.match(line)
        if parameter:
            target.types[parameter.group(1)] = parameter.group(2)
        elif line == "Return type:":
            target.returns = lines[number + 1]
        elif owner and line.startswith("Bases: "):
            owner.bases = [base.strip() for base in line[len("Bases: "):].split(",")]
        elif owner and PROPERTY.match(line):
            found = PROPERTY.match(line)
            owner.properties[found.group(1)] = found.group(2)
        elif owner and MEMBER.match(line):
            found = MEMBER.match(line)
            owner.members[found.group(1)] = found.group(2)
        elif owner and SIGNATURE.match(line):
            found = SIGNATURE.match(line)
            target = Callable(found.group(2), read_parameters(found.group(3)),
                              abstract=bool(found.group(1)))
            owner.methods[target.name] = target
        elif owner and FIELD.match(line):
            found = FIELD.match(line)
            owner.fields[found.group(1)] = (found.group(2), found.group(3))
    return page

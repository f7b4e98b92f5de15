"""Dependencies point downwards: storage, wire, parts, privacy, mechanisms, learning, methods, channels, and so on."""

import ast
import re
from collections import defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "sordino"
RUNNING = {"runs", "audits", "flower", "web", "deploy", "cli"}
ABOVE_LEARNING = {"methods", "channels", "shuffler", "client", "fleets", "report", "recipe", *RUNNING}
FORBIDDEN = {
    "storage": {"wire", "parts", "privacy", "mechanisms", "learning", *ABOVE_LEARNING},
    "wire": {"parts", "privacy", "mechanisms", "learning", *ABOVE_LEARNING},
    "parts": {"privacy", "mechanisms", "learning", *ABOVE_LEARNING},
    "privacy": {"mechanisms", "learning", *ABOVE_LEARNING},
    "mechanisms": {"learning", *ABOVE_LEARNING},
    "learning": ABOVE_LEARNING,  # private training draws its noise from the tables of mechanisms
    "methods": {"channels", "shuffler", "client", "fleets", "report", *RUNNING},
    "channels": {"shuffler", "client", "fleets", "report", *RUNNING},
    "shuffler": {"learning", "fleets", "report", "recipe", *RUNNING},
    "client": {"fleets", *RUNNING},  # the owner reads a statement in words before joining
    "fleets": {"report", *RUNNING - {"flower"}},  # how Flower carries messages is written down beside the app
    "recipe": {"channels", "client", "fleets", "report", *RUNNING},
    # `expectations` names the types of the pre-flight
    "report": {"mechanisms", "learning", "methods", "channels", "client", "fleets", *RUNNING - {"runs"}},
    "runs": RUNNING - {"runs"},
    "audits": {"cli"},
}
PROGRAMS = (
    "lower_bound", "catalogue", "statistics", "inspection", "mechanisms", "channels", "training", "evaluation",
    "faults",
)  # fmt: skip


WORDS = "sordino.report.words"  #: plurals, lists and figures: needs nothing, so that every room may import it


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def imported_names(tree: ast.AST, *, types: bool = True) -> set[str]:
    """All names of sordino that code imports, at the top or inside functions; `types`: also those for types alone."""
    names, left = set(), [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.If) and is_name(node.test, "TYPE_CHECKING") and not types:
            left += node.orelse
            continue
        left += ast.iter_child_nodes(node)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("sordino"):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if alias.name.startswith("sordino")}
        elif isinstance(node, ast.Call) and is_name(node.func, "deferred"):
            names |= {argument.value for argument in node.args if isinstance(argument, ast.Constant)}
    return names


def imported_rooms(path: Path) -> set[str]:
    """The rooms of sordino that a file imports, `WORDS` aside."""
    names = imported_names(parsed(path))
    return {name.split(".")[1] for name in names if "." in name and not name.startswith(f"{WORDS}.")}


def imports_of_modules() -> dict[str, set[str]]:
    """The modules that each module of sordino imports when it runs."""
    paths = {".".join(path.relative_to(SOURCE.parent).with_suffix("").parts): path for path in SOURCE.rglob("*.py")}
    trees = {name.removesuffix(".__init__"): parsed(path) for name, path in paths.items()}
    found = {}
    for module, tree in trees.items():
        names = imported_names(tree, types=False)
        found[module] = {name if name in trees else name.rpartition(".")[0] for name in names} & trees.keys() - {module}
    return found


def test_no_module_imports_itself_by_way_of_others():
    """Imports inside functions count; those for types alone do not."""
    try:
        list(TopologicalSorter(imports_of_modules()).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_a_class_name_stands_in_one_module():
    """A leading underscore makes no other name. `Spec` is the table of every part."""
    places = defaultdict(set)
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].add(path.relative_to(SOURCE))
    double = {name: sorted(map(str, found)) for name, found in places.items() if len(found) > 1}
    assert set(double) == {"Spec"}, double


@pytest.mark.parametrize("room", list(FORBIDDEN))
def test_a_room_knows_nothing_of_those_above_it(room):
    files = sorted((SOURCE / room).rglob("*.py"))
    assert files
    for path in files:
        assert not imported_rooms(path) & FORBIDDEN[room], path.name


def test_words_need_no_other_module():
    assert imported_rooms(SOURCE / "report" / "words.py") == set()


@pytest.mark.parametrize("module", PROGRAMS)
def test_audits_of_programs_need_no_run(module):
    forbidden = {"client", "fleets", "report", "recipe", *RUNNING - {"audits"}}
    assert not imported_rooms(SOURCE / "audits" / f"{module}.py") & forbidden


def test_only_its_command_knows_of_the_reproduction():
    """`papers/` is not in the wheel: what is there must run without it."""
    recipes = sorted((SOURCE / "recipes").glob("*.toml"))
    assert recipes
    assert not [path.name for path in recipes if "papers." in path.read_text()]
    modules = [
        path for path in SOURCE.rglob("*.py") if re.search(r"^\s*(from|import) papers\b", path.read_text(), re.M)
    ]
    assert modules == [SOURCE / "cli" / "reproduce.py"]

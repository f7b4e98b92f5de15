import subprocess
import sys

import pytest

import sordino


@pytest.mark.parametrize("name", sordino.__all__)
def test_every_public_name_can_be_had_from_the_top(name):
    assert getattr(sordino, name).__name__ == name


def test_a_user_can_guess_the_public_names():
    assert {"Client", "Mechanism", "Method", "Outcome", "Recipe", "audit", "load_model", "run"} < set(sordino.__all__)
    assert dir(sordino) == sorted(sordino.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="TwoPoints"):
        sordino.TwoPoints  # noqa: B018


@pytest.mark.process
def test_importing_the_package_loads_nothing_heavy():
    program = "import sys, sordino; print(sorted({'numpy', 'scipy', 'torch', 'cryptography'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.process
def test_the_core_never_imports_the_learning_stack():
    program = (
        "import sys, sordino\n"
        "sordino.Mechanism, sordino.Recipe, sordino.SordinoError\n"
        "import sordino.audits.lower_bound, sordino.privacy.ledger, sordino.privacy.statement\n"
        "print(sorted({'torch', 'sklearn', 'flwr'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.process
def test_the_command_says_its_version():
    done = subprocess.run([sys.executable, "-m", "sordino", "--version"], check=True, capture_output=True, text=True)
    assert done.stdout == f"sordino {sordino.__version__}\n"

from tools.size import code_lines

SOURCE = '''"""A module.

In two paragraphs.
"""

# a comment
import os  # another


class Empty:
    """Documented."""


def text() -> str:
    """Documented."""
    return """

    two lines of a string
    """


X = (
    1,

    2,  # counted once
)
'''


def test_blanks_comments_and_docstrings_are_no_code():
    assert code_lines(SOURCE) == 1 + 1 + (1 + 3) + 4

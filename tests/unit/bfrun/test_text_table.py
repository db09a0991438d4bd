"""Tables in the terminal."""

from bfrun.text_table import align


def test_columns_are_as_wide_as_their_widest_cell():
    rows = [("name", "bytes"), ("a long name", "1"), ("b", "123456")]
    assert align(rows, left=1) == [
        "name          bytes",
        "a long name       1",
        "b            123456",
    ]

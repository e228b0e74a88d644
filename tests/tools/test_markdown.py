"""Tables as Markdown."""

from tools.markdown import table


def test_a_table_is_one_block_in_which_a_cell_s_own_bar_is_text() -> None:
    assert table(["a", ">b"], [("x | y", "1"), ("", "2")]) == "| a | b |\n| --- | ---: |\n| x \\| y | 1 |\n|  | 2 |"

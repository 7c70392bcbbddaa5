"""The pages' runner finds what is wrong."""

from pathlib import Path

import pytest

from tests.docs.pages import PageError, blocks, commands, corrected, matches, remeasured, renewed, run_page

PAGE = """Text.

```python
x = 2
print(x)
```

```text
2
```

```python title="other.py"
name = "other"
```

```python
import other
print(other.name, x)
```

```text
o... 3
```
"""


def test_blocks_are_found_with_what_their_fences_say() -> None:
    page = '```sh\na\n```\n<!-- not run: too long -->\n```toml title="c.toml"\nb\n```\n'
    page += "```text measured\n1 ms\n```\n```\nd\n```\n"
    assert [(b.line, b.language, b.title, b.measured, b.not_run, b.text) for b in blocks(page)] == [
        (1, "sh", "", False, "", "a\n"),
        (5, "toml", "c.toml", False, "too long", "b\n"),
        (8, "text", "", True, "", "1 ms\n"),
        (11, "", "", False, "", "d\n"),
    ]


def test_names_and_files_are_shared_and_a_wrong_output_is_found_and_corrected(tmp_path: Path) -> None:
    outputs = run_page(PAGE, tmp_path, {})
    assert [output.right for output in outputs] == [True, False]
    assert "line 21:" in str(outputs[1])
    assert "+other 2" in str(outputs[1])
    assert corrected(PAGE, outputs) == PAGE.replace("o... 3", "other 2")


def test_a_page_leaves_nothing_behind(tmp_path: Path) -> None:
    for name in ("one", "two"):  # the second `other` is not the first one
        folder = tmp_path / name
        folder.mkdir()
        page = f'```python title="other.py"\nname = "{name}"\n```\n'
        page += '```python\nimport other, os\nprint(other.name, os.environ["K"])\n```\n'
        page += f"```text\n{name} v\n```\n"
        (output,) = run_page(page, folder, {"K": "v"})
        assert output.right


@pytest.mark.parametrize(
    ("page", "error"),
    [
        ("```python\n1 / 0\n```\n", "ZeroDivisionError"),
        ("```sh\nfalse\n```\n", "`false` ends with 1, not 0"),
        ("```sh\ntrue  # exit status 3\n```\n", "ends with 0, not 3"),
        ("```sh\nplanner explain nothing.json\n```\n", "ends with 2, not 0\nplanner: cannot read the plan"),
        ("```text\n1\n```\n", "line 1: this output stands under no block that runs"),
        ("```sh\ntrue\n```\n```text\n```\n```text\n1\n```\n", "line 6: this output stands under no block"),
    ],
)
def test_what_does_not_run_is_an_error(page: str, error: str, tmp_path: Path) -> None:
    with pytest.raises(PageError) as caught:
        run_page(page, tmp_path, {})
    assert error in str(caught.value)


def test_errors_of_planner_are_shown_and_its_progress_is_not(tmp_path: Path) -> None:
    page = "```sh\nplanner explain no.json  # exit status 2\necho a > b; cat b\n```\n"
    page += "```text\nplanner: ...'no.json'...\na\n```\n"
    (output,) = run_page(page, tmp_path, {})
    assert output.right, str(output)


@pytest.mark.parametrize(
    ("shown", "printed", "measured", "same"),
    [
        ("a\n", "a  \n\n", False, True),
        ("a\nb\n", "a\n", False, False),
        ("a\n...\nc\n", "a\nb\nb\nc\n", False, True),
        ("a\n...\nc\n...\n", "a\nc\n", False, True),
        ("a\n...\nc\n", "a\nb\n", False, False),
        ("a ... c\n", "a b\nb c\n", False, False),
        ("1.5 ms\n", "2 us\n", False, False),
        ("time  1.5 ms  +3%\n", "time  212 us  −12.5%\n", True, True),
        ("time 1.5 ms\n", "time infinite\n", True, False),
        ("cpu0 1 GiB\n", "gpu0 1 GiB\n", True, False),
    ],
)
def test_matching(shown: str, printed: str, measured: bool, same: bool) -> None:
    assert matches(shown, printed, measured) is same


def test_commands_may_go_on_in_the_next_line() -> None:
    assert list(commands("# why\na \\\n  b\n\nc  # d\n")) == ["a    b", "c  # d"]


def test_what_is_left_out_within_a_line_stays_so() -> None:
    assert renewed("a 1\n...\nin ... s\n", "a 2\nb\nin 3 s\nin 4 min\n") == "a 2\nb\nin ... s\nin 4 min\n"


def test_measured_numbers_are_renewed_between_what_is_left_out() -> None:
    shown = "cpu0  1.5 ms\n...\n12 samples/s\nnot there 1 ms\n"
    assert remeasured(shown, "cpu0  22 us\nnoise\n9 samples/s\n") == "cpu0  22 us\n...\n9 samples/s\nnot there 1 ms\n"


def test_a_measured_output_is_corrected_on_demand_only(tmp_path: Path) -> None:
    page = "```sh\necho 1 ms\n```\n```text measured\n2 ms\n```\n"
    outputs = run_page(page, tmp_path, {})
    assert outputs[0].right
    assert corrected(page, outputs) == page
    assert corrected(page, outputs, measured=True) == page.replace("2 ms", "1 ms")

"""What errors say: the first line of others', and the word that was meant."""

import pytest

from graphs.common.errors import InputError, first_line, nearest, running


def test_first_line() -> None:
    assert first_line(ValueError("\n  this went wrong .  \nand that")) == "this went wrong"
    assert first_line(ValueError("")) == "ValueError"


def test_a_message_with_a_value_of_any_length_keeps_its_beginning_and_its_end() -> None:
    said = str(InputError(f"device 'gpu': memory is {'4 GB ' * 5000}; write a size, such as 24 GB"))
    assert len(said) < 1700
    assert said.startswith("device 'gpu': memory is 4 GB 4 GB")
    assert said.endswith("4 GB ; write a size, such as 24 GB")
    assert str(InputError("short")) == "short"


def test_what_a_model_refuses_is_bad_input() -> None:
    for refusal in (ValueError("no image"), RuntimeError("no image"), InputError("no image")):
        with pytest.raises(InputError, match="no image") as caught, running("the model"):
            raise refusal
        assert str(caught.value).startswith("the model fails") == (type(refusal) is not InputError)


def test_the_nearest_word() -> None:
    assert nearest("cpu01", ["gpu0", "cpu0"]) == "; did you mean 'cpu0'?"
    assert nearest("zzz", ["gpu0", "cpu0"]) == nearest("a", []) == ""


def test_small_letters_are_like_large_ones() -> None:
    assert nearest("A100", ["v100", "a100"]) == "; did you mean 'a100'?"
    assert nearest("KB", ["B", "kB", "MB"]) == "; did you mean 'kB'?"
    assert nearest("nett", ["Net", "net"]) == "; did you mean 'net'?"  # of two alike, the nearer one

"""The pages of error messages and the source say the same: no message is missing, none is left over."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import caffnet
from messages import Message, read_messages

PAGES = Path(__file__).resolve().parents[2] / "docs" / "guides"
MESSAGES = read_messages(Path(caffnet.__file__).parent)
ENTRY = re.compile(r"^``(.+)``\n:   (.+)", re.MULTILINE)
ENTRIES = [
    (text, remedy)
    for page in ("troubleshooting.md", "troubleshooting-parts.md")
    for text, remedy in ENTRY.findall((PAGES / page).read_text())
]


def says(entry: str, message: Message) -> bool:
    """Whether the message begins as the entry does. What is filled in at the very beginning may be left out."""
    return message.text.removeprefix("…").strip().startswith(entry.removeprefix("…").strip())


def test_the_messages_were_found():
    texts = {message.text for message in MESSAGES}
    assert len(texts) > 200
    assert any(text.startswith("…No point satisfies the constraints of … of … samples:") for text in texts)
    assert "A box needs a lower or an upper bound, got neither." in texts


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.place)
def test_every_message_is_listed(message: Message):
    assert any(says(entry, message) for entry, _ in ENTRIES), (
        f"{message.place} says {message.text!r}: list it in docs/guides/troubleshooting.md, with cause and remedy."
    )


@pytest.mark.parametrize("entry", [entry for entry, _ in ENTRIES])
def test_no_entry_is_left_over(entry: str):
    assert any(says(entry, message) for message in MESSAGES), f"No message of the library begins with {entry!r}."


def test_entries_say_something_and_stand_once():
    texts = [entry for entry, _ in ENTRIES]
    assert len(texts) == len(set(texts))
    assert all(len(entry.replace("…", "").split()) >= 2 or entry.startswith("… failed") for entry in texts)
    assert all(len(remedy.split()) >= 3 for _, remedy in ENTRIES)

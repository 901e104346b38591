"""The page of questions: each has a short reply and leads to a page, and its commands run."""

import re
import shlex

import bucketq
from servers import ROOT

PAGE = (ROOT / "docs" / "questions.md").read_text()
MOST_SENTENCES = 3


def questions() -> dict[str, str]:
    """Return the text below each question."""
    parts = re.split(r"^### (.+)\n", PAGE.partition("\n## Words of")[0], flags=re.MULTILINE)
    return {
        heading: text.partition("\n## ")[0] for heading, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def test_there_are_twenty_five_and_each_leads_from_the_readme_to_a_page():
    assert "](docs/questions.md)" in (ROOT / "README.md").read_text()
    found = questions()
    assert [heading.split(".")[0] for heading in found] == [str(n) for n in range(1, 26)]
    for heading, text in found.items():
        assert heading.endswith("?")
        reply = text.strip().partition("\n\n")[0]
        assert re.search(r"\]\([a-z-]+\.md(#[a-z0-9-]+)?\)$", reply), heading
        plain = re.sub(r"`[^`]*`", "x", reply.partition(" [")[0])
        assert 2 <= len(re.findall(r"[.?](?= |$)", plain)) <= MOST_SENTENCES, heading


def test_the_commands_of_the_page_run(command, tmp_path):
    with bucketq.open(command.environ["BUCKETQ_URL"]) as file:
        emails = file.queue("emails")
        emails.enqueue("hello")
        emails.claim_one().reject("no answer")
    lines = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
    shown = {line: command(*shlex.split(line)[1:]) for line in lines}
    assert len(shown) >= 8
    assert "no answer" in shown["bucketq ls emails --state dead"]
    assert "1" in shown['bucketq requeue --queue emails --error "no answer"']
    assert (tmp_path / "backup.sqlite").exists()

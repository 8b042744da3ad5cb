"""Lines of a kubelet's response to a request for a log."""

import pytest

from fiber_k8s.logs import follow, last_lines

#: recorded from a node that had removed the container
GONE = b"unable to retrieve container logs for containerd://646ee4c36f22f6e2"


class Answer:
    def __init__(self, *chunks):
        self._chunks = chunks

    def stream(self, size, decode_content):
        yield from self._chunks

    def close(self):
        pass


class Node:
    """Answers in turn, the last answer again and again."""

    def __init__(self, *answers):
        self._answers = [*answers]

    def path(self, *words):
        return "/".join(words)

    def open(self, verb, path, doing, *, query, timeout):
        return Answer(*(self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]))


def test_lines_are_whole_however_they_come():
    assert last_lines(Node([b"on", b"e\ntwo\nth", b"ree"]), "pod", 3) == ("one", "two", "three")


@pytest.mark.parametrize("chunks", [[GONE], [GONE[:20], GONE[20:]]])
def test_a_nodes_words_about_a_log_that_is_gone_are_no_line_of_it(chunks, caplog):
    assert last_lines(Node(chunks), "pod-1", 3) == ()
    assert "the log of pod-1 is gone" in caplog.text


def test_nor_are_they_where_a_log_was_followed_until_its_container_went(caplog):
    stamped = b"2026-11-22T07:00:01.5Z one\n"
    lines = follow(Node([stamped, GONE], [GONE]), "pod", to_the_end=True)
    assert list(lines) == ["one"]
    assert caplog.text == ""


def test_a_program_may_write_the_same():
    said = b"it said: " + GONE
    assert last_lines(Node([said]), "pod", 3) == (said.decode(),)

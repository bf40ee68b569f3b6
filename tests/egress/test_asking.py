"""Where somebody can be asked, the connection waits for the answer; only yes opens it."""

from __future__ import annotations

import concurrent.futures
import queue

import pytest
from tests.egress.servers import echo, listening
from tests.egress.stage import Stage, allowing, was_reset
from tests.egress.test_http import answer, request

from casemate.egress.terms import EgressTerms
from casemate.model.approval import ApprovalVerdict
from casemate.policy.hosts import HostRules, denied_rule

Question = tuple[str, int, int, "concurrent.futures.Future[ApprovalVerdict]"]


class Person:
    """Somebody who is asked, and answers when the test does."""

    def __init__(self) -> None:
        self.questions: queue.Queue[Question] = queue.Queue()

    def decide(self, host: str, port: int, how_often: int) -> concurrent.futures.Future[ApprovalVerdict]:
        answered: concurrent.futures.Future[ApprovalVerdict] = concurrent.futures.Future()
        self.questions.put((host, port, how_often, answered))
        return answered


@pytest.fixture
def person(stage: Stage) -> Person:
    """Is asked about everything but what rules say."""
    one = Person()
    rules = HostRules(allowing("good.test").allowed, (denied_rule("evil.test"),))
    stage.open(EgressTerms(rules, approvals=one))
    return one


def test_a_connection_waits_until_it_is_approved(stage: Stage, person: Person, http_port: int) -> None:
    stage.internet.add("new.test", 80, http_port)
    with stage.connect("new.test", 80) as one:
        one.sendall(request(host="new.test"))
        host, port, how_often, answered = person.questions.get(timeout=60)
        assert (host, port, how_often) == ("new.test", 80, 1)
        assert (stage.internet.resolved, stage.internet.dialled) == ([], [])
        answered.set_result(ApprovalVerdict(True, "a person"))
        assert answer(one)[0] == 200
    assert stage.crossing("new.test", 80) == [("allowed", "it was asked for and approved by a person")]


@pytest.mark.parametrize("said", [True, None, "yes", ApprovalVerdict(1, "x"), ValueError("broken"), "cancelled"])  # type: ignore[arg-type]
def test_anything_but_yes_is_no(stage: Stage, person: Person, http_port: int, said: object) -> None:
    stage.internet.add("new.test", 80, http_port)
    with stage.connect("new.test", 80) as one:
        one.sendall(request(host="new.test"))
        *_, answered = person.questions.get(timeout=60)
        if isinstance(said, Exception):
            answered.set_exception(said)
        elif said == "cancelled":
            answered.cancel()
        else:
            answered.set_result(said)  # type: ignore[arg-type]
        code, text = answer(one)
    assert code == 403
    assert b"not approved" in text
    assert stage.internet.dialled == []


def test_where_nobody_was_there_to_ask_that_is_said(stage: Stage, person: Person, http_port: int) -> None:
    stage.internet.add("new.test", 80, http_port)
    with stage.connect("new.test", 80) as one:
        one.sendall(request(host="new.test"))
        *_, answered = person.questions.get(timeout=60)
        answered.set_result(ApprovalVerdict(False, "nobody", "nobody is there to ask"))
        code, text = answer(one)
    assert code == 403
    assert b"not approved: nobody is there to ask" in text


def test_each_connection_is_asked_for_and_counted(stage: Stage, person: Person, http_port: int) -> None:
    stage.internet.add("new.test", 80, http_port)
    for how_often in (1, 2, 3):
        with stage.connect("new.test", 80) as one:
            one.sendall(request(host="new.test"))
            *_, counted, answered = person.questions.get(timeout=60)
            assert counted == how_often
            answered.set_result(ApprovalVerdict(how_often != 2, "a person"))
            assert answer(one)[0] == (403 if how_often == 2 else 200)


def test_what_rules_decide_is_not_asked(stage: Stage, person: Person, http_port: int) -> None:
    stage.internet.add("good.test", 80, http_port)
    with stage.connect("good.test", 80) as one:
        one.sendall(request())
        assert answer(one)[0] == 200
    assert stage.ask("evil.test") == (3, None)
    assert person.questions.empty()


@pytest.mark.parametrize("name", ["localhost", "metadata.google.internal", "printer.local", "intranet"])
def test_nobody_is_asked_about_names_of_no_public_host(stage: Stage, person: Person, name: str) -> None:
    assert stage.ask(name) == (3, None)
    with stage.proxy() as one:
        one.sendall(f"CONNECT {name}:443 HTTP/1.1\r\nHost: {name}:443\r\n\r\n".encode())
        assert answer(one)[0] == 403
    assert person.questions.empty()


def test_an_approved_name_is_vetted_like_any_other(stage: Stage, person: Person, echo_port: int) -> None:
    stage.internet.add("new.test", 443, echo_port, "127.0.0.1")
    with stage.connect("new.test", 443) as one:
        *_, answered = person.questions.get(timeout=60)
        answered.set_result(ApprovalVerdict(True, "a person"))
        assert was_reset(one)
    assert stage.internet.dialled == []


def test_with_another_step_another_person_is_asked_and_an_answer_does_not_outlive_its_step(
    stage: Stage, person: Person, http_port: int
) -> None:
    stage.internet.add("new.test", 80, http_port)
    other = Person()
    with stage.proxy() as one:
        one.sendall(request("http://new.test/", host="new.test"))
        *_, answered = person.questions.get(timeout=60)
        answered.set_result(ApprovalVerdict(True, "a person"))
        assert answer(one)[0] == 200
        one.sendall(request("http://new.test/", host="new.test"))
        assert answer(one)[0] == 200  # the same connection, the same step
        stage.cell_proxy.change(EgressTerms(approvals=other))
        one.sendall(request("http://new.test/", host="new.test"))
        *_, answered = other.questions.get(timeout=60)
        answered.set_result(ApprovalVerdict(False, "a person"))
        assert answer(one)[0] == 403


def test_a_cell_that_ends_takes_its_questions_back(stage: Stage, person: Person) -> None:
    with stage.connect("new.test", 443) as one:
        *_, answered = person.questions.get(timeout=60)
        stage.cell_proxy.close().result(60)
        assert was_reset(one)
    assert answered.cancelled()


def test_other_connections_go_on_while_one_waits(stage: Stage, person: Person) -> None:
    stage.internet.addresses["good.test"] = ["93.184.6.6"]
    with listening(echo) as port, stage.connect("new.test", 443):
        person.questions.get(timeout=60)
        stage.cell_proxy.change(EgressTerms(allowing("good.test:7"), approvals=person))
        stage.internet.servers["93.184.6.6", 7] = port
        with stage.connect("good.test", 7) as one:
            one.sendall(b"x")
            assert one.recv(1) == b"x"

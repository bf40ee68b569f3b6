"""Rules that decide without asking: allow, deny, ask. Pure: the time is an argument.

Deny wins over ask, and ask over allow. An answer that a person gave for a run or a session is a rule, too: for exactly
the same question, and only in that run or session; where a rule says ask, such an answer is what it asked for.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from casemate.model.approval import ApprovalVerdict, Decision, Effect, Kind, Question
from casemate.policy.canonical import fingerprint
from casemate.policy.hosts import LOCAL_NAME, HostRule, HostRules, canonical
from casemate.policy.patterns import AnyValue, CommandPattern, Pattern

if TYPE_CHECKING:
    from ipaddress import IPv4Network

# A name and at most one exact version: no extras, no ranges, no addresses, paths or options.
_PYTHON = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?)(?:==(?P<version>[A-Za-z0-9.!+_-]{1,64}))?"
)
_NODE = re.compile(
    r"(?P<name>(?:@[a-z0-9][a-z0-9._-]{0,99}/)?[a-z0-9][a-z0-9._-]{0,99})(?:@(?P<version>[0-9][A-Za-z0-9.+-]{0,63}))?"
)
_NAMES = {"python": _PYTHON, "node": _NODE}
PACKAGE_LANGUAGES = tuple(_NAMES)  # those that packages come in


@dataclass(frozen=True, slots=True)
class Package:
    """``name`` as its registry normalises it; ``version``: None for whichever."""

    language: str
    name: str
    version: str | None = None

    def covers(self, other: Package) -> bool:
        """Whether ``other`` is this package, and of this version where one is named."""
        same = (self.language, self.name) == (other.language, other.name)
        return same and self.version in (None, other.version)

    def __str__(self) -> str:
        mark = "==" if self.language == "python" else "@"
        return self.name if self.version is None else f"{self.name}{mark}{self.version}"


def package(text: object, language: object = "python") -> Package | None:
    """The package that ``text`` names (``numpy``, ``numpy==2.1``, ``@types/node@22.1.0``); None for anything else.

    Python's names are normalised as PyPI does (PEP 503); those of npm are lower case by its own rule.
    """
    form = _NAMES.get(language) if isinstance(language, str) else None
    found = form.fullmatch(text) if form is not None and isinstance(text, str) else None
    if found is None:
        return None
    name = re.sub(r"[-_.]+", "-", found["name"]).lower() if language == "python" else found["name"]
    return Package(str(language), name, found["version"])


# What holds where no rule is about a question. "ask" without an approver is no.
DEFAULTS: Mapping[Kind, Effect] = MappingProxyType(
    {
        "tool": "ask",
        "egress": "ask",
        "package": "ask",
        "shell": "allow",  # within the cell: the wall is the boundary
        "process": "allow",  # likewise
        "host": "ask",
        "files": "ask",
        "server": "ask",
        "plan": "ask",
        "elicitation": "ask",
        "secret": "ask",  # of agents of a service; whoever runs the sandbox names those that programs get
    }
)
_MOST_ANSWERS = 10_000  # remembered; beyond it the oldest is forgotten, which asks again
_EVER = float("inf")
_EFFECTS: tuple[Effect, ...] = ("deny", "ask", "allow")  # each wins over the next
_OF_RULE = 20  # steps that a rule takes besides its patterns


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """One rule; two are the same only if they are one, because each has a budget of its own.

    ``addresses``: private networks, the only ones in which ``host`` is dialled. ``arguments``: None where the rule says
    nothing of them, else a pattern for each by its name; in a rule that allows no others may be there. ``exactly``: the
    fingerprint of the one question that it is about. ``namespace``, ``session``, ``run``, ``agent``: where and for
    whom it holds, None for all. ``uses``: how often it allows, ``lasts``: for how many seconds from the start of its
    :class:`Rulebook`, ``until``: until when (Unix time), ``expires``: the same in seconds of the clock that gives
    ``now``. ``where``: where it is written, or who answered.
    """

    effect: Effect
    kind: Kind
    server: str = ""
    tool: str = ""
    schema: str = ""
    host: HostRule | None = None
    addresses: tuple[IPv4Network, ...] = ()
    package: Package | None = None
    with_dependencies: bool = False
    command: CommandPattern | None = None
    arguments: Mapping[str, Pattern] | None = None
    exactly: str = ""
    namespace: str | None = None
    session: str | None = None
    run: str | None = None
    agent: str | None = None
    uses: int | None = None
    lasts: float = _EVER
    until: float = _EVER
    expires: float = _EVER
    reason: str = ""
    where: str = ""

    def covers(self, question: Question) -> bool:
        """Whether the rule is about ``question``, whatever the time and what is left of its budget."""
        if self.kind != question.kind or not self._holds_for(question):
            return False
        if self.exactly:
            return self.exactly == fingerprint(question)
        if question.beyond and self.effect == "allow":
            return False
        named = ((self.server, question.server), (self.tool, question.tool), (self.schema, question.schema))
        if any(mine and mine != theirs for mine, theirs in named):
            return False
        return self._covers_host(question) and self._covers_what_is_run(question) and self._covers_arguments(question)

    @property
    def conditional(self) -> bool:
        """Whether it holds only for some time, some uses or some who ask."""
        whose = (self.namespace, self.session, self.run, self.agent, self.uses)
        return any(one is not None for one in whose) or {self.lasts, self.until, self.expires} != {_EVER}

    @property
    def takes_first(self) -> bool:
        """Whether it allows a tool and does not say how that is defined: then as it was when it first allowed it."""
        return self.effect == "allow" and bool(self.tool) and not self.schema

    @property
    def text(self) -> str:
        """What it says of a tool, wherever it is written."""
        patterns = sorted((name, str(one)) for name, one in (self.arguments or {}).items())
        digest = hashlib.sha256(repr((patterns, self.reason)).encode()).hexdigest()
        return f"{self.server}.{self.tool} {digest[:16]}"

    @property
    def _allows(self) -> bool:
        return self.effect == "allow"

    def _holds_for(self, question: Question) -> bool:
        asked = (
            (self.namespace, question.namespace), (self.session, question.session), (self.run, question.run),
            (self.agent, question.agent),
        )  # fmt: skip
        return all(mine is None or mine == theirs for mine, theirs in asked)

    def _covers_host(self, question: Question) -> bool:
        if self.host is None:
            return True
        host, port = question.arguments.get("host"), question.arguments.get("port")
        name = canonical(host) if isinstance(host, str) else None
        if name is None or isinstance(port, bool) or not isinstance(port, int):
            return not self._allows
        if self._allows:
            return self.host.covers(name, port)
        return self.host.names(name) and self.host.port in (None, port)

    def _covers_what_is_run(self, question: Question) -> bool:
        if self.command is not None and not self.command.covers(question.arguments.get("argv"), narrowly=self._allows):
            return False
        if self._allows and question.kind == "host" and question.arguments.get("secrets"):
            return False  # a command with secrets is for a person to allow
        if self.package is None:
            return True
        names = question.arguments.get("packages")
        asked = [package(name, question.arguments.get("language")) for name in names] if isinstance(names, list) else []
        if self._allows:
            return bool(asked) and all(one is not None and self._allows_package(one, question) for one in asked)
        anyhow = replace(self.package, version=None)  # a range, or none, may come out as the version that is meant
        return not asked or any(one is None or _could_be(self.package, anyhow, one) for one in asked)

    def _allows_package(self, asked: Package, question: Question) -> bool:
        """Whether it is the rule's, or, where the rule says so, one that the rule's needs, directly or over others."""
        meant = self.package
        assert meant is not None
        above = question.arguments.get("needed_by") if self.with_dependencies else None
        seen, due = {str(asked)}, [str(asked)]
        while above and due:
            new = set(above.get(due.pop(), ())) - seen
            seen |= new
            due += new
        named = (package(one, asked.language) for one in seen)
        return any(one is not None and meant.covers(one) for one in named)

    def _covers_arguments(self, question: Question) -> bool:
        if self.arguments is None:
            return True
        given = question.arguments
        if self._allows and not given.keys() <= self.arguments.keys():
            return False
        return all(
            expected.covers(given[name], narrowly=self._allows) if name in given else isinstance(expected, AnyValue)
            for name, expected in self.arguments.items()
        )


def _is_about_name(rule: Rule, question: Question) -> bool:
    """Whether a rule says something of a package before its version is known: to allow one allows to look for it."""
    if rule.effect == "allow":
        package = rule.package and replace(rule.package, version=None)
        return replace(rule, package=package, arguments=None).covers(question)
    return (rule.package is None or rule.package.version is None) and rule.covers(question)


def _could_be(meant: Package, anyhow: Package, asked: Package) -> bool:
    return anyhow.covers(asked) and (meant.version is None or asked.version in (None, meant.version))


@dataclass(frozen=True, slots=True)
class Rules:
    """What is written: ``written`` rules in their order, and ``defaults`` that differ from ``DEFAULTS`` with where
    each is written."""

    written: tuple[Rule, ...] = ()
    defaults: Mapping[Kind, tuple[Effect, str]] = field(default_factory=dict)

    def default(self, kind: Kind) -> tuple[Effect, str]:
        """What holds without a rule, and where that is written."""
        return self.defaults.get(kind, (DEFAULTS[kind], "default"))


@dataclass(frozen=True, slots=True)
class Ruling:
    """What rules say about a question, and the ``rules`` that say it, one for each use that it takes."""

    verdict: ApprovalVerdict
    rules: tuple[Rule, ...]


class Rulebook:
    """Rules in force: what is written, what was answered since, and what is left of each budget.

    One thread at a time decides and remembers; ``asks``, ``answers`` and ``set_default`` are for any.
    """

    def __init__(
        self,
        rules: Rules,
        began: float,
        today: Callable[[], float],
        bound: Callable[[], Mapping[str, str]] = dict,
        bind: Callable[[str, str], object] = lambda _rule, _schema: None,
    ) -> None:
        """``began``: now, in seconds of the clock that all later ``now`` are of; ``today`` gives Unix time. ``bound``:
        which definition of a tool each rule that names none has allowed before, by `Rule.text`; ``bind`` keeps it."""
        self.rules = rules
        self._today = today
        self._began = began
        self._answers: OrderedDict[Rule, None] = OrderedDict()
        self._answers_to: dict[str, list[Rule]] = {}
        self._spent: Counter[Rule] = Counter()
        self._bind = bind
        self._schemas = dict(bound()) if any(rule.takes_first for rule in rules.written) else {}
        self._breadth = sum(_breadth(rule) for rule in rules.written)

    def set_default(self, kind: Kind, effect: Effect) -> None:
        """From now on ``effect`` is what holds for ``kind`` where no rule says anything. From any thread."""
        self.rules = replace(self.rules, defaults={**self.rules.defaults, kind: (effect, "set by the application")})

    @property
    def answers(self) -> tuple[Rule, ...]:
        """What was answered for a run or a session and is remembered, oldest first."""
        return tuple(self._answers.copy())  # at once: another thread may be remembering

    def verdict(self, question: Question, now: float) -> ApprovalVerdict | None:
        """What the rules say, and one use of each rule that allowed it spent; None where a person is to be asked.

        Raises ``InvalidArgument`` for arguments that are no JSON values.
        """
        ruling = self.rule_on(question, now)
        return None if ruling is None else self.spend(ruling, question)

    def spend(self, ruling: Ruling, question: Question) -> ApprovalVerdict:
        """The verdict of what was just ruled about ``question``, and one use of each of its rules spent."""
        for rule in ruling.rules:
            self._spent[rule] += 1
            if rule.takes_first and rule.text not in self._schemas:
                self._schemas[rule.text] = question.schema
                self._bind(rule.text, question.schema)
        return ruling.verdict

    def effort(self, size: int) -> int:
        """What looking a question up may take at the most, in steps of a fraction of a microsecond; ``size``: bytes of
        its arguments. From any thread."""
        return _OF_RULE * (len(self.rules.written) + len(self._answers)) + size * (1 + self._breadth)

    def rule_on(self, question: Question, now: float) -> Ruling | None:
        """What the rules say, of which nothing is spent; None where a person is to be asked. Raises as ``verdict``."""
        effect, decisive = self.judge(question, now)
        if effect == "ask":
            return None
        by = ", ".join(dict.fromkeys(rule.where for rule in decisive)) or self.rules.default(question.kind)[1]
        reasons = [rule.reason for rule in decisive if rule.reason]
        verdict = ApprovalVerdict(effect == "allow", by, reasons[0] if reasons else f"{_effect_word(effect)} by {by}")
        return Ruling(verdict, tuple(decisive))

    def judge(self, question: Question, now: float) -> tuple[Effect, list[Rule]]:
        """The effect and the rules that make it, a rule once for each use; nothing is spent. Raises as ``verdict``."""
        answers = [rule for rule in self._answers_for(question) if self._uses_left(rule, now) > 0]
        if denials := [rule for rule in answers if rule.effect == "deny"]:
            return "deny", denials[:1]
        found = [self._judge_one(part, now) for part in _parts(question)]
        for effect, rules in found:
            if effect == "deny":
                return "deny", rules
        if answers:
            return "allow", answers[:1]
        used = Counter(rule for _, rules in found for rule in rules)
        if any(effect == "ask" for effect, _ in found) or any(self._uses_left(r, now) < n for r, n in used.items()):
            return "ask", []
        return "allow", list(used.elements())

    def list_unallowed(self, question: Question, now: float) -> list[str]:
        """The packages of ``question`` that no rule allows."""
        if question.kind != "package":
            return []
        parts = [part for part in _parts(question) if self._judge_one(part, now)[0] != "allow"]
        return [str(name) for part in parts for name in part.arguments.get("packages") or ()]

    def judge_name(self, question: Question, now: float) -> Effect:
        """Whether an index may be asked for the one package that ``question`` names: what rules say of any version.
        Nothing is spent."""
        effects = {
            rule.effect
            for rule in self.rules.written
            if _is_about_name(rule, question) and self._uses_left(rule, now) > 0
        }
        return next((one for one in _EFFECTS if one in effects), self.rules.default("package")[0])

    def remember(self, decision: Decision, question: Question, now: float, by: str = "answer") -> Rule | None:
        """Keep an answer for the rest of its run or session; the crossing just answered is the first of its ``uses``.

        None where nothing is to be kept.
        """
        rule = rule_from(decision, question, now, by)
        if rule is not None:
            self._keep(rule)
            if rule.effect == "allow":
                self._spent[rule] = 1
        return rule

    def promise(self, decision: Decision, question: Question, now: float, by: str = "answer") -> Rule:
        """Keep an answer to a question that was asked ahead: it is for the session of ``question``, or without one for
        all that the agent does that asked, where an agent did, else for its whole namespace. None of its ``uses`` is
        spent. What holds once, or for a run, is one use.
        """
        is_wide = decision.scope == "session"
        rule = rule_from(replace(decision, scope="session"), question, now, by)
        assert rule is not None
        rule = replace(rule, run=None, agent=question.agent or None, uses=rule.uses if is_wide else 1)
        self._keep(rule)
        return rule

    def _keep(self, rule: Rule) -> None:
        self._answers[rule] = None
        self._answers_to.setdefault(rule.exactly, []).append(rule)
        while len(self._answers) > _MOST_ANSWERS:
            self._forget(next(iter(self._answers)))

    def forget(self, namespace: str, session: str | None, run: str) -> None:
        """A run, or with an empty ``run`` a session, is over: what was answered for it holds no more."""
        for rule in self.answers:
            mine = rule.run == run if run else rule.run is None
            if mine and (rule.namespace, rule.session) == (namespace, session):
                self._forget(rule)

    def asks(self, kind: Kind) -> bool:
        """Whether any question of this kind could be asked about or denied: otherwise nobody need come here."""
        written = any(rule.kind == kind and rule.effect != "allow" for rule in self.rules.written)
        answered = any(rule.kind == kind and rule.effect != "allow" for rule in self.answers)
        return written or answered or self.rules.default(kind)[0] != "allow"

    def use_count(self, rule: Rule) -> int:
        """How often a rule has decided."""
        return self._spent[rule]

    def _forget(self, rule: Rule) -> None:
        del self._answers[rule]
        self._spent.pop(rule, None)
        others = [other for other in self._answers_to[rule.exactly] if other is not rule]
        if others:
            self._answers_to[rule.exactly] = others
        else:
            del self._answers_to[rule.exactly]

    def _answers_for(self, question: Question) -> list[Rule]:
        asked = self._answers_to.get(fingerprint(question), ()) if self._answers else ()
        return [rule for rule in asked if rule.covers(question)]

    def _judge_one(self, question: Question, now: float) -> tuple[Effect, list[Rule]]:
        """The effect of the written rules; of several that allow, the first."""
        found: dict[Effect, list[Rule]] = {effect: [] for effect in _EFFECTS}
        for rule in self.rules.written:
            if rule.covers(question) and self._same_tool(rule, question) and self._uses_left(rule, now) > 0:
                found[rule.effect].append(rule)
        for effect, rules in found.items():
            if rules:
                return effect, rules[:1]
        return self.rules.default(question.kind)[0], []

    def _same_tool(self, rule: Rule, question: Question) -> bool:
        """Whether the tool is defined as when the rule first allowed it; other rules are about whatever it is."""
        return not rule.takes_first or self._schemas.get(rule.text, question.schema) == question.schema

    def _uses_left(self, rule: Rule, now: float) -> float:
        """How many uses are left now."""
        over = now >= rule.expires or now - self._began >= rule.lasts
        if over or (rule.until < _EVER and self._today() >= rule.until):
            return 0
        return _EVER if rule.uses is None else rule.uses - self._spent[rule]


def rule_from(decision: Decision, question: Question, now: float, by: str = "answer") -> Rule | None:
    """The rule that an answer for a run or a session makes: exactly this question again, from the same namespace and
    session or run; None for an answer that holds once."""
    if decision.scope == "once":
        return None
    whole_session = decision.scope == "session" and question.session is not None
    return Rule(
        effect="allow" if decision.allow is True else "deny",
        kind=question.kind,
        server=question.server,
        tool=question.tool,
        schema=question.schema,
        exactly=fingerprint(question),
        namespace=question.namespace,
        session=question.session,
        run=None if whole_session else question.run,
        uses=decision.uses if decision.allow is True else None,
        expires=_EVER if decision.expires is None else now + decision.expires,
        reason=decision.reason,
        where=by,
    )


def _breadth(rule: Rule) -> int:
    """Characters of its patterns: each may be held against each of a value."""
    return sum(0 if isinstance(one, AnyValue) else len(str(one)) for one in (rule.arguments or {}).values())


def _parts(question: Question) -> Iterator[Question]:
    """A question about several packages as one about each: each needs a rule of its own."""
    names: Any = question.arguments.get("packages")
    if question.kind != "package" or not isinstance(names, list) or len(names) < 2:
        yield question
        return
    for name in names:
        yield replace(question, arguments={**question.arguments, "packages": [name]})


def _effect_word(effect: Effect) -> str:
    return "allowed" if effect == "allow" else "denied"


def passed_over(rules: Iterable[Rule], hosts: HostRules) -> Rule | None:
    """The first of ``rules`` that asks about a host that ``hosts`` allow, or denies it only at times or to some: nobody
    would be asked, and no rule looked at. None where there is no such rule."""
    return next((one for one in rules if _is_about_some(one, hosts)), None)


def _is_about_some(one: Rule, hosts: HostRules) -> bool:
    if one.kind != "egress" or one.effect == "allow" or (one.effect == "deny" and not one.conditional):
        return False
    if hosts.everything:
        return True
    if one.host is None:  # what is asked about every host is not meant for services of this machine
        return any(other.host != LOCAL_NAME for other in hosts.allowed)
    return any(_meet(one.host, other) for other in hosts.allowed)


def _meet(one: HostRule, other: HostRule) -> bool:
    """Whether some name is meant by both."""
    names = (one.host.removeprefix("*."), other.host.removeprefix("*."))
    return one.host == other.host or one.names(names[1]) or other.names(names[0])

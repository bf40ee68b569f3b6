"""Rules that decide without asking: allow, deny, ask. Pure: the time is an argument.

Deny takes precedence over ask, and ask over allow. An approver's answer for a run or a session becomes a rule for
exactly the same question in that run or session. It also satisfies rules that say ask.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from casemate.model.approval import ApprovalVerdict, Decision, Kind, Question
from casemate.model.kinds import Effect
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
PACKAGE_LANGUAGES = tuple(_NAMES)


@dataclass(frozen=True, slots=True)
class Package:
    """A package in its registry's normal form. ``version`` None means any."""

    language: str
    name: str
    version: str | None = None

    def covers(self, other: Package) -> bool:
        """Whether ``other`` is this package, in this version if one is set."""
        same = (self.language, self.name) == (other.language, other.name)
        return same and self.version in (None, other.version)

    def __str__(self) -> str:
        mark = "==" if self.language == "python" else "@"
        return self.name if self.version is None else f"{self.name}{mark}{self.version}"


def package(text: object, language: object = "python") -> Package | None:
    """Parse a package such as ``numpy``, ``numpy==2.1`` or ``@types/node@22.1.0``; None for anything else. Python's
    names are normalized as on PyPI (PEP 503). npm's own rule makes its names lower case."""
    form = _NAMES.get(language) if isinstance(language, str) else None
    found = form.fullmatch(text) if form is not None and isinstance(text, str) else None
    if found is None:
        return None
    name = re.sub(r"[-_.]+", "-", found["name"]).lower() if language == "python" else found["name"]
    return Package(str(language), name, found["version"])


# The effect for a question that no rule covers. "ask" without an approver means deny.
DEFAULTS: Mapping[Kind, Effect] = MappingProxyType(
    {
        "tool": "ask",
        "egress": "ask",
        "package": "ask",
        "shell": "allow",  # within the cell: the wall is the boundary
        "process": "allow",  # the same
        "host": "ask",
        "files": "ask",
        "server": "ask",
        "plan": "ask",
        "elicitation": "ask",
        "secret": "ask",  # for agents of a service; the sandbox's operator chooses the secrets of programs
    }
)
_MOST_ANSWERS = 10_000  # kept; beyond it the oldest is forgotten and asked again
_EVER = float("inf")
_EFFECTS: tuple[Effect, ...] = ("deny", "ask", "allow")  # by precedence
_OF_RULE = 20  # steps of a rule without its patterns


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """One rule. Equality is identity, because each rule has its own budget."""

    effect: Effect
    kind: Kind
    server: str = ""
    tool: str = ""
    schema: str = ""
    host: HostRule | None = None
    addresses: tuple[IPv4Network, ...] = ()  # the only private networks in which `host` is dialled
    package: Package | None = None
    with_dependencies: bool = False
    command: CommandPattern | None = None
    arguments: Mapping[str, Pattern] | None = None  # patterns by name, None for any; an allowing rule permits no others
    exactly: str = ""  # fingerprint of the only question that it covers
    namespace: str | None = None  # None for all, like the next three
    session: str | None = None
    run: str | None = None
    agent: str | None = None
    uses: int | None = None  # how often it allows
    lasts: float = _EVER  # seconds from the start of its `Rulebook`
    until: float = _EVER  # Unix time
    expires: float = _EVER  # seconds on the clock of `now`
    reason: str = ""
    where: str = ""  # its place in the file, or the approver

    def covers(self, question: Question) -> bool:
        """Whether the rule is about ``question``, regardless of the time and its remaining budget."""
        if self.kind != question.kind or not self.holds_for(question):
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
        """Whether it is limited in time, in uses or to some callers."""
        whose = (self.namespace, self.session, self.run, self.agent, self.uses)
        return any(one is not None for one in whose) or {self.lasts, self.until, self.expires} != {_EVER}

    @property
    def takes_first(self) -> bool:
        """Whether it allows a tool without a schema. It then binds to the definition that it allows first."""
        return self.effect == "allow" and bool(self.tool) and not self.schema

    @property
    def text(self) -> str:
        """Its content about a tool, independent of its place in the file."""
        patterns = sorted((name, str(one)) for name, one in (self.arguments or {}).items())
        digest = hashlib.sha256(repr((patterns, self.reason)).encode()).hexdigest()
        return f"{self.server}.{self.tool} {digest[:16]}"

    @property
    def _allows(self) -> bool:
        return self.effect == "allow"

    def holds_for(self, question: Question) -> bool:
        """Whether the rule is for the question's namespace, session, run and agent."""
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
            return False  # only an approver can allow a command with secrets
        if self.package is None:
            return True
        names = question.arguments.get("packages")
        asked = [package(name, question.arguments.get("language")) for name in names] if isinstance(names, list) else []
        if self._allows:
            return bool(asked) and all(one is not None and self._allows_package(one, question) for one in asked)
        anyhow = replace(self.package, version=None)  # a range, or no version, may resolve to this version
        return not asked or any(one is None or _could_be(self.package, anyhow, one) for one in asked)

    def _allows_package(self, asked: Package, question: Question) -> bool:
        """Whether it is the rule's package, or a direct or indirect dependency if the rule includes them."""
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
    """Whether a rule decides on a package before its version is known. To allow one version allows the lookup."""
    if rule.effect == "allow":
        package = rule.package and replace(rule.package, version=None)
        return replace(rule, package=package, arguments=None).covers(question)
    return (rule.package is None or rule.package.version is None) and rule.covers(question)


def _could_be(meant: Package, anyhow: Package, asked: Package) -> bool:
    return anyhow.covers(asked) and (meant.version is None or asked.version in (None, meant.version))


@dataclass(frozen=True, slots=True)
class Rules:
    written: tuple[Rule, ...] = ()  # in their order
    defaults: Mapping[Kind, tuple[Effect, str]] = field(default_factory=dict)  # overrides of `DEFAULTS`, with places

    def default(self, kind: Kind) -> tuple[Effect, str]:
        """Return the effect without a rule, and its place."""
        return self.defaults.get(kind, (DEFAULTS[kind], "default"))


@dataclass(frozen=True, slots=True)
class Ruling:
    """A verdict with the ``rules`` that decided it, one for each use that it takes."""

    verdict: ApprovalVerdict
    rules: tuple[Rule, ...]


class Rulebook:
    """The rules in force: those of the file, answers of approvers, and the remaining budgets. Only one thread at a time
    may decide and remember. ``asks``, ``answers`` and ``set_default`` are thread-safe."""

    def __init__(
        self,
        rules: Rules,
        began: float,
        today: Callable[[], float],
        bound: Callable[[], Mapping[str, str]] = dict,
        bind: Callable[[str, str], object] = lambda _rule, _schema: None,
    ) -> None:
        """``began`` is the time on the clock of all later ``now``; ``today`` returns Unix time. ``bound`` returns, by
        `Rule.text`, the tool definitions that rules without a schema allowed before; ``bind`` stores one."""
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
        """Set the effect for ``kind`` where no rule applies. Callable from any thread."""
        self.rules = replace(self.rules, defaults={**self.rules.defaults, kind: (effect, "set by the application")})

    @property
    def answers(self) -> tuple[Rule, ...]:
        """The answers kept for runs and sessions, oldest first."""
        return tuple(self._answers.copy())  # an atomic copy: another thread may add one

    def verdict(self, question: Question, now: float) -> ApprovalVerdict | None:
        """Decide on ``question`` and spend one use of each rule that allowed it. Returns None if an approver must
        decide. Raises ``InvalidArgument`` for arguments that are not JSON values."""
        ruling = self.rule_on(question, now)
        return None if ruling is None else self.spend(ruling, question)

    def spend(self, ruling: Ruling, question: Question) -> ApprovalVerdict:
        """Spend one use of each rule of a ruling just made about ``question``, and return its verdict."""
        for rule in ruling.rules:
            self._spent[rule] += 1
            if rule.takes_first and rule.text not in self._schemas:
                self._schemas[rule.text] = question.schema
                self._bind(rule.text, question.schema)
        return ruling.verdict

    def effort(self, size: int) -> int:
        """Return the maximum cost of a lookup in steps of a fraction of a microsecond. ``size`` is the size of the
        question's arguments in bytes. Callable from any thread."""
        return _OF_RULE * (len(self.rules.written) + len(self._answers)) + size * (1 + self._breadth)

    def rule_on(self, question: Question, now: float) -> Ruling | None:
        """Decide like ``verdict``, but spend nothing."""
        effect, decisive = self.judge(question, now)
        if effect == "ask":
            return None
        by = ", ".join(dict.fromkeys(rule.where for rule in decisive)) or self.rules.default(question.kind)[1]
        reasons = [rule.reason for rule in decisive if rule.reason]
        is_allowed = effect == "allow"
        reason = reasons[0] if reasons else f"{'allowed' if is_allowed else 'denied'} by {by}"
        return Ruling(ApprovalVerdict(is_allowed, by, reason), tuple(decisive))

    def judge(self, question: Question, now: float) -> tuple[Effect, list[Rule]]:
        """Return the effect and the rules that decide it, each once per use. Spends nothing. Raises as ``verdict``."""
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
        """Return the packages of ``question`` that no rule allows."""
        if question.kind != "package":
            return []
        parts = [part for part in _parts(question) if self._judge_one(part, now)[0] != "allow"]
        return [str(name) for part in parts for name in part.arguments.get("packages") or ()]

    def judge_name(self, question: Question, now: float) -> Effect:
        """Return the effect for looking up the one package of ``question`` in any version. Spends nothing."""
        effects = {
            rule.effect
            for rule in self.rules.written
            if _is_about_name(rule, question) and self._uses_left(rule, now) > 0
        }
        return next((one for one in _EFFECTS if one in effects), self.rules.default("package")[0])

    def remember(self, decision: Decision, question: Question, now: float, by: str = "answer") -> Rule | None:
        """Keep an answer for its run or session; None if it is for once. The present crossing is its first use."""
        rule = rule_from(decision, question, now, by)
        if rule is not None:
            self._keep(rule)
            if rule.effect == "allow":
                self._spent[rule] = 1
        return rule

    def promise(self, decision: Decision, question: Question, now: float, by: str = "answer") -> Rule:
        """Keep an answer to a question asked in advance, and spend none of its uses. It is for the question's session,
        else for the agent that asked, else for the namespace. An answer for once or for a run has one use."""
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
        """Forget the answers for a run that is over, or with an empty ``run`` for a session."""
        for rule in self.answers:
            mine = rule.run == run if run else rule.run is None
            if mine and (rule.namespace, rule.session) == (namespace, session):
                self._forget(rule)

    def asks(self, kind: Kind) -> bool:
        """Whether a question of this kind could be denied or need an approver. If not, callers can skip the rules."""
        written = any(rule.kind == kind and rule.effect != "allow" for rule in self.rules.written)
        answered = any(rule.kind == kind and rule.effect != "allow" for rule in self.answers)
        return written or answered or self.rules.default(kind)[0] != "allow"

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
        """Return the effect of the written rules, with the first rule that has it."""
        found: dict[Effect, list[Rule]] = {effect: [] for effect in _EFFECTS}
        for rule in self.rules.written:
            if rule.covers(question) and self._same_tool(rule, question) and self._uses_left(rule, now) > 0:
                found[rule.effect].append(rule)
        for effect, rules in found.items():
            if rules:
                return effect, rules[:1]
        return self.rules.default(question.kind)[0], []

    def _same_tool(self, rule: Rule, question: Question) -> bool:
        """Whether the tool's definition is the one that the rule first allowed, if the rule binds to one."""
        return not rule.takes_first or self._schemas.get(rule.text, question.schema) == question.schema

    def _uses_left(self, rule: Rule, now: float) -> float:
        over = now >= rule.expires or now - self._began >= rule.lasts
        if over or (rule.until < _EVER and self._today() >= rule.until):
            return 0
        return _EVER if rule.uses is None else rule.uses - self._spent[rule]


def rule_from(decision: Decision, question: Question, now: float, by: str = "answer") -> Rule | None:
    """Return the rule for an answer: exactly this question, in its namespace, session or run. None for "once"."""
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
    """The characters of its patterns: each may be compared with each character of a value."""
    return sum(0 if isinstance(one, AnyValue) else len(str(one)) for one in (rule.arguments or {}).values())


def _parts(question: Question) -> Iterator[Question]:
    """Split a question about several packages: each package needs its own rule."""
    names: Any = question.arguments.get("packages")
    if question.kind != "package" or not isinstance(names, list) or len(names) < 2:
        yield question
        return
    for name in names:
        yield replace(question, arguments={**question.arguments, "packages": [name]})


def passed_over(rules: Iterable[Rule], hosts: HostRules) -> Rule | None:
    """Return the first rule that asks about a host that ``hosts`` allow, or denies it only at times or to some callers.
    Such a rule would never be checked. None if there is none."""
    return next((one for one in rules if _is_about_some(one, hosts)), None)


def _is_about_some(one: Rule, hosts: HostRules) -> bool:
    if one.kind != "egress" or one.effect == "allow" or (one.effect == "deny" and not one.conditional):
        return False
    if hosts.everything:
        return True
    if one.host is None:  # a rule for every host is not about services of this machine
        return any(other.host != LOCAL_NAME for other in hosts.allowed)
    return any(_meet(one.host, other) for other in hosts.allowed)


def _meet(one: HostRule, other: HostRule) -> bool:
    """Whether both can match the same name."""
    names = (one.host.removeprefix("*."), other.host.removeprefix("*."))
    return one.host == other.host or one.names(names[1]) or other.names(names[0])

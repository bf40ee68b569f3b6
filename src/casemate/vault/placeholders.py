"""Placeholders for secrets: random for each run and session, in a format that passes the checks of clients.

A placeholder keeps the value's length, its kinds of characters, and what is public about its kind of token: the
issuer's prefix and the separators. All else is random. If fewer than 16 characters can be replaced, it gets longer.
"""

from __future__ import annotations

import re
import secrets
import string

_FEWEST = 16  # random characters
# Prefixes that issuers give to every token: API keys, personal and app tokens, keys of clouds, package registries.
_PREFIXES = """
    sk-ant-api03- sk-ant- sk-proj- sk-svcacct- sk-admin- sk-or-v1- sk-lf- sk_live_ sk_test_ rk_live_ rk_test_ pk_live_
    pk_test_ whsec_ sk- gsk_ xai- pplx- nvapi- hf_ r8_ tvly- ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- gldt- glptt-
    glcbt- glrt- xoxb- xoxp- xoxa- xoxr- xoxs- xapp- npm_ pypi- rubygems_ dckr_pat_ dop_v1_ doo_v1_ shpat_ shpss_ shpca_
    lin_api_ ntn_ figd_ sntrys_ sntryu_ PMAK- NRAK- AKIA ASIA AIza GOCSPX- ya29. tskey-auth- tskey-api- hvs. hvb. pul-
    lip_ dapi rnd_ fo1_ FlyV1 sbp_ pscale_tkn_ phc_ phx_ SG. EAAC
"""
_STRUCTURED = (
    r"eyJ([\w-]+)\.eyJ([\w-]+)\.([\w-]+)",  # a signed JWT (RFC 7519)
    r"eyJ([\w-]+)\.([\w-]*)\.([\w-]+)\.([\w-]+)\.([\w-]+)",  # an encrypted one
    r"([0-9a-fA-F]{8})-([0-9a-fA-F]{4})-([0-9a-fA-F]{4})-([0-9a-fA-F]{4})-([0-9a-fA-F]{12})",  # a UUID (RFC 9562)
    *(rf"{kind}-([0-9]+)-([0-9]+)-([0-9]+)-([A-Za-z0-9]+)" for kind in ("xoxb", "xoxp")),
    *(rf"{kind}-([0-9]+)-([0-9]+)-([A-Za-z0-9]+)" for kind in ("xoxb", "xoxp")),
    r"SG\.([\w-]{22})\.([\w-]{43})",
    r"([0-9]{6,12}):([\w-]{30,50})",  # of a Telegram bot
)
_SHAPES = tuple(
    re.compile(shape, re.ASCII)
    for shape in (*_STRUCTURED, *(rf"{re.escape(one)}(.+)" for one in _PREFIXES.split()), r"(.+)")
)
_ALPHABETS = (  # a part gets the first that has all its letters and digits
    string.digits,
    "0123456789abcdef",
    "0123456789ABCDEF",
    string.ascii_lowercase,
    string.ascii_uppercase,
    string.ascii_lowercase + string.digits,
    string.ascii_uppercase + string.digits,
    string.ascii_letters,
    string.ascii_letters + string.digits,
)


def placeholder_for(value: str) -> str:
    """Make a new placeholder for ``value``, with at least 16 random characters."""
    shape = next(found for one in _SHAPES if (found := one.fullmatch(value)) is not None)
    parts = [_draw(_alphabet_of(part), len(part)) for part in shape.groups()]
    missing = _FEWEST - sum(map(len, parts))
    parts[-1] += _draw(_alphabet_of(shape.groups()[-1]), max(0, missing))
    made, at = "", 0
    for number, part in enumerate(parts, 1):
        made += value[at : shape.start(number)] + part
        at = shape.end(number)
    return made


def _alphabet_of(part: str) -> str:
    plain = {one for one in part if one.isascii() and one.isalnum()}
    return next(alphabet for alphabet in _ALPHABETS if plain <= set(alphabet))


def _draw(alphabet: str, length: int) -> str:
    return "".join(secrets.choice(alphabet) for _ in range(length))

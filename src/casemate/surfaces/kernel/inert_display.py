"""Makes the output of cells harmless in the front end's page.

A page of JupyterLab can open terminals, so it can do on the host what its user can. Front ends run the scripts, HTML
and widgets of a fresh result. So scripts and widgets are left out here, and HTML is reduced to tables and text that
fetch nothing from elsewhere.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any

from casemate.model.showing import without_formulas

_KEPT = ("text/plain", "application/json")
_PICTURES = ("image/png", "image/jpeg", "image/gif")
_BASE64 = re.compile(r"[A-Za-z0-9+/=\s]*\Z")
_PICTURE = re.compile(r"data:image/(?:png|jpeg|gif|svg\+xml);base64,[A-Za-z0-9+/=\s]*\Z")
# LaTeX commands that only make symbols and place them, as formulas of sympy and of papers do. All other commands can
# make links, styles, elements, or new names for these.
_SIGNS = frozenset(
    """
    alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi pi rho sigma
    tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega hbar ell Re
    Im partial nabla infty forall exists in notin subset subseteq cup cap emptyset wedge vee neg to rightarrow
    leftarrow Rightarrow Leftarrow leftrightarrow Leftrightarrow mapsto times cdot div pm mp ast circ oplus
    otimes le leq ge geq ne neq equiv approx sim propto ll gg mid parallel perp angle langle rangle lfloor
    rfloor lceil rceil lvert rvert sum prod int iint iiint oint lim limits nolimits sup inf max min det gcd sin
    cos tan cot sec csc arcsin arccos arctan asin acos atan sinh cosh tanh coth exp log ln frac dfrac tfrac
    binom sqrt over left right middle big Big bigg Bigg begin end hline quad qquad displaystyle textstyle
    scriptstyle mathrm mathbf mathit mathcal mathbb mathfrak mathsf boldsymbol operatorname text textrm textbf
    textit hat bar vec dot ddot tilde overline underline overbrace underbrace prime dots ldots cdots vdots ddots
    dagger dag star bullet colon
    """.split()  # noqa: SIM905 - read as a text
)
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_LINK = re.compile(r"(?:https?|mailto):", re.IGNORECASE)
_CLASSES = {"table": {"dataframe"}}
_STYLES = {"background-color", "color", "font-style", "font-weight", "text-align", "white-space"}


def make_inert(
    bundle: Mapping[str, Any], metadata: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """The inert bundle and its metadata, and the types that were left out."""
    data = {kind: value for kind, value in bundle.items() if kind in _KEPT}
    data |= {kind: bundle[kind] for kind in _PICTURES if kind in bundle and _BASE64.match(bundle[kind])}
    latex = bundle.get("text/latex")
    if latex is not None and "<" not in latex and _SIGNS.issuperset(_COMMAND.findall(latex)):
        data["text/latex"] = latex
    if "text/html" in bundle:
        data["text/html"] = without_formulas(_clean(bundle["text/html"]))
    elif "image/svg+xml" in bundle:  # scripts in an <img> do not run
        picture = base64.b64encode(bundle["image/svg+xml"].encode()).decode()
        data["text/html"] = f'<img src="data:image/svg+xml;base64,{picture}">'
    sizes = {kind: _numbers_in(value) for kind, value in metadata.items() if kind in data and isinstance(value, dict)}
    return data, sizes, sorted({*bundle} - {*data, "image/svg+xml"})


def _numbers_in(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in value.items() if isinstance(one, int | float) and not isinstance(one, bool)}


def _clean(html: str) -> str:
    import nh3

    attributes = {tag: {*names, "style"} - {"class"} for tag, names in nh3.ALLOWED_ATTRIBUTES.items()}
    return nh3.clean(
        html,
        tags=nh3.ALLOWED_TAGS - {"map", "area"},
        attributes=attributes,
        attribute_filter=_filter_attribute,
        allowed_classes=_CLASSES,
        filter_style_properties=_STYLES,
        url_schemes={"http", "https", "mailto", "data"},
        url_relative="deny",
    )


def _filter_attribute(tag: str, name: str, value: str) -> str | None:
    """Keep embedded pictures and external links only, so that nothing requests the front end's own server."""
    if name in ("src", "href", "cite"):
        known = _PICTURE if tag == "img" else _LINK
        return value if known.match(value) else None
    return value

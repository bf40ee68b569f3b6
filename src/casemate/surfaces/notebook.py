"""``casemate.widget(sandbox)``: pending approval requests with buttons, in a notebook."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from casemate.errors import CasemateError, InvalidArgument, Unavailable
from casemate.version import how_to_install
from casemate.visible import visible

if TYPE_CHECKING:
    from ipywidgets import VBox

    from casemate.model.approval import ApprovalRequest

_SCOPES = {"once": "once", "for this run": "run", "for this session": "session"}
_ENDS: dict[str, float | None] = {"without end": None, "for 10 minutes": 600.0, "for an hour": 3600.0}


def widget(sandbox: Any) -> ApprovalWidget:
    """Show pending approval requests, with buttons that answer them.

    It shows exactly what all approvers see, and stays current until you call ``close``. While it is open, requests
    wait for an answer even if no other approver is connected.

    Args:
        sandbox: A ``casemate.Sandbox`` or ``casemate.sync.Sandbox``, or one that is connected to a service.

    Returns:
        The widget, which a notebook shows as a cell's last expression.

    Raises:
        InvalidArgument: The argument is not a sandbox.
        Unavailable: ipywidgets is not installed.
    """
    if not hasattr(sandbox, "approvals"):
        raise InvalidArgument("sandbox", f"{type(sandbox).__name__} is not a sandbox")
    try:
        import ipywidgets  # noqa: F401 - checks that it is installed
    except ImportError:
        raise Unavailable(
            "widgets need ipywidgets, which is not installed", remediation=how_to_install("notebook")
        ) from None
    return ApprovalWidget(sandbox.approvals)


class ApprovalWidget:
    """Made by :func:`widget`. ``box``: the ipywidgets box, with a child for each pending request."""

    def __init__(self, approvals: Any) -> None:
        from ipywidgets import VBox

        self._approvals = approvals
        self.box: VBox = VBox()
        self._waiting: dict[str, VBox] = {}
        self._news, self._is_closed = threading.Event(), False
        self._watching = ExitStack()
        self._watching.enter_context(approvals.watch(self._news.set))
        self._refresh()
        # A thread, because a refresh may block: neither the caller's event loop nor the notifying thread may wait.
        threading.Thread(target=self._follow, name="casemate-widget", daemon=True).start()

    def close(self) -> None:
        """Remove the widget. Pending requests are denied if no other approver can answer them."""
        self._is_closed = True
        self._news.set()
        self._watching.close()
        _take_away(self.box)

    def _repr_mimebundle_(self, **arguments: Any) -> Any:
        return self.box._repr_mimebundle_(**arguments)

    def _follow(self) -> None:
        while self._news.wait() and not self._is_closed:
            self._news.clear()
            self._refresh()

    def _refresh(self) -> None:
        from ipywidgets import Label

        try:
            requests = {request.id: request for request in self._approvals.pending()}
        except CasemateError as error:
            self._waiting, self.box.children = {}, (Label(visible(error.message)),)
            return
        before = self._waiting
        self._waiting = {one: before.get(one) or self._row(request) for one, request in requests.items()}
        self.box.children = tuple(self._waiting.values()) or (Label("No request is pending."),)
        for gone in before.keys() - requests.keys():
            _take_away(before[gone])

    def _row(self, request: ApprovalRequest) -> VBox:
        from ipywidgets import HTML, Button, Dropdown, HBox, Label, Text, VBox

        scope, end = Dropdown(options=_SCOPES, description="Allow"), Dropdown(options=_ENDS)
        reason, said = Text(placeholder="reason, for a denial"), Label()
        allow = Button(description="Allow", button_style="success", disabled=request.kind == "elicitation")
        deny = Button(description="Deny", button_style="danger")

        def decide(button: Button) -> None:
            terms = {"scope": scope.value, "expires": end.value} if button is allow else {"reason": reason.value}
            try:
                is_first = self._approvals.decide(request.id, button is allow, **terms)
                said.value = "" if is_first else "Too late: it was answered elsewhere, or is over."
            except CasemateError as error:
                said.value = visible(error.message)
            self._news.set()

        allow.on_click(decide)
        deny.on_click(decide)
        if request.kind == "elicitation":
            said.value = "This request asks for a form to be filled in, which cannot be done here."
        shown = HTML(request._repr_mimebundle_()["text/html"])
        return VBox((shown, HBox((allow, scope, end)), HBox((deny, reason)), said))


def _take_away(shown: Any) -> None:
    for child in getattr(shown, "children", ()):
        _take_away(child)
    shown.close()

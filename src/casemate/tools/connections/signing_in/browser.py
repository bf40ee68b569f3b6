"""The user's browser, where a sign-in begins by default."""

from __future__ import annotations

import webbrowser

from casemate.errors import Unavailable
from casemate.tools.connections.definition import check_url
from casemate.tools.connections.terms import SignInPrompt


def open_browser(prompt: SignInPrompt) -> None:
    """Open the page in the user's browser. Raises ``InvalidArgument`` for what is no http or https URL, ``Unavailable``
    where there is no browser, or where a code would have to be shown beside the page."""
    url = check_url(prompt.url, "url")
    if prompt.code or not webbrowser.open(url, new=1):
        raise Unavailable(
            f"nobody can be shown where to sign in for the server {prompt.server!r}",
            remediation="Give on_sign_in, which shows a person the URL and the code.",
        )

"""Pages of other ports of this machine, to which browsers send the console's cookie, reach nothing with it.

A site is a host without its port, so `SameSite` does not keep them apart. What the page tries is done to a server
without defences, too: there each of it arrives.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.console.browser import Chromium, Page, signed_in
from tests.console.conftest import call, link_of
from tests.console.judge import Witness, witness
from tests.service.daemon import Daemon
from tests.support.waiting import until

pytestmark = [pytest.mark.needs("browser"), pytest.mark.needs("playwright")]

# Each changes something, or shows something, where nothing stops it.
ATTACKS = """async (target) => {
  const deny = target + '/v1/approvals/deny_all';
  const form = (enctype) => {
    const one = Object.assign(document.createElement('form'), {method: 'POST', action: deny, enctype, target: 'sink'});
    one.append(Object.assign(document.createElement('input'), {name: '{"reason":"', value: '"}'}));
    document.body.append(one);
    one.submit();
  };
  const frame = Object.assign(document.createElement('iframe'), {name: 'sink'});
  document.body.append(frame);
  const framed = Object.assign(document.createElement('iframe'), {src: target + '/console/'});
  document.body.append(framed);
  const told = [];
  const note = (name) => (answer) => answer.text().then((text) => text && told.push(name));
  const headers = {'casemate-console': 'x', 'content-type': 'application/json'};
  const given = {method: 'POST', credentials: 'include', body: '{}'};
  await Promise.allSettled([
    fetch(deny, {...given, mode: 'no-cors'}).then(note('no-cors')),
    fetch(deny, given).then(note('cors')),
    fetch(deny, {...given, headers}).then(note('header')),
    fetch(target + '/console/', {credentials: 'include'}).then(note('page')),
    import(target + '/console/api.js').then(() => told.push('script')),
    new Promise((yes, no) => Object.assign(new EventSource(deny, {withCredentials: true}), {onopen: yes, onerror: no}))
      .then(() => told.push('events')),
  ]);
  navigator.sendBeacon(deny, '{}');
  form('text/plain');
  form('application/x-www-form-urlencoded');
  if (document.cookie.includes('casemate')) told.push('cookie');
  try { if (framed.contentDocument.body.innerText) told.push('frame'); } catch { }
  return told;
}"""


@pytest.fixture
def stranger() -> Iterator[Witness]:
    with witness() as one:
        one.pages["/"] = ("text/html", "<p>A page of another port</p>")
        yield one


@pytest.fixture
def page(real_browser: Chromium, daemon: Daemon) -> Iterator[Page]:
    with signed_in(real_browser, link_of(daemon)) as one:
        yield one


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_a_page_of_another_port_changes_and_sees_nothing(
    page: Page, daemon: Daemon, stranger: Witness, name: str
) -> None:
    session = call(daemon, "sessions.open")["session"]
    call(daemon, "runs.start", code="get_ipython().getoutput('echo yes')", session=session)
    page.get_by_role("article").wait_for()
    address, console = stranger.origin.replace("127.0.0.1", name), page.url.partition("/console/")[0]
    other = page.context.new_page()
    other.goto(f"{address}/")
    assert other.evaluate(ATTACKS, console) == []
    other.wait_for_load_state()
    shown = [one for one in other.frames if one.url == f"{console}/console/"]
    assert all(not one.locator("main").count() for one in shown)
    assert [one["run"] for one in call(daemon, "approvals.pending")]  # nothing has answered it
    page.get_by_role("article").get_by_role("button", name="Deny", exact=True).click()  # the session is still good
    page.get_by_text("Nothing waits for an answer").wait_for()
    call(daemon, "sessions.close", session=session)


def test_the_same_arrives_where_nothing_stops_it(real_browser: Chromium, stranger: Witness) -> None:
    with witness() as naive:
        naive.headers = {"access-control-allow-origin": stranger.origin, "access-control-allow-credentials": "true"}
        other = real_browser.new_page()
        other.goto(f"{stranger.origin}/")
        told = set(other.evaluate(ATTACKS, naive.origin))
        until(lambda: naive.asked.count("/v1/approvals/deny_all") >= 5)
        assert "cors" in told
        other.close()


def test_a_name_that_is_bound_anew_to_this_machine_is_refused(real_browser: Chromium, daemon: Daemon) -> None:
    link = link_of(daemon)
    port = link.partition("127.0.0.1:")[2].partition("/")[0]
    other = real_browser.new_page()
    answer = other.goto(f"http://bound.localhost:{port}/console/{link.partition('/console/')[2]}")
    assert answer is not None
    assert answer.status in (404, 421)
    assert other.locator("main").count() == 0
    other.close()

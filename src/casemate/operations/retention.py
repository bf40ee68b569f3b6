"""Which of the runs that are over are still kept: the last ones, of each account and of all. Pure.

Adding one and asking what is beyond the bounds takes the same time however many are kept: it is done after every run.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class _Account:
    sizes: dict[str, int] = field(default_factory=dict)  # bytes by run, the first to end first
    bytes: int = 0


class Retention:
    """Runs that are over, by handle, in the order in which they ended."""

    def __init__(self) -> None:
        self._account_of: dict[str, str] = {}
        self._accounts: dict[str, _Account] = {}

    def add(self, run: str, account: str, size: int) -> None:
        """A run of ``account`` is over, of which ``size`` bytes are kept."""
        self._account_of[run] = account
        own = self._accounts.setdefault(account, _Account())
        own.sizes[run] = size
        own.bytes += size

    def beyond(self, account: str, *, runs: int, size: int, all_runs: int) -> dict[str, int]:
        """What is not kept any more, with its bytes: of all runs what is beyond ``all_runs``; of an account's what is
        beyond ``runs`` or ``size`` bytes, but for its last one. These are forgotten here."""
        gone: dict[str, int] = {}
        while len(self._account_of) > all_runs:
            gone |= self._forgotten(next(iter(self._account_of)))
        own = self._accounts.get(account)
        while own and len(own.sizes) > 1 and (len(own.sizes) > runs or own.bytes > size):
            gone |= self._forgotten(next(iter(own.sizes)))
        return gone

    def resize(self, run: str, size: int) -> None:
        """Of a run ``size`` bytes are kept now. Harmless where it is forgotten."""
        if run in self._account_of:
            own = self._accounts[self._account_of[run]]
            own.bytes += size - own.sizes[run]
            own.sizes[run] = size

    def forget(self, run: str) -> None:
        """It is not kept any more, for another reason. Harmless where it was not."""
        if run in self._account_of:
            self._forgotten(run)

    def _forgotten(self, run: str) -> dict[str, int]:
        account = self._account_of.pop(run)
        own = self._accounts[account]
        size = own.sizes.pop(run)
        own.bytes -= size
        if not own.sizes:
            del self._accounts[account]
        return {run: size}

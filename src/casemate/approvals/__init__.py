"""Approvals: rules or an approver decide here about everything that asks to cross the wall."""

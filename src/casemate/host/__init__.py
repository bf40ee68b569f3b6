"""Commands and files of the host for agents: off until a policy's ``host`` section turns them on."""

"""Host commands and host files for agents: off until a policy's ``host`` section turns them on."""

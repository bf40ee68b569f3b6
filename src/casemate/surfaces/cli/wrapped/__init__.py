"""``casemate wrap``: any command behind a wall, its streams and signals passed through."""

"""The builtins as they are before any user code runs.

The session's modules bind this copy as their ``__builtins__``: whatever user code does to the real ones, they go on.
"""

import builtins

own: "dict[str, object]" = dict(vars(builtins))

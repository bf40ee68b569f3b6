"""What Jupyter's own tests of kernels want of each language's. None fails.

Skipped is what a class below gives no sample of: pagers, which no kernel here has; and of Node and Shell what their
sessions do not have, which are displays, history that is searched and what an editor asks for.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jupyter_kernel_test
import pytest
from tests.kernel.conftest import jupyter
from tests.kernel.notebook import SECONDS, Notebook

__all__ = ["jupyter"]


class _Kernel(jupyter_kernel_test.KernelTests):  # type: ignore[misc]
    """With time enough for a machine under heavy load, where the tests allow a tenth of a second."""

    __test__ = False
    notebook: ClassVar[Notebook]

    @classmethod
    def setUpClass(cls) -> None:
        cls.notebook = Notebook(cls.kernel_name)
        cls.km, cls.kc = cls.notebook.manager, cls.notebook.client

    @classmethod
    def tearDownClass(cls) -> None:
        cls.notebook.__exit__()

    def execute_helper(self, *arguments: Any, **options: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """As it is there, waiting longer for what is published."""
        channel = self.kc.iopub_channel
        get = channel.get_msg
        channel.get_msg = lambda timeout=None: get(timeout=SECONDS)
        try:
            found: tuple[dict[str, Any], list[dict[str, Any]]] = super().execute_helper(*arguments, **options)
            return found
        finally:
            channel.get_msg = get


@pytest.mark.usefixtures("jupyter")
class TestPython(_Kernel):
    __test__ = True
    kernel_name = "casemate-python"
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('oh', file=sys.stderr)"
    completion_samples: ClassVar = [{"text": "zi", "matches": {"zip"}}]
    complete_code_samples: ClassVar = ["1", "print('hello')", "def f(x):\n  return x*2\n\n\n"]
    incomplete_code_samples: ClassVar = ["print('''hello", "def f(x):\n  x*2"]
    invalid_code_samples: ClassVar = ["import = 7q"]
    code_generate_error = "raise ValueError('so')"
    code_execute_result: ClassVar = [
        {"code": "1+2+3", "result": "6"},
        {"code": "[n*n for n in range(1, 4)]", "result": "[1, 4, 9]"},
    ]
    code_display_data: ClassVar = [
        {"code": "from IPython.display import HTML, display; display(HTML('<b>test</b>'))", "mime": "text/html"},
        {"code": "from IPython.display import Math, display; display(Math('\\\\frac{1}{2}'))", "mime": "text/latex"},
    ]
    code_history_pattern = "1?2*"
    supported_history_operations = ("tail", "range", "search")
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"


@pytest.mark.usefixtures("jupyter")
class TestNode(_Kernel):
    __test__ = True
    kernel_name = "casemate-node"
    language_name = "javascript"
    file_extension = ".js"
    code_hello_world = "console.log('hello, world')"
    code_stderr = "console.error('oh')"
    code_generate_error = "throw new Error('so')"
    code_execute_result: ClassVar = [{"code": "1+2+3", "result": "6"}]


@pytest.mark.usefixtures("jupyter")
class TestShell(_Kernel):
    __test__ = True
    kernel_name = "casemate-shell"
    language_name = "bash"
    file_extension = ".sh"
    code_hello_world = "echo hello, world"
    code_stderr = "echo oh >&2"
    code_generate_error = "false"

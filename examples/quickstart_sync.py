from casemate.sync import Sandbox

with Sandbox() as sandbox:
    execution = sandbox.run("echo $((6 * 7))", language="shell")
    print(execution.stdout, end="")

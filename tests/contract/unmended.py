"""Rules that an engine does not keep yet, by module and name, each with the cases that it keeps: all others of it
must fail.

Who mends the engine removes the line. At the end of issue 10 none may be left, and this file goes.
"""

UNMENDED: dict[str, dict[str, tuple[str, ...]]] = {"rocketmq": {}, "rabbitmq": {}}

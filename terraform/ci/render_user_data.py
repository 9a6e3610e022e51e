"""Writes what a plan's user data lays down: render_user_data.py PLAN_JSON DIR

DIR/user_data.yaml is the whole of it, DIR/root the files at their places on the instance.
"""

import os
import sys

import plan


def main(path, directory):
    module = plan.load(path)
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "user_data.yaml"), "w", encoding="utf-8") as file:
        file.write(plan.user_data(module))
    for name, (content, mode) in plan.user_files(module).items():
        target = os.path.join(directory, "root", name.lstrip("/"))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "w", encoding="utf-8") as file:
            file.write(content)
        os.chmod(target, mode)


if __name__ == "__main__":
    main(*sys.argv[1:])

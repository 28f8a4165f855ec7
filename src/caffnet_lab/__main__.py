"""The ``caffnet`` command, also ``python -m caffnet_lab``. If a package is missing, it says which to install."""

from __future__ import annotations


def main() -> None:
    """Hand over to the command line."""
    try:
        from caffnet_lab.cli import app

        app(prog_name="caffnet")
    except ImportError as missing:
        if missing.name is None:
            raise SystemExit(str(missing)) from None  # one of ours, which names the extra
        if missing.name.split(".")[0] in ("caffnet", "caffnet_lab"):
            raise  # not a matter of installation
        from caffnet._install import install_command

        raise SystemExit(f"This command needs {missing.name}: {install_command('all')}.") from None


if __name__ == "__main__":
    main()

"""The ``caffnet`` command, also ``python -m caffnet``; it says what to install where the library came alone."""

from __future__ import annotations


def main() -> None:
    """Hand over to the command line."""
    try:
        from caffnet.cli import app
    except ImportError as missing:
        raise SystemExit(f'The command line needs {missing.name}: pip install "caffnet[all]".') from None
    app(prog_name="caffnet")


if __name__ == "__main__":
    main()

"""1,024 connections whose header comes a byte a second. `python -m tests.attacks.dribble`."""

from tests.attacks.idle import run

if __name__ == "__main__":
    run(b"G")

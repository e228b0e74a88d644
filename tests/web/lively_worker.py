"""A worker that breaks a silence sooner: the same program, a smaller constant. Run as a script."""

from worker.__main__ import main
from worker.web import streaming

SILENCE_S = 0.1

if __name__ == "__main__":
    streaming.SILENCE_S = SILENCE_S
    main()

"""A worker whose `/execute` gives a job less time unless told otherwise: the same program, a smaller constant. Run as a
script."""

from worker.__main__ import main
from worker.config import settings

if __name__ == "__main__":
    settings.DEFAULT_TIMEOUT_SEC = 1.0
    main()

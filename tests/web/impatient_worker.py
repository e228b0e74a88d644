"""A worker that gives up on its clients sooner: the same program, smaller constants. Run as a script."""

from worker.__main__ import main
from worker.web import connection

IMPATIENCE_S = 2.0

if __name__ == "__main__":
    connection.HEADERS_TIMEOUT_S = IMPATIENCE_S
    connection.BODY_TIMEOUT_S = IMPATIENCE_S
    connection.READING_TIMEOUT_S = IMPATIENCE_S
    main()

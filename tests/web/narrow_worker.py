"""A worker that takes few connections: the same program, a smaller constant. Run as a script."""

from worker.__main__ import main
from worker.web import crowd

N_FOR_JOBS = 4

if __name__ == "__main__":
    crowd.MAX_CONNECTIONS = N_FOR_JOBS + crowd.RESERVED_CONNECTIONS
    main()

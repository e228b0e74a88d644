"""The signals of a worker: log lines and their writer, masked secrets, Prometheus series and traces.

Series are counted on the front's event loop; any thread of the front may log, and the log writer's thread writes. The
room may import upstream, wire and errors.
"""

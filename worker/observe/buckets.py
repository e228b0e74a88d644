"""The bounds of the histograms' buckets.

Each set has vLLM's bounds, so that one query reads a fleet of both; for first tokens and tokens these begin as
OpenTelemetry's do (gen_ai.server.time_to_first_token, gen_ai.server.time_per_output_token). More stand below, because a
small model is faster than those sets distinguish.
"""

FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)

TOKEN_S = (
    *(0.001, 0.0025, 0.005),
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
    *(5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)

REQUEST_S = (
    *(0.01, 0.02, 0.04, 0.08, 0.16),
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0),
    *(960.0, 1920.0, 7680.0),
)
"""Below vLLM's first bound they are OpenTelemetry's (gen_ai.server.request.duration)."""

TOKENS = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))
"""vLLM's, which end at the model's context length, to half a million."""

ANSWERS = (1, 2, 5, 10, 20)

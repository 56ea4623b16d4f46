#!/usr/bin/env bash
# Calls every operation of the served document with what it allows and what it forbids.
set -euo pipefail

exec "$1/schemathesis" --config-file "$(dirname "$0")/schemathesis.toml" run "$TICKERTAPE_URL/openapi.json" \
    --header "Authorization: Bearer $TICKERTAPE_KEY" \
    --phases examples,coverage,fuzzing --max-examples "${EXAMPLES:-60}" --seed 1 \
    --continue-on-failure --request-timeout 20 --no-color

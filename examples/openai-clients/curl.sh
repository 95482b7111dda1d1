#!/bin/sh
# curl: MUSTER_URL=http://localhost:5047 MUSTER_KEY=… sh examples/openai-clients/curl.sh agent_…
curl -sS "${MUSTER_URL:-http://localhost:5047}/openai/v1/chat/completions" \
  -H "Authorization: Bearer $MUSTER_KEY" -H 'Content-Type: application/json' \
  -d "{\"model\": \"$1\", \"messages\": [{\"role\": \"user\", \"content\": \"How long may I return an order?\"}]}"

import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const toolErrors = {
  MISSING_TOOL_CONTEXT_KEY: {
    status: 400,
    description: 'Header references a context key absent from tool_context',
    message: 'Header {header} requires the key {key} in the tool context',
  },
  PIPELINE_DEPTH_EXCEEDED: { status: 422, description: 'Pipeline tools nested too deep' },
  PIPELINE_INVALID_STEP: {
    status: 400,
    description:
      'Pipeline config invalid (no steps, duplicate or malformed step id, missing tool, forward reference, client-tool step)',
  },
  PIPELINE_STEP_FAILED: { status: 422, description: 'A pipeline step failed' },
  TOOL_AUTH_FAILED: {
    status: 502,
    description: 'Http tool execute.auth credentials could not be turned into a request credential',
    hint: 'Check the credential and, if meta.upstream_status is set, the response of its token endpoint.',
  },
  TOOL_CALL_NOT_SUPPORTED: {
    status: 422,
    description: 'Tool type cannot run server-side (client tools)',
    message: 'Tool {tool_id} is a client tool, which the platform cannot call',
  },
  TOOL_DISPATCH_FAILED: {
    status: 422,
    description:
      'A call that cannot wait was held back by guardrails: meta.outcome is blocked, tripwire or route_to_approval',
    message: 'Guardrails refused the call of tool {tool_id}: {outcome}',
    hint: 'Change the arguments, or the guardrails of the project or the tool; meta.outcome contains their decision.',
  },
  TOOL_EGRESS_BLOCKED: {
    status: 403,
    description: 'Http or mcp tool target not publicly routable, bad scheme, or redirect chain too long',
    hint: 'Use a public address, or have the operator add this one to EGRESS_ALLOW_HOSTS.',
  },
  TOOL_HAS_DEPENDENTS: {
    status: 409,
    description: 'Tool named by a decider, ingestion rule or accepted share',
    hint: 'Change or delete the resources that reference the tool (meta.counts) first, or repeat with force=true where meta.forcible is true, which deletes them too.',
  },
  TOOL_HTTP_ERROR: {
    status: 502,
    description: 'Http tool got a non-2xx',
    hint: 'Read meta.tool_response_body. Change the call for a meta.tool_status_code of 4xx; retry with backoff only for 429, 5xx or no response.',
  },
  TOOL_NOT_FOUND: {
    status: 400,
    description: 'Referenced tool missing',
    message: 'Tool {id} not found in this project',
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof toolErrors> {}
}

import { integer, setting, settings, type Values } from '#core/base/setting.ts'

export const toolSettings = settings('egress', {
  // A longer call with an Idempotency-Key would be treated as lost.
  TOOL_CALL_TIMEOUT_MS: setting(
    integer(1000, 800_000),
    '300000',
    'Timeout of a tool call, including redirects and nested calls.',
  ),
  TOOL_MAX_RESPONSE_BYTES: setting(
    integer(1),
    '10485760',
    'Maximum response size of a tool; a call with nested calls may buffer four times as much.',
  ),
  TOOL_MAX_REDIRECTS: setting(integer(0, 20), '5', 'Maximum redirects of a tool call.'),
  PIPELINE_MAX_DEPTH: setting(integer(1, 20), '5', 'Maximum nesting depth of tool calls made by tools.'),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof toolSettings> {}
}

import { flag, integer, setting, settings, text, type Values } from '#core/base/setting.ts'

export const mcpSettings = settings('mcp', {
  MCP_ENABLED: setting(flag, 'true', 'Whether /mcp is served; otherwise 404.'),
  MCP_SERVER_NAME: setting(text, 'platform', 'Server name reported to clients.'),
  MCP_CALL_TIMEOUT_MS: setting(
    integer(100),
    '300000',
    'Maximum time a tool call waits for long work; then it returns the current record.',
  ),
  MCP_TASK_AFTER_MS: setting(integer(0), '2000', 'Time a tool call waits before long work is returned as a task.'),
  MCP_RESOURCE_MAX_BYTES: setting(integer(1024), '4194304', 'Maximum content size of a resources/read.'),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof mcpSettings> {}
}

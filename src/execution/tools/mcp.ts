import { AppError } from '#core/base/errors.ts'
import { ExactNumber, parseExactJson } from '#core/base/exact-json.ts'
import { limitJson } from '#core/base/json-limits.ts'
import type { Services } from '#core/base/services.ts'
import { resolvedName, withoutPresets } from './actions.ts'
import type { Callable, ToolCall } from './call-types.ts'
import { MAX_VALUES } from './http.ts'
import { CALL_TOOL, connectTo, logMcpCall, type McpSession } from './mcp-client.ts'
import { listServerTools } from './mcp-listing.ts'
import type { ToolAction } from './model.ts'
import { isExposed, platformArguments } from './platform.ts'

/** Tools of servers that implement the Model Context Protocol. */

/**
 * Calls a tool of an mcp server.
 * @throws the errors of requests to the server; TOOL_HTTP_ERROR also for a result that reports an error
 */
export function callMcp(
  services: Services,
  tool: Callable,
  action: string,
  input: Record<string, unknown>,
  call: ToolCall,
): Promise<unknown> {
  const params = { name: action, arguments: platformArguments(tool, input) }
  return logMcpCall(services, tool, action, async () => {
    const link = await connectTo(services, tool, call)
    return link.use(async () => outputOf(await link.ask(CALL_TOOL, params, call.idempotencyKey), action, link))
  })
}

/**
 * Returns the actions of an mcp tool as models see them: the tools that its server lists and that the tool does not
 * exclude.
 * @throws the errors of listServerTools
 */
export async function listMcpActions(
  services: Services,
  tool: Callable,
  call: ToolCall,
  options: { fresh?: boolean } = {},
): Promise<ToolAction[]> {
  const listed = await listServerTools(services, tool, call, options)
  return listed
    .filter(({ name }) => isExposed(tool, name))
    .map(({ name, description, inputSchema }) => ({
      name,
      resolved_name: resolvedName(`${tool.name}_${name}`),
      description: description ?? tool.description,
      input_schema: withoutPresets(inputSchema, tool.preset_parameters),
    }))
}

/**
 * Returns the output in a result: its structured content, its only text, or all of its content. A text that is an object or an
 * array in JSON is parsed; any other is a text, so that `1.10` stays one.
 */
async function outputOf(result: unknown, action: string, link: McpSession): Promise<unknown> {
  const { structuredContent, content, isError } = Object(result)
  if (isError) {
    const texts = [textOf(content) ?? JSON.stringify(content ?? null)]
    if (structuredContent !== undefined && structuredContent !== null) texts.push(JSON.stringify(structuredContent))
    return link.refuse(`${action} reported an error`, texts.join('\n'))
  }
  if (structuredContent !== undefined && structuredContent !== null) return structuredContent
  const text = textOf(content)
  if (text === null) return content ?? null
  try {
    limitJson(Buffer.from(text), MAX_VALUES)
    const value = parseExactJson(text)
    return typeof value === 'object' && !(value instanceof ExactNumber) ? value : text
  } catch (error) {
    if (!(error instanceof AppError)) return text
    return link.refuse(`Response of ${action} ${error.message}`, text)
  }
}

/** Returns the text of content that consists of a single text; null otherwise. */
function textOf(content: unknown): string | null {
  if (!Array.isArray(content) || content.length !== 1) return null
  const { type, text } = Object(content[0])
  return type === 'text' && typeof text === 'string' ? text : null
}

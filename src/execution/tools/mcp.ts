import { z } from 'zod'
import { AppError } from '../../core/api/errors.ts'
import { storable } from '../../core/api/validate.ts'
import { boundJson } from '../../core/http/body.ts'
import type { Services } from '../../core/process/services.ts'
import { resolvedName, withoutPresets } from './actions.ts'
import type { Callable, ToolCall } from './call-model.ts'
import { MAX_VALUES } from './http.ts'
import { type McpLink, withMcpServer } from './mcp-client.ts'
import type { ToolAction } from './model.ts'
import { argumentsOf, isExposed } from './platform.ts'

/** Tools of servers that speak the Model Context Protocol. */

const MAX_PAGES = 20
const MAX_TOOLS = 500
const MAX_NAME = 255

const Listed = z.object({
  // What the database could not hold would keep records of its calls from being written.
  name: z.string().min(1).max(MAX_NAME).refine(storable),
  description: z.string().nullish().catch(null),
  inputSchema: z.record(z.string(), z.unknown()).catch({ type: 'object' }),
})
type Listed = z.output<typeof Listed>

/**
 * One call of a tool of the server.
 * @throws what withMcpServer does; TOOL_HTTP_ERROR also for a result that says that it is an error
 */
export function callMcp(
  services: Services,
  tool: Callable,
  action: string,
  input: Record<string, unknown>,
  call: ToolCall,
): Promise<unknown> {
  const params = { name: action, arguments: argumentsOf(tool, input) }
  return logged(services, tool, action, () =>
    withMcpServer(services, tool, call, async link =>
      outputOf(await link.ask('tools/call', params, call.idempotencyKey), action, link),
    ),
  )
}

/**
 * What an mcp tool offers now, as models see it: up to 500 tools out of 20 pages of its server's list, without those that
 * the tool leaves out.
 * @throws what withMcpServer does
 */
export async function mcpActions(services: Services, tool: Callable, call: ToolCall): Promise<ToolAction[]> {
  const listed = await logged(services, tool, null, () => withMcpServer(services, tool, call, listTools))
  return listed
    .filter(({ name }) => isExposed(tool, name))
    .map(({ name, description, inputSchema }) => ({
      name,
      resolved_name: resolvedName(`${tool.name}_${name}`),
      description: description ?? tool.description,
      input_schema: withoutPresets(inputSchema, tool.preset_parameters),
    }))
}

async function listTools(link: McpLink): Promise<Listed[]> {
  const found = new Map<string, Listed>()
  let cursor: unknown
  for (let page = 0; page < MAX_PAGES; page++) {
    const result = await link.ask('tools/list', cursor === undefined ? {} : { cursor })
    const { tools, nextCursor } = Object(result)
    if (!Array.isArray(tools))
      return link.refuse('The server of the tool answered no list of tools', JSON.stringify(result))
    for (const each of tools) {
      const { data } = Listed.safeParse(each)
      if (data && !found.has(data.name)) found.set(data.name, data)
      if (found.size === MAX_TOOLS) return [...found.values()]
    }
    if (typeof nextCursor !== 'string') break
    cursor = nextCursor
  }
  return [...found.values()]
}

/** What a result means: its structured content, its only text, or all that it holds. */
async function outputOf(result: unknown, action: string, link: McpLink): Promise<unknown> {
  const { structuredContent, content, isError } = Object(result)
  if (isError) return link.refuse(`${action} reported an error`, textOf(content) ?? JSON.stringify(content ?? null))
  if (structuredContent !== undefined && structuredContent !== null) return structuredContent
  const text = textOf(content)
  if (text === null) return content ?? null
  try {
    boundJson(Buffer.from(text), MAX_VALUES)
    return JSON.parse(text)
  } catch (error) {
    if (!(error instanceof AppError)) return text
    return link.refuse(`The answer of ${action} ${error.message}`, text)
  }
}

/** The text of content that is nothing but one. */
function textOf(content: unknown): string | null {
  if (!Array.isArray(content) || content.length !== 1) return null
  const { type, text } = Object(content[0])
  return type === 'text' && typeof text === 'string' ? text : null
}

/** Leaves one line of a call, however it ends. */
async function logged<T>(
  { log }: Services,
  { id, project_id }: Callable,
  action: string | null,
  work: () => Promise<T>,
): Promise<T> {
  const started = performance.now()
  let outcome = 'answer'
  try {
    return await work()
  } catch (error) {
    outcome = error instanceof AppError ? error.code : 'fault'
    throw error
  } finally {
    log.info({ tool_id: id, project_id, action, outcome, ms: Math.round(performance.now() - started) }, 'tool call')
  }
}

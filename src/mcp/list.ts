import { z } from 'zod'
import { eventLoopYielder } from '../core/process/event-loop.ts'
import { release } from '../core/process/release.ts'
import { type McpTool, visibleTools } from './registry.ts'
import { invalidParams, type McpClientSession } from './session.ts'
import { docsTools, fixedTools } from './tools.ts'
import { operationsIn } from './view.ts'

const PAGE = 200

const Cursor = z.tuple([z.string(), z.string()])

/** A page begins behind a tool of this release: the list of another one may have others. */
const cursorAfter = ({ name }: McpTool): string => Buffer.from(JSON.stringify([release, name])).toString('base64url')

function nameIn(cursor: unknown): string {
  try {
    const [of, name] = Cursor.parse(JSON.parse(Buffer.from(z.string().max(1000).parse(cursor), 'base64url').toString()))
    if (of === release) return name
  } catch {
    // Answered below.
  }
  return invalidParams('The cursor is not of a list of this release')
}

/** The tools that the query of /mcp asks for, by name. */
function listed({ view, caller }: McpClientSession): McpTool[] {
  const fixed = view.modules === null ? fixedTools() : docsTools()
  const operations = view.all || view.modules !== null ? operationsIn(view, caller) : []
  return [...fixed, ...operations].sort((a, b) => (a.name < b.name ? -1 : 1))
}

/** Answers `tools/list`. */
export async function listTools(
  session: McpClientSession,
  { params }: { params: Record<string, unknown> },
): Promise<object> {
  const { permitted } = session.view
  const after = params.cursor === undefined ? null : nameIn(params.cursor)
  const tools = listed(session).filter(({ name }) => after === null || name > after)
  const page = tools.slice(0, PAGE)
  const rest = eventLoopYielder()
  const whole: McpTool[] = []
  for (const tool of page) {
    await rest()
    whole.push(visibleTools(tool))
  }
  return {
    tools: whole,
    ...(tools.length > PAGE ? { nextCursor: cursorAfter(page[PAGE - 1]) } : {}),
    ttlMs: permitted ? 10_000 : 300_000,
    cacheScope: permitted ? 'private' : 'public',
  }
}

import { z } from 'zod'
import { eventLoopYielder } from '#core/base/event-loop.ts'
import { release } from '#core/base/release.ts'
import { callMcpTool } from './call.ts'
import { listenToServer } from './listen.ts'
import { type McpTool, presentTool } from './registry.ts'
import { listMcpResources, listTemplates, readMcpResource } from './resources.ts'
import { invalidParams, type McpClientSession, type PendingAnswer } from './session.ts'
import { cancelTask, getTask, updateTask } from './tasks.ts'
import { docsTools, fixedTools } from './tools.ts'
import { operationsIn } from './view.ts'

const PAGE = 200

const Cursor = z.tuple([z.string(), z.string()])

/** Returns a cursor after a tool of this release: lists of other releases may contain other tools. */
const cursorAfter = ({ name }: McpTool): string => Buffer.from(JSON.stringify([release, name])).toString('base64url')

function requireCursorName(cursor: unknown): string {
  try {
    const [version, name] = Cursor.parse(
      JSON.parse(Buffer.from(z.string().max(1000).parse(cursor), 'base64url').toString()),
    )
    if (version === release) return name
  } catch {
    // Refused below.
  }
  return invalidParams('Cursor is invalid for this release')
}

/** Returns the tools that the query of /mcp selects, by name. */
function selectTools({ view, caller }: McpClientSession): McpTool[] {
  const fixed = view.modules === null ? fixedTools() : docsTools()
  const operations = view.all || view.modules !== null ? operationsIn(view, caller) : []
  return [...fixed, ...operations].sort((a, b) => (a.name < b.name ? -1 : 1))
}

/** Handles `tools/list`. */
export async function listTools(
  session: McpClientSession,
  { params }: { params: Record<string, unknown> },
): Promise<object> {
  const { permitted } = session.view
  const after = params.cursor === undefined ? null : requireCursorName(params.cursor)
  const tools = selectTools(session).filter(({ name }) => after === null || name > after)
  const page = tools.slice(0, PAGE)
  const yieldIfDue = eventLoopYielder()
  const listedTools: McpTool[] = []
  for (const tool of page) {
    await yieldIfDue()
    listedTools.push(presentTool(tool))
  }
  return {
    tools: listedTools,
    ...(tools.length > PAGE ? { nextCursor: cursorAfter(page[PAGE - 1]) } : {}),
    ttlMs: permitted ? 10_000 : 300_000,
    cacheScope: permitted ? 'private' : 'public',
  }
}

/** Returns the result of a request; null if the handler has responded with its own stream. */
export type McpMethodHandler = (session: McpClientSession, answering: PendingAnswer) => Promise<object | null>

const sharedMethods: [string, McpMethodHandler][] = [
  ['tools/list', listTools],
  ['tools/call', callMcpTool],
  ['resources/list', listMcpResources],
  ['resources/templates/list', listTemplates],
  ['resources/read', readMcpResource],
]

const modernMethods: [string, McpMethodHandler][] = [
  ['tasks/get', getTask],
  ['tasks/update', updateTask],
  ['tasks/cancel', cancelTask],
  ['subscriptions/listen', listenToServer],
]

const legacyHandlers: ReadonlyMap<string, McpMethodHandler> = new Map(sharedMethods)
const modernHandlers: ReadonlyMap<string, McpMethodHandler> = new Map([...sharedMethods, ...modernMethods])

/** Returns the handlers of the methods implemented here, by protocol revision. */
export const handlersOf = (isModern: boolean): ReadonlyMap<string, McpMethodHandler> =>
  isModern ? modernHandlers : legacyHandlers

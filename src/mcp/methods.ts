import { callMcpTool } from './call.ts'
import { listTools } from './list.ts'
import { listenToServer } from './listen.ts'
import { listMcpResources, listTemplates, readMcpResource } from './resources.ts'
import type { McpClientSession, PendingAnswer } from './session.ts'
import { cancelTask, getTask, updateTask } from './tasks.ts'

/** Gives the result of a request; null when it has answered by a stream of its own. */
export type McpMethodHandler = (session: McpClientSession, answering: PendingAnswer) => Promise<object | null>

const both: [string, McpMethodHandler][] = [
  ['tools/list', listTools],
  ['tools/call', callMcpTool],
  ['resources/list', listMcpResources],
  ['resources/templates/list', listTemplates],
  ['resources/read', readMcpResource],
]

const modernOnly: [string, McpMethodHandler][] = [
  ['tasks/get', getTask],
  ['tasks/update', updateTask],
  ['tasks/cancel', cancelTask],
  ['subscriptions/listen', listenToServer],
]

const old: ReadonlyMap<string, McpMethodHandler> = new Map(both)
const modern: ReadonlyMap<string, McpMethodHandler> = new Map([...both, ...modernOnly])

/** The methods that are answered here, by revision. */
export const handlersOf = (isModern: boolean): ReadonlyMap<string, McpMethodHandler> => (isModern ? modern : old)

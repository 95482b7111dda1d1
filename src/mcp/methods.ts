import { callTool } from './call.ts'
import { listTools } from './list.ts'
import { listen } from './listen.ts'
import { listResources, listTemplates, readResource } from './resources.ts'
import type { Answering, Session } from './session.ts'
import { cancelTask, getTask, updateTask } from './tasks.ts'

/** Gives the result of a request; null when it has answered by a stream of its own. */
export type Handler = (session: Session, answering: Answering) => Promise<object | null>

const both: [string, Handler][] = [
  ['tools/list', listTools],
  ['tools/call', callTool],
  ['resources/list', listResources],
  ['resources/templates/list', listTemplates],
  ['resources/read', readResource],
]

const modernOnly: [string, Handler][] = [
  ['tasks/get', getTask],
  ['tasks/update', updateTask],
  ['tasks/cancel', cancelTask],
  ['subscriptions/listen', listen],
]

const old: ReadonlyMap<string, Handler> = new Map(both)
const modern: ReadonlyMap<string, Handler> = new Map([...both, ...modernOnly])

/** The methods that are answered here, by revision. */
export const handlersOf = (isModern: boolean): ReadonlyMap<string, Handler> => (isModern ? modern : old)

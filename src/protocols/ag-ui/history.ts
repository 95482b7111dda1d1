import { AppError } from '#core/base/errors.ts'
import { callOperation, type Run } from './call.ts'
import { type Message, turnOfMessage } from './input.ts'
import { listClientIds } from './store.ts'

/** A message as the messages of a session present it. */
export type StoredMessage = {
  document_id: string
  role: 'user' | 'assistant'
  origin: string
  content: string | null
  parts: { type: string; text?: string; file_id?: string }[] | null
  generation_id: string | null
  /** Name of the operator. */
  author_name?: string | null
}

/** Origins of messages that an end user sees. */
const SHOWN: readonly string[] = ['end_user', 'agent', 'operator']

const PAGE = 100
/** Limit of the messages that a client gets. */
const MAX_MESSAGES = 1000

/** Returns the last messages of the session that an end user sees, oldest first; none for a caller that may not list them. */
export async function listStored({ request, sessionId }: Run): Promise<StoredMessage[]> {
  const page = async (offset: number) => {
    const { body } = await callOperation(request, 'listSessionMessages', {
      params: { session_id: sessionId },
      query: { limit: String(PAGE), offset: String(offset) },
    })
    return body as { data: StoredMessage[]; total: number }
  }
  try {
    const first = await page(0)
    const from = Math.max(0, first.total - MAX_MESSAGES)
    const stored = from === 0 ? first.data : []
    for (let offset = from === 0 ? PAGE : from; offset < first.total; offset += PAGE)
      stored.push(...(await page(offset)).data)
    return stored.filter(({ origin, content }) => SHOWN.includes(origin) && content !== null)
  } catch (error) {
    if (error instanceof AppError && error.code === 'FORBIDDEN') return []
    throw error
  }
}

/** The client's messages with the messages that it lacks; `known` are its messages before the first missing message. */
type History = { messages: readonly Message[]; known: readonly Message[] }

/**
 * Returns the client's messages with the messages of the session that it lacks, in the order of the session. Messages that
 * the session does not have, such as results of tools, stay where the client has them.
 */
export async function completedHistory(run: Run): Promise<History> {
  const stored = await listStored(run)
  const clientIds = await listClientIds(run.request.services.pool, run.sessionId)
  const rest = [...run.input.messages]
  const messages: Message[] = []
  let known: readonly Message[] | null = null
  for (const message of stored) {
    const id = clientIds.get(message.document_id) ?? message.document_id
    const isKnown = (each: Message) =>
      each.id === id ||
      (message.role === 'assistant' &&
        message.generation_id !== null &&
        turnOfMessage(each.id) === message.generation_id)
    const last = rest.findLastIndex(isKnown)
    if (last >= 0) messages.push(...rest.splice(0, last + 1))
    else {
      known ??= [...messages]
      messages.push(toMessage(id, message))
    }
  }
  messages.push(...rest)
  return { messages, known: known ?? messages }
}

const toMessage = (id: string, { role, content, parts, generation_id }: StoredMessage): Message =>
  (role === 'assistant' && generation_id !== null
    ? { id: `msg_${generation_id}_0`, role, content }
    : { id, role, content: (role === 'user' && contentOf(parts)) || content }) as Message

/** Returns the content of a message with files; null for parts that the client gets as text. */
const contentOf = (parts: StoredMessage['parts']): object[] | null =>
  parts?.every(({ type, file_id }) => type === 'text' || file_id)
    ? parts.map(({ type, text, file_id }) =>
        file_id
          ? { type: type === 'image' ? 'image' : 'document', source: { type: 'file', value: file_id } }
          : { type: 'text', text },
      )
    : null

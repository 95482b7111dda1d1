import type { Run } from '../ag-ui/call.ts'
import { listStored, type StoredMessage } from '../ag-ui/history.ts'
import { listClientIds } from '../ag-ui/store.ts'

type UiPart = { type: string; text?: string; url?: string; mediaType?: string }
type UiMessage = { id: string; role: string; parts: UiPart[]; metadata?: { author_name: string } }

/** Returns the messages of a chat as its client presents them; none for a caller that may not list them. */
export async function listUiMessages(run: Run): Promise<UiMessage[]> {
  const stored = await listStored(run)
  const clientIds = await listClientIds(run.request.services.pool, run.sessionId)
  return stored.map(message => uiMessageOf(clientIds.get(message.document_id) ?? message.document_id, message))
}

const uiMessageOf = (id: string, message: StoredMessage): UiMessage => {
  const { role, content, parts, generation_id, author_name } = message
  return {
    id: role === 'assistant' && generation_id !== null ? `msg_${generation_id}` : id,
    role,
    parts: (role === 'user' && uiPartsOf(parts)) || [{ type: 'text', text: content ?? '' }],
    // Of an operator.
    ...(author_name != null && { metadata: { author_name } }),
  }
}

/** Returns the parts of a message with files; null for parts that the client gets as text. */
const uiPartsOf = (parts: StoredMessage['parts']): UiPart[] | null =>
  parts?.every(({ type, file_id }) => type === 'text' || file_id)
    ? parts.map(({ type, text, file_id }) =>
        file_id
          ? { type: 'file', mediaType: type === 'image' ? 'image/*' : 'application/octet-stream', url: file_id }
          : { type: 'text', text },
      )
    : null

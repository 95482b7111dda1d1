import { exportConversation } from '@muster/client/operations'
import { api } from '#api.ts'
import { saveAs } from './save.ts'

/** Saves the messages of a conversation, one JSON object a line. */
export async function saveConversation(conversationId: string): Promise<void> {
  const content = await exportConversation(api, { conversation_id: conversationId })
  saveAs([await content.bytes()], `${conversationId}.ndjson`)
}

import { createActorFile } from '#content/files/actor-files.ts'
import { createUploaded } from '#content/files/create.ts'
import { essenceOf } from '#content/files/media-type.ts'
import { fileKind } from '#content/files/model.ts'
import { Upload } from '#content/files/upload.ts'
import { storageBackends } from '#content/storage/backends.ts'
import type { ConversationRow } from '#conversation/dialog/messages/model.ts'
import {
  type AnsweringAgent,
  type CheckedParts,
  checkParts,
  mediaPlaceholder,
} from '#conversation/dialog/messages/parts.ts'
import { MAX_PARTS, type MessagePart } from '#conversation/dialog/messages/parts-model.ts'
import { appendMessage } from '#conversation/dialog/messages/store.ts'
import type { SessionRow } from '#conversation/sessions/model.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import type { Services } from '#core/base/services.ts'
import type { Tx } from '#core/writes/writer.ts'
import { mediaRules } from '#execution/agents/media.ts'
import type { AttachedFile, ModelMessage } from '#execution/providers/model-messages.ts'
import { attachmentsIn, checkAttachedType, hasMedia, requireCount } from './client-media.ts'
import type { TurnContext } from './turn-call.ts'

/** Messages with images and files that a conversation stores: attachments become files of the end user or the project. */

/** A message that can be stored: its checked parts, and the bytes of its new files. */
export type StoredMedia = CheckedParts & { uploads: Upload[] }

/** Messages by their objects in the request. */
export type StoredMessages = { of: ReadonlyMap<ModelMessage, StoredMedia>; discard(): Promise<void> }

export const NO_MEDIA: StoredMessages = { of: new Map(), discard: async () => {} }

/**
 * Requires that the caller may store the attachments of messages: as files of the project, or of the end user by the scope
 * `files`.
 * @throws FORBIDDEN
 */
export function requireUpload(
  { allow, caller }: TurnContext,
  projectId: string,
  messages: readonly ModelMessage[],
): void {
  if (attachmentsIn(messages).length === 0) return
  const { end_user } = caller
  if (!end_user) allow('files:UploadFile', { kind: fileKind, project_id: projectId })
  else if (!end_user.scopes.includes('files')) raise('FORBIDDEN', { meta: { scope: 'files' } })
}

/**
 * Checks the messages with media and stages the bytes of their attachments, which `discard` deletes unless they were stored.
 * Requires loadAttachments and requireUpload.
 * @throws FILE_NOT_FOUND, FORBIDDEN, MEDIA_NOT_ACCEPTED, VALIDATION_FAILED
 */
export async function stageMedia(
  context: TurnContext,
  projectId: string,
  agent: AnsweringAgent,
  messages: readonly ModelMessage[],
): Promise<StoredMessages> {
  const of = new Map<ModelMessage, StoredMedia>()
  const uploads: Upload[] = []
  const discard = async () => void (await Promise.all(uploads.map(({ staged }) => staged.discard())))
  try {
    for (const message of messages) {
      if (!hasMedia([message])) continue
      requireCount(message, mediaRules(agent.media).max_parts_per_turn)
      const checked = await checkMessage(context, projectId, agent, message)
      for (const part of attachmentsIn([message])) uploads.push(await stage(context.services, projectId, part))
      of.set(message, storedMedia(message, checked, uploads.slice(uploads.length - attachmentsIn([message]).length)))
    }
    return { of, discard }
  } catch (error) {
    await discard()
    throw error
  }
}

/** Checks the files of a message that are given by ID, and the types of its attachments. */
async function checkMessage(
  context: TurnContext,
  projectId: string,
  agent: AnsweringAgent,
  { content }: ModelMessage,
): Promise<CheckedParts['files']> {
  const parts = typeof content === 'string' ? [] : content
  if (parts.length > MAX_PARTS)
    raiseInvalid({ code: 'TOO_BIG', path: 'messages', message: `must have at most ${MAX_PARTS} parts a message` })
  for (const part of parts) if (part.type === 'attachment') checkAttachedType(part, agent)
  const files = parts.flatMap(part => (part.type === 'file' ? { type: 'file' as const, file_id: part.file_id } : []))
  return files.length === 0 ? [] : (await checkParts(context, projectId, files, agent)).files
}

async function stage(services: Services, projectId: string, part: AttachedFile): Promise<Upload> {
  const fileId = newId(fileKind.prefix)
  const bytes = Buffer.from(part.data_base64, 'base64')
  const staged = await storageBackends(services).stageBytes(bytes, { projectId, fileId })
  return new Upload(staged, fileId, { filename: part.filename, type: essenceOf(part.media_type) })
}

/** Returns a message with media as its conversation stores it. */
function storedMedia({ content }: ModelMessage, files: CheckedParts['files'], uploads: Upload[]): StoredMedia {
  const rest = [...uploads]
  const places = new Map(files.map(({ id, placeholder }) => [id, placeholder ?? '']))
  const parts: MessagePart[] = []
  const texts: string[] = []
  for (const part of typeof content === 'string' ? [] : content) {
    if (part.type === 'text') {
      if (part.text === '') continue
      parts.push({ type: 'text', text: part.text })
      texts.push(part.text)
    } else if (part.type === 'file') {
      parts.push({ type: 'file', file_id: part.file_id })
      texts.push(places.get(part.file_id) as string)
    } else if (part.type === 'attachment') {
      const { fileId } = rest.shift() as Upload
      parts.push({ type: part.media_type.startsWith('image/') ? 'image' : 'file', file_id: fileId })
      texts.push(mediaPlaceholder(part.media_type, part.filename))
    }
  }
  const staged = uploads.map(({ fileId, staged }) => ({ id: fileId, sha256: staged.sha256.toString('hex') }))
  return { parts, content: texts.join('\n\n'), files: [...files, ...staged], uploads }
}

/** Creates the files of a message: of the end user, or without one of the project. @throws QUOTA_STORAGE_EXCEEDED */
async function createMediaFiles(
  tx: Tx,
  services: Services,
  { project_id, actor_id }: { project_id: string; actor_id: string | null },
  { uploads }: StoredMedia,
): Promise<void> {
  for (const upload of uploads) {
    const contentType = upload.type as string
    const row =
      actor_id === null
        ? await createUploaded(services, tx, project_id, upload, {
            prefix: `/openai/${upload.fileId}`,
            content_type: contentType,
          })
        : await createActorFile(services, tx, { project: project_id, actorId: actor_id, upload, contentType })
    tx.emit(fileKind, 'created', row)
  }
}

/** Appends a text of a request to a conversation, with its images and files. */
export async function storeMessage(
  tx: Tx,
  services: Services,
  conversation: ConversationRow,
  { project_id, actor_id, agent_id }: SessionRow,
  { role, text, media }: { role: 'user' | 'assistant'; text: string; media?: StoredMedia },
  origin: 'system' | 'end_user',
): Promise<void> {
  if (media) await createMediaFiles(tx, services, { project_id, actor_id }, media)
  await appendMessage(tx, conversation, {
    role,
    origin,
    ...(media ? { checked: media } : { content: text }),
    ...(role === 'user' ? { actor_id } : { actor_id: null, agent_id }),
  })
}

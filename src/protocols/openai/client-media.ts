import { mediaInput, mediaProblem, raiseNotAccepted } from '#content/files/media.ts'
import { fetchImage } from '#content/files/media-fetch.ts'
import { fileNote } from '#content/files/media-notes.ts'
import { pdfProblem } from '#content/files/media-pages.ts'
import { maxWholeRead } from '#content/files/read-memory.ts'
import { type AnsweringAgent, checkMediaType, checkParts } from '#conversation/dialog/messages/parts.ts'
import type { Context } from '#core/api/operation.ts'
import type { Services } from '#core/base/services.ts'
import { mediaRules } from '#execution/agents/media.ts'
import { attachedBytes, attachedPieces } from '#execution/generations/request/message-files.ts'
import { currentMedia } from '#execution/generations/request/message-media.ts'
import type { AttachedFile, FilePart, ModelMessage, TextPart } from '#execution/providers/model-messages.ts'

/** Images and files in the messages of a client: by ID, with their content, or as the URL of an image. */

/** An image that is not fetched yet. */
export type RemoteImage = AttachedFile & { url: string }

type UserPart = TextPart | FilePart | AttachedFile

const isRemote = (part: UserPart): part is RemoteImage => 'url' in part

const partsOf = ({ role, content }: ModelMessage): readonly UserPart[] =>
  role === 'user' && typeof content !== 'string' ? content : []

export const attachmentsIn = (messages: readonly ModelMessage[]): AttachedFile[] =>
  messages.flatMap(partsOf).filter(part => part.type === 'attachment')

const filesIn = (messages: readonly ModelMessage[]): FilePart[] =>
  messages.flatMap(partsOf).filter(part => part.type === 'file')

export const hasMedia = (messages: readonly ModelMessage[]): boolean =>
  messages.some(message => partsOf(message).some(({ type }) => type !== 'text'))

export const hasRemoteImages = (messages: readonly ModelMessage[]): boolean =>
  messages.some(message => partsOf(message).some(isRemote))

/** Returns the messages with other parts in place of some. */
const replaceParts = (messages: readonly ModelMessage[], replace: (part: UserPart) => UserPart): ModelMessage[] =>
  messages.map(message => {
    if (message.role !== 'user' || typeof message.content === 'string') return message
    return { role: 'user', content: message.content.map(replace) }
  })

const MAX_REMOTE = 16
/** Images that are fetched concurrently. */
const FETCHES = 4

/**
 * Fetches the images of URLs and checks the content of all attachments, not their declared types. Never call it before the
 * permission check, nor with URLs of an end user.
 * @throws MEDIA_NOT_ACCEPTED
 */
export async function loadAttachments(
  services: Services,
  project_id: string,
  messages: ModelMessage[],
  signal: AbortSignal,
): Promise<ModelMessage[]> {
  const attachments = attachmentsIn(messages)
  if (attachments.length === 0) return messages
  const remote = attachments.filter(isRemote)
  if (remote.length > MAX_REMOTE)
    raiseNotAccepted(null, { reason: 'count', message: `The request has more than ${MAX_REMOTE} URLs of images` })
  const limit = maxWholeRead(services.config)
  let bytes = 0
  const count = (size: number) => {
    bytes += size
    if (bytes > limit)
      raiseNotAccepted(null, { reason: 'size', message: `The files of the request have more than ${limit} bytes` })
  }
  for (const part of attachments) count(attachedBytes(part))
  for (const part of attachments) if (!isRemote(part)) await checkContent(services, project_id, part, signal)
  const fetched = new Map<UserPart, AttachedFile>()
  for (let at = 0; at < remote.length; at += FETCHES) {
    const images = remote.slice(at, at + FETCHES).map(async part => {
      const image = await fetchImage(services, { url: part.url, project_id, signal })
      count(image.bytes.length)
      fetched.set(part, imageOf(part, image.content_type, image.bytes.toString('base64')))
    })
    await Promise.all(images)
  }
  return remote.length === 0 ? messages : replaceParts(messages, part => fetched.get(part) ?? part)
}

const imageOf = ({ url: _, ...part }: RemoteImage, media_type: string, data_base64: string): AttachedFile => ({
  ...part,
  filename: imageName(media_type),
  media_type,
  data_base64,
})

/** Returns a name for an image without one. */
export const imageName = (mediaType: string): string => `image.${mediaType.slice('image/'.length)}`

async function checkContent(
  services: Services,
  project: string,
  part: AttachedFile,
  signal: AbortSignal,
): Promise<void> {
  const pieces = () => attachedPieces(part)
  const problem =
    (await mediaProblem(part.media_type, pieces())) ??
    (mediaInput(part.media_type) === 'pdf'
      ? await pdfProblem(services, { project, size: attachedBytes(part), pieces }, signal)
      : null)
  if (problem) raiseNotAccepted(null, problem)
}

type MediaContext = Pick<Context, 'services' | 'allow' | 'caller'> & { request: Pick<Context['request'], 'closed'> }

/** Media of a message that is not stored. */
const UNSTORED = { message_id: null, alt: null, description: null }

/** Returns messages whose images and files the agent handles by its settings. */
export const markMedia = (messages: readonly ModelMessage[]): ModelMessage[] =>
  replaceParts(messages, part => (part.type === 'text' ? part : { media: UNSTORED, ...part }))

/**
 * Returns the messages of a turn outside conversations with media as the agent handles them: files of the newest turns are
 * sent or replaced by text when the turn runs, older attachments are notes.
 * @throws FILE_NOT_FOUND, FORBIDDEN, MEDIA_NOT_ACCEPTED
 */
export async function admitMedia(
  context: MediaContext,
  projectId: string,
  agent: AnsweringAgent,
  messages: ModelMessage[],
): Promise<ModelMessage[]> {
  if (!hasMedia(messages)) return messages
  const rules = mediaRules(agent.media)
  requireCount(
    messages.findLast(({ role }) => role === 'user'),
    rules.max_parts_per_turn,
  )
  const marked = markMedia(messages)
  const current = new Set<UserPart>(currentMedia(marked, rules))
  const sent = replaceParts(marked, part =>
    part.type !== 'attachment' || current.has(part) ? part : { type: 'text', text: attachmentNote(part) },
  )
  const files = filesIn(sent)
  for (const [parts, of] of [
    [files.filter(part => current.has(part)), agent],
    [files.filter(part => !current.has(part)), null],
  ] as const)
    if (parts.length > 0) await checkParts(context, projectId, parts.map(toMessagePart), of)
  const loaded = await loadAttachments(context.services, projectId, sent, context.request.closed)
  for (const part of attachmentsIn(loaded)) checkAttachedType(part, agent)
  return loaded
}

const toMessagePart = ({ file_id }: FilePart) => ({ type: 'file' as const, file_id })

export const checkAttachedType = ({ media_type }: AttachedFile, agent: AnsweringAgent): void =>
  checkMediaType(null, { type: 'file', content_type: media_type }, agent)

/** Requires that a message has no more images and files than a turn. @throws MEDIA_NOT_ACCEPTED */
export function requireCount(message: ModelMessage | undefined, limit: number): void {
  if (!message || partsOf(message).filter(({ type }) => type !== 'text').length <= limit) return
  raiseNotAccepted(null, { reason: 'count', message: `The message has more than ${limit} images and files` })
}

const attachmentNote = (part: AttachedFile): string =>
  fileNote(
    { filename: part.filename, content_type: part.media_type, size: isRemote(part) ? null : attachedBytes(part) },
    null,
  )

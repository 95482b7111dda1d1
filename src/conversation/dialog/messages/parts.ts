import { z } from 'zod'
import { documentKind } from '#content/documents/model.ts'
import { listDocumentTexts } from '#content/documents/store.ts'
import { type MediaProblem, mediaInput, mediaProblem, raiseNotAccepted } from '#content/files/media.ts'
import { filePlaceholder } from '#content/files/media-notes.ts'
import { pdfProblem } from '#content/files/media-pages.ts'
import { essenceOf } from '#content/files/media-type.ts'
import { type FileRow, fileKind } from '#content/files/model.ts'
import { referencedChunks } from '#content/files/read-file.ts'
import { maxWholeRead } from '#content/files/read-memory.ts'
import type { Context } from '#core/api/operation.ts'
import { AppError, raise, raiseInvalid } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { type Queryable, sql } from '#core/db/sql.ts'
import { acceptsType, mediaRules } from '#execution/agents/media.ts'
import { findRunnableAgent, type RunnableAgent } from '#execution/generations/request/create-store.ts'
import { MAX_MESSAGES_BYTES } from '#execution/generations/request/generate-request.ts'
import { calledModels } from '#execution/generations/request/message-media.ts'
import { findFiles } from '#execution/generations/store.ts'
import type { MediaPart, MessagePart } from './parts-model.ts'

/** Parts of a message that were checked, before the transaction that stores the message. */
export type CheckedParts = {
  parts: MessagePart[]
  /** The text form. */
  content: string
  /** Files of the parts with the content that was checked, and their places in the text form. */
  files: { id: string; sha256: string | null; placeholder?: string }[]
  /** Why the message must not be stored. */
  refused?: AppError
}

type CheckContext = Pick<Context, 'services' | 'allow' | 'caller'> & { request: Pick<Context['request'], 'closed'> }

/** The agent that answers, with the models that it may call. */
export type AnsweringAgent = Pick<RunnableAgent, 'media' | 'provider' | 'route' | 'model'>

/** Returns the agent of a session in the version served to its end user; null if it was deleted. */
export const findSessionAgent = (
  db: Queryable,
  { id, agent_id, actor_id }: { id: string; agent_id: string; actor_id: string | null },
): Promise<AnsweringAgent | null> => findRunnableAgent(db, agent_id, { actor_id, session_id: id })

/**
 * Checks the parts of a message: that the caller may read files and documents, an end user only its own files, and that
 * the files are media which the agent, if it is known, and its models accept. Reads headers of images and the structure
 * of PDFs.
 * @throws FILE_NOT_FOUND, FORBIDDEN, MEDIA_NOT_ACCEPTED; RESOURCE_NOT_FOUND and VALIDATION_FAILED for a document
 */
export async function checkParts(
  context: CheckContext,
  projectId: string,
  parts: MessagePart[],
  agent: AnsweringAgent | null,
): Promise<CheckedParts> {
  const { services, allow, request, caller } = context
  const { end_user } = caller
  if (end_user && parts.some(part => part.type === 'document')) raise('FORBIDDEN', { meta: { field: 'parts' } })
  const media = parts.filter(part => 'file_id' in part)
  const ids = [...new Set(media.map(part => part.file_id))]
  const found = ids.length > 0 ? await findFiles(services.pool, projectId, ids) : []
  const isVisible = ({ actor_id }: FileRow) => !end_user || actor_id === end_user.actor_id
  const files = new Map(found.filter(isVisible).map(file => [file.id, file]))
  const missing = ids.find(id => !files.has(id))
  if (missing !== undefined) raise('FILE_NOT_FOUND', { meta: { id: missing } })
  if (!end_user) for (const row of found) allow('files:DownloadFile', { kind: fileKind, row })
  const texts = await readDocuments(services, allow, projectId, parts)
  checkAmount(services, media, files, agent)
  for (const { type, file_id } of media)
    checkMediaType(file_id, { type, content_type: (files.get(file_id) as FileRow).content_type }, agent)
  for (const file of found) await checkContent(services, file, request.closed)
  return {
    parts,
    content: parts.map(part => textOf(part, files, texts)).join('\n\n'),
    files: found.map(({ id, sha256, content_type, filename }) => ({
      id,
      sha256,
      placeholder: mediaPlaceholder(content_type, filename),
    })),
  }
}

/**
 * Like checkParts for the parts of a body; null without parts. If they are refused and the body has an idempotency key,
 * the refusal is raised only when the message is stored: a repeat gets the first message, whatever its body contains.
 */
export async function checkBodyParts(
  context: CheckContext,
  projectId: string,
  { parts, idempotency_key }: { parts?: MessagePart[]; idempotency_key?: string },
  findAgent: () => Promise<AnsweringAgent | null>,
): Promise<CheckedParts | null> {
  if (parts === undefined) return null
  try {
    return await checkParts(context, projectId, parts, await findAgent())
  } catch (refused) {
    if (!(refused instanceof AppError) || idempotency_key === undefined) throw refused
    return { parts, content: '', files: [], refused }
  }
}

async function readDocuments(
  { pool }: Services,
  allow: Context['allow'],
  projectId: string,
  parts: readonly MessagePart[],
): Promise<ReadonlyMap<string, string>> {
  const ids = parts.flatMap(part => (part.type === 'document' ? part.document_id : []))
  if (ids.length === 0) return new Map()
  const rows = await listDocumentTexts(pool, projectId, [...new Set(ids)], MAX_MESSAGES_BYTES)
  const documents = new Map(rows.map(row => [row.id, row]))
  const missing = ids.find(id => !documents.has(id))
  if (missing !== undefined) raise(documentKind.notFound, { meta: { id: missing } })
  for (const row of rows) allow('documents:GetDocument', { kind: documentKind, row })
  for (const [index, part] of parts.entries()) {
    if (part.type !== 'document') continue
    const { bytes, status, content } = documents.get(part.document_id) as (typeof rows)[number]
    const path = `parts[${index}].document_id`
    if (!bytes) raiseInvalid({ code: 'INVALID_STATE', path, message: `has no text (status ${status})` })
    if (content === null)
      raiseInvalid({ code: 'TOO_BIG', path, message: `must refer to texts of at most ${MAX_MESSAGES_BYTES} bytes` })
  }
  return new Map(rows.map(({ id, content }) => [id, content as string]))
}

/** Checks the number of files, and the bytes of those that a model receives as they are. */
function checkAmount(
  { config }: Services,
  media: readonly MediaPart[],
  files: ReadonlyMap<string, FileRow>,
  agent: AnsweringAgent | null,
): void {
  const { max_parts_per_turn } = mediaRules(agent?.media ?? null)
  const refuse = (part: MediaPart, problem: MediaProblem) => raiseNotAccepted(part.file_id, problem)
  if (agent && media.length > max_parts_per_turn)
    refuse(media[max_parts_per_turn], {
      reason: 'count',
      message: `The message has more than ${max_parts_per_turn} images and files`,
    })
  const limit = maxWholeRead(config)
  let bytes = 0
  for (const part of media) {
    const { content_type, size } = files.get(part.file_id) as FileRow
    if (mediaInput(content_type) === 'text') continue
    bytes += size ?? 0
    if (bytes > limit)
      refuse(part, { reason: 'size', message: `The files of the message have more than ${limit} bytes in total` })
  }
}

/** Checks that the agent, if it is known, and its models accept a media type. @throws MEDIA_NOT_ACCEPTED */
export function checkMediaType(
  fileId: string | null,
  part: { type: MediaPart['type']; content_type: string | null },
  agent: AnsweringAgent | null,
): void {
  const { content_type } = part
  const refuse = (problem: MediaProblem) => raiseNotAccepted(fileId, problem)
  const input = mediaInput(content_type)
  const type = essenceOf(content_type ?? 'application/octet-stream')
  if (part.type === 'image' && input !== 'image')
    refuse({ reason: 'type', message: `A file of type ${type} is not accepted as an image` })
  if (!agent) return
  const rules = mediaRules(agent.media)
  if (!acceptsType(rules, type)) refuse({ reason: 'type', message: `The agent does not accept files of type ${type}` })
  if (rules.fallback !== 'refuse' || input === null) return
  if (calledModels(agent, agent.model).some(inputs => inputs !== null && !inputs.has(input)))
    refuse({ reason: 'model', message: `The model of the agent does not accept files of type ${type}` })
}

async function checkContent(services: Services, file: FileRow, signal: AbortSignal): Promise<void> {
  const { id, project_id, content_type, size } = file
  const pieces = () => referencedChunks(services, file)
  if (file.storage === null || size === null)
    return raiseNotAccepted(id, { reason: 'content', message: 'The file has no content' })
  const problem =
    (await mediaProblem(content_type, pieces())) ??
    (mediaInput(content_type) === 'pdf'
      ? await pdfProblem(services, { project: project_id, size, pieces }, signal)
      : null)
  if (problem) raiseNotAccepted(id, problem)
}

function textOf(part: MessagePart, files: ReadonlyMap<string, FileRow>, texts: ReadonlyMap<string, string>): string {
  if (part.type === 'text') return part.text
  if (part.type === 'document') return texts.get(part.document_id) as string
  const { filename, content_type } = files.get(part.file_id) as FileRow
  return mediaPlaceholder(content_type, (part.type === 'image' ? part.alt : undefined) ?? filename)
}

/** Returns the place of a file in the text form of a message. */
export const mediaPlaceholder = (contentType: string | null, name: string): string =>
  filePlaceholder(mediaInput(contentType) === 'image' ? 'image' : 'file', name)

const idRow = sql.type(z.object({ id: z.string() }))

/**
 * Locks the files of checked parts against deletion until the transaction ends. By the primary key.
 * @throws the refusal of the parts, FILE_NOT_FOUND for a file that was deleted or replaced since the check
 */
export async function lockCheckedFiles(tx: Queryable, { files, refused }: CheckedParts): Promise<void> {
  if (refused) throw refused
  if (files.length === 0) return
  const locked = await tx.anyFirst(idRow`
    select t.id from files t
    join ${sql.unnest(
      files.map(({ id, sha256 }) => [id, sha256]),
      ['text', 'text'],
    )} as c (id, sha256) on c.id = t.id and encode(t.sha256, 'hex') = c.sha256
    for key share of t`)
  const missing = files.find(({ id }) => !locked.includes(id))
  if (missing) raise('FILE_NOT_FOUND', { meta: { id: missing.id } })
}

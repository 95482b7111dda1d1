import type { z } from 'zod'
import { messagesAfter } from '#conversation/dialog/messages/store.ts'
import { sessionKind } from '#conversation/sessions/kind.ts'
import type { SessionRow } from '#conversation/sessions/model.ts'
import { canSeeProject } from '#core/api/access.ts'
import { isIdOf } from '#core/api/kind.ts'
import type { Context } from '#core/api/operation.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import type { Tx } from '#core/writes/writer.ts'
import { type GenerationRow, generationKind } from '#execution/generations/model.ts'
import { readSteps } from '#execution/generations/traces/file.ts'
import { addItems, checkItem, type ItemDraft, itemBytes, MAX_COPIED_BYTES, MAX_ITEM_BYTES } from './add.ts'
import {
  type DatasetItemRow,
  type DatasetRow,
  datasetItemKind,
  type FromGenerationInput,
  type FromSessionInput,
  type ItemTurnMessage,
} from './model.ts'
import { lockItemTexts, lockTurns } from './store.ts'

/**
 * Items copied from turns and sessions. A copy is independent of its original until the content of the end user is
 * erased.
 */

type CopyContext<B> = Pick<Context<unknown, B, DatasetRow>, 'services' | 'resource' | 'caller' | 'allow' | 'body'>

/**
 * Loads a turn that the caller may copy into the dataset.
 * @throws GENERATION_NOT_FOUND, FORBIDDEN, VALIDATION_FAILED for a turn of another project
 */
async function loadReadableTurn({
  services,
  resource: dataset,
  caller,
  allow,
  body,
}: CopyContext<z.output<typeof FromGenerationInput>>): Promise<GenerationRow> {
  const { generation_id } = body
  const turn = isIdOf(generationKind, generation_id) ? await generationKind.find(services.pool, generation_id) : null
  if (!turn || !canSeeProject(caller, turn.project_id))
    return raise('GENERATION_NOT_FOUND', { meta: { id: generation_id } })
  allow('generations:GetGeneration', { kind: generationKind, row: turn })
  if (turn.project_id !== dataset.project_id)
    raiseInvalid({ code: 'INVALID_VALUE', path: 'generation_id', message: 'does not exist in this project' })
  return turn
}

/**
 * Returns the input of a completed turn.
 * @throws GENERATION_NOT_COMPLETED, GENERATION_CONTENT_UNAVAILABLE
 */
function requireContent({ id, status, content_mode, content_redacted_at, input }: GenerationRow): ItemTurnMessage[] {
  if (status !== 'completed') raise('GENERATION_NOT_COMPLETED', { meta: { generation_id: id, status } })
  if (content_mode === 'none' || content_redacted_at !== null || !input?.length)
    return raise('GENERATION_CONTENT_UNAVAILABLE', { meta: { generation_id: id } })
  return input as ItemTurnMessage[]
}

/** Returns the reply of a turn: its content, or the text of the last step that has one. */
const readReply = async (services: Context['services'], turn: GenerationRow): Promise<string | null> =>
  turn.output?.content || ((await readSteps(services, turn)).findLast(step => step.text)?.text ?? null)

/**
 * Copies a turn into a dataset.
 * @throws the errors of loadReadableTurn, requireContent, checkItem and addItems
 */
export async function copyTurn(
  context: CopyContext<z.output<typeof FromGenerationInput>> & Pick<Context, 'record'>,
): Promise<DatasetItemRow> {
  const { services, resource, body } = context
  const turn = await loadReadableTurn(context)
  requireContent(turn)
  const expected_output = body.expected_output === undefined ? await readReply(services, turn) : body.expected_output
  return services.write(async tx => {
    // Locked, so that a concurrent purge has either removed the content or waits.
    const locked = await generationKind.reference(tx, turn.id, resource.project_id)
    if (!locked) return raise('GENERATION_NOT_FOUND', { meta: { id: turn.id } })
    const draft: ItemDraft = {
      input: requireContent(locked),
      expected_output,
      metadata: body.metadata ?? null,
      source_generation_id: turn.id,
      source_conversation_id: turn.conversation_id,
      source_actor_id: turn.actor_id,
    }
    checkItem(draft)
    const [{ id }] = await addItems(tx, services, resource.id, [draft])
    const item = (await datasetItemKind.find(tx, id)) as DatasetItemRow
    context.record(tx, 201, { id: resource.id, body: datasetItemKind.present(item) })
    return item
  })
}

/** Messages per read; each has up to 256 Ki characters. */
const PAGE = 20
/** Most messages of an item. */
const MAX_INPUT_MESSAGES = 500
/** Most messages of a session that are read; some may follow the last reply. */
const MAX_READ_MESSAGES = 2 * MAX_INPUT_MESSAGES

type Reply = { input: ItemTurnMessage[]; reply: string; generation_id: string | null }

/**
 * Reads the replies of a session, each with the messages before it, and the documents of all messages read. Returns
 * null if a reply follows more messages than an item can contain.
 */
async function readReplies(
  { services }: Pick<Context, 'services'>,
  { conversation_id }: SessionRow,
): Promise<{ replies: Reply[]; documents: string[] } | null> {
  const history: ItemTurnMessage[] = []
  const replies: Reply[] = []
  const documents: string[] = []
  let bytes = 0
  for (let position = -1, read = 0; read < MAX_READ_MESSAGES; read += PAGE) {
    const messages = await messagesAfter(services.pool, conversation_id, position, PAGE)
    for (const { role, content, generation_id, document_id } of messages) {
      // The content was purged.
      if (content === null) continue
      documents.push(document_id)
      if (role === 'assistant' && history.length > 0) {
        if (history.length > MAX_INPUT_MESSAGES || bytes > MAX_ITEM_BYTES) return null
        replies.push({ input: [...history], reply: content, generation_id })
      }
      // Beyond these limits a reply makes the function return null, so the history is not needed.
      if (history.length <= MAX_INPUT_MESSAGES && bytes <= MAX_ITEM_BYTES) history.push({ role, content })
      bytes += Buffer.byteLength(content)
    }
    if (messages.length < PAGE) return { replies, documents }
    position = messages[messages.length - 1].position
  }
  return null
}

/** Most items per session; each repeats the messages before its reply. */
const MAX_REPLIES = 100

/**
 * Copies the last reply or all replies of a session into a dataset.
 * @throws RESOURCE_NOT_FOUND, FORBIDDEN, VALIDATION_FAILED for a session of another project or without a reply, and the
 *   errors of checkItem and addItems
 */
export async function copySession(
  context: CopyContext<z.output<typeof FromSessionInput>> & Pick<Context, 'record'>,
): Promise<{ created: number; ids: string[] }> {
  const { services, resource, caller, allow, body } = context
  const { session_id, replies: selection, metadata = null } = body
  const session = isIdOf(sessionKind, session_id) ? await sessionKind.find(services.pool, session_id) : null
  if (!session || !canSeeProject(caller, session.project_id))
    return raise('RESOURCE_NOT_FOUND', { meta: { id: session_id } })
  for (const action of ['sessions:GetSession', 'sessions:ListSessionMessages'])
    allow(action, { kind: sessionKind, row: session })
  const raiseInvalidSession = (message: string) => raiseInvalid({ code: 'INVALID_VALUE', path: 'session_id', message })
  if (session.project_id !== resource.project_id) raiseInvalidSession('does not exist in this project')
  const found = await readReplies(context, session)
  if (!found) return raiseInvalidSession('has more than 500 messages or 4 MiB before a reply')
  const { replies, documents } = found
  if (replies.length === 0) raiseInvalidSession('has no reply that can be copied')
  if (selection === 'all' && replies.length > MAX_REPLIES) raiseInvalidSession(`has more than ${MAX_REPLIES} replies`)
  const drafts = (selection === 'all' ? replies : replies.slice(-1)).map(
    ({ input, reply, generation_id }): ItemDraft => ({
      input,
      expected_output: reply,
      metadata,
      source_generation_id: generation_id,
      source_conversation_id: session.conversation_id,
      source_actor_id: session.actor_id,
    }),
  )
  let bytes = 0
  for (const draft of drafts) {
    checkItem(draft)
    bytes += itemBytes(draft)
    if (bytes > MAX_COPIED_BYTES) raiseInvalidSession('has replies whose items would exceed 32 MiB')
  }
  return services.write(async (tx: Tx) => {
    // Locked, so that a concurrent purge has either removed messages or waits and then finds the copies.
    if (!(await lockItemTexts(tx, documents))) raiseInvalidSession('has messages that were erased concurrently')
    const current = await withExistingTurns(tx, drafts)
    const items = await addItems(tx, services, resource.id, current)
    const copied = { created: items.length, ids: items.map(({ id }) => id) }
    context.record(tx, 201, { id: resource.id, body: copied })
    return copied
  })
}

/** Clears the source turn of drafts whose turn was deleted, and locks the other turns. */
async function withExistingTurns(tx: Tx, drafts: readonly ItemDraft[]): Promise<ItemDraft[]> {
  const ids = drafts.flatMap(({ source_generation_id }) => source_generation_id ?? [])
  const existing = new Set(ids.length === 0 ? [] : await lockTurns(tx, ids))
  return drafts.map(draft =>
    draft.source_generation_id && !existing.has(draft.source_generation_id)
      ? { ...draft, source_generation_id: null }
      : draft,
  )
}

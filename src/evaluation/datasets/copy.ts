import type { z } from 'zod'
import { messagesAfter } from '../../conversation/conversations/store.ts'
import { sessionKind } from '../../conversation/sessions/kind.ts'
import type { SessionRow } from '../../conversation/sessions/model.ts'
import { raise, raiseInvalid } from '../../core/api/errors.ts'
import { isIdOf } from '../../core/api/kind.ts'
import type { Context } from '../../core/api/operation.ts'
import type { Tx } from '../../core/db/writer.ts'
import { canSeeProject } from '../../core/iam/access.ts'
import { type GenerationRow, generationKind } from '../../execution/generations/model.ts'
import { readSteps } from '../../execution/generations/traces/file.ts'
import { addItems, checkItem, type Draft, itemBytes, MAX_ITEM_BYTES } from './add.ts'
import {
  type DatasetItemRow,
  type DatasetRow,
  datasetItemKind,
  type FromGenerationInput,
  type FromSessionInput,
  type ItemTurnMessage,
} from './model.ts'
import { holdTexts, lockTurns } from './store.ts'

/**
 * Items copied from what turns and sessions said. A copy stays as it is, whatever becomes of its original, until the content of
 * the end user is erased.
 */

type Copying<B> = Pick<Context<unknown, B, DatasetRow>, 'services' | 'resource' | 'caller' | 'allow' | 'body'>

/**
 * A turn that may be copied into a dataset, as far as who asks may read it.
 * @throws GENERATION_NOT_FOUND, FORBIDDEN, VALIDATION_FAILED for one of another project
 */
async function readableTurn({
  services,
  resource: dataset,
  caller,
  allow,
  body,
}: Copying<z.output<typeof FromGenerationInput>>): Promise<GenerationRow> {
  const { generation_id } = body
  const turn = isIdOf(generationKind, generation_id) ? await generationKind.find(services.pool, generation_id) : null
  if (!turn || !canSeeProject(caller, turn.project_id))
    return raise('GENERATION_NOT_FOUND', { meta: { id: generation_id } })
  allow('generations:GetGeneration', { kind: generationKind, row: turn })
  if (turn.project_id !== dataset.project_id)
    raiseInvalid({ code: 'INVALID_VALUE', path: 'generation_id', message: 'names a turn of another project' })
  return turn
}

/** Raises GENERATION_NOT_COMPLETED, GENERATION_CONTENT_UNAVAILABLE for a turn that there is nothing to copy of. */
function requireContent({ id, status, content_mode, content_redacted_at, input }: GenerationRow): ItemTurnMessage[] {
  if (status !== 'completed') raise('GENERATION_NOT_COMPLETED', { meta: { generation_id: id, status } })
  if (content_mode === 'none' || content_redacted_at !== null || !input?.length)
    return raise('GENERATION_CONTENT_UNAVAILABLE', { meta: { generation_id: id } })
  return input as ItemTurnMessage[]
}

/** The answer of a turn: the text of its last step that has one. */
const answerOf = async (services: Context['services'], turn: GenerationRow): Promise<string | null> =>
  turn.output?.content || ((await readSteps(services, turn)).findLast(step => step.text)?.text ?? null)

/** Copies a turn into a dataset. Raises what readableTurn and requireContent do, and what refuses an item. */
export async function copyTurn(
  context: Copying<z.output<typeof FromGenerationInput>> & Pick<Context, 'record'>,
): Promise<DatasetItemRow> {
  const { services, resource, body } = context
  const turn = await readableTurn(context)
  requireContent(turn)
  const expected_output = body.expected_output === undefined ? await answerOf(services, turn) : body.expected_output
  return services.write(async tx => {
    // Held, so that a purge that comes meanwhile has either taken the content or waits.
    const held = await generationKind.reference(tx, turn.id, resource.project_id)
    if (!held) return raise('GENERATION_NOT_FOUND', { meta: { id: turn.id } })
    const draft: Draft = {
      input: requireContent(held),
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

/** Messages that are read at once: each has up to 256 Ki characters. */
const PAGE = 20
/** Messages that an item can have. */
const MOST_INPUT = 500
/** Messages of a session that are read: behind the last reply there may be others. */
const MOST_READ = 2 * MOST_INPUT

type Reply = { input: ItemTurnMessage[]; reply: string; generation_id: string | null }

/**
 * Replies of a session, each with what was said before it, and the documents of all that was read; null for a session whose last replies have more before them than an
 * item can hold.
 */
async function repliesOf(
  { services }: Pick<Context, 'services'>,
  { conversation_id }: SessionRow,
): Promise<{ replies: Reply[]; documents: string[] } | null> {
  const said: ItemTurnMessage[] = []
  const replies: Reply[] = []
  const documents: string[] = []
  let bytes = 0
  for (let position = -1, read = 0; read < MOST_READ; read += PAGE) {
    const messages = await messagesAfter(services.pool, conversation_id, position, PAGE)
    for (const { role, content, generation_id, document_id } of messages) {
      // What was purged is not there any more.
      if (content === null) continue
      documents.push(document_id)
      if (role === 'assistant' && said.length > 0) {
        if (said.length > MOST_INPUT || bytes > MAX_ITEM_BYTES) return null
        replies.push({ input: [...said], reply: content, generation_id })
      }
      // What no reply can follow any more is not kept.
      if (said.length <= MOST_INPUT && bytes <= MAX_ITEM_BYTES) said.push({ role, content })
      bytes += Buffer.byteLength(content)
    }
    if (messages.length < PAGE) return { replies, documents }
    position = messages[messages.length - 1].position
  }
  return null
}

/** Items that one session makes at most, and their bytes: each repeats what was said before it. */
const MOST_REPLIES = 100
const MOST_COPIED = 32 * 1024 * 1024

/**
 * Copies the replies of a session into a dataset, the last one or all.
 * @throws RESOURCE_NOT_FOUND, FORBIDDEN, VALIDATION_FAILED for a session of another project and for one without a reply,
 *   and what refuses items
 */
export async function copySession(
  context: Copying<z.output<typeof FromSessionInput>> & Pick<Context, 'record'>,
): Promise<{ created: number; ids: string[] }> {
  const { services, resource, caller, allow, body } = context
  const { session_id, replies: wanted, metadata = null } = body
  const session = isIdOf(sessionKind, session_id) ? await sessionKind.find(services.pool, session_id) : null
  if (!session || !canSeeProject(caller, session.project_id))
    return raise('RESOURCE_NOT_FOUND', { meta: { id: session_id } })
  for (const action of ['sessions:GetSession', 'sessions:ListSessionMessages'])
    allow(action, { kind: sessionKind, row: session })
  const refuse = (message: string) => raiseInvalid({ code: 'INVALID_VALUE', path: 'session_id', message })
  if (session.project_id !== resource.project_id) refuse('names a session of another project')
  const found = await repliesOf(context, session)
  if (!found) return refuse('names a session with more than 500 messages or 4 MiB before a reply')
  const { replies, documents } = found
  if (replies.length === 0) refuse('names a session without a reply that can be copied')
  if (wanted === 'all' && replies.length > MOST_REPLIES)
    refuse(`names a session with more than ${MOST_REPLIES} replies`)
  const drafts = (wanted === 'all' ? replies : replies.slice(-1)).map(
    ({ input, reply, generation_id }): Draft => ({
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
    if (bytes > MOST_COPIED) refuse('names a session whose replies make items of more than 32 MiB')
  }
  return services.write(async (tx: Tx) => {
    // Held, so that a purge that comes meanwhile has either taken messages or waits, and finds the copies.
    if (!(await holdTexts(tx, documents))) refuse('names a session whose messages were erased meanwhile')
    const kept = await existing(tx, drafts)
    const items = await addItems(tx, services, resource.id, kept)
    const copied = { created: items.length, ids: items.map(({ id }) => id) }
    context.record(tx, 201, { id: resource.id, body: copied })
    return copied
  })
}

/** Items of turns that were deleted name none. */
async function existing(tx: Tx, drafts: readonly Draft[]): Promise<Draft[]> {
  const named = drafts.flatMap(({ source_generation_id }) => source_generation_id ?? [])
  const there = new Set(named.length === 0 ? [] : await lockTurns(tx, named))
  return drafts.map(draft =>
    draft.source_generation_id && !there.has(draft.source_generation_id)
      ? { ...draft, source_generation_id: null }
      : draft,
  )
}

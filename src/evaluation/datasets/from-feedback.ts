import { z } from 'zod'
import { feedbackKind } from '#conversation/feedback/model.ts'
import { listAllowed, listTargetOf, raiseForbidden, visibleRows } from '#core/api/access.ts'
import { timeRangeCondition } from '#core/api/lists.ts'
import type { Context } from '#core/api/operation.ts'
import { raiseInvalid } from '#core/base/errors.ts'
import { allOf, type Fragment, type Queryable, sql } from '#core/db/sql.ts'
import type { RowColumns } from '#core/iam/row-filter.ts'
import { generationKind } from '#execution/generations/model.ts'
import { addItems, checkItem, type ItemDraft, MAX_COPIED_BYTES } from './add.ts'
import type { DatasetRow, FromFeedbackInput, ItemsFromFeedback, ItemTurnMessage } from './model.ts'
import { lockTurns } from './store.ts'

type FeedbackContext = Pick<
  Context<unknown, z.output<typeof FromFeedbackInput>, DatasetRow>,
  'tx' | 'services' | 'resource' | 'caller' | 'body'
>

/**
 * Copies rated turns into a dataset, newest feedback first: one item per feedback record whose turn has content.
 * @throws FORBIDDEN; VALIDATION_FAILED for turns of more than MAX_COPIED_BYTES; the errors of checkItem and addItems
 */
export async function copyRatedTurns(context: FeedbackContext): Promise<z.output<typeof ItemsFromFeedback>> {
  const { tx, services, resource, body } = context
  const withComments = body.expected_output === 'comment'
  const selected = await listRatedTurns(tx, context, [
    readable(context, 'generations:GetGeneration', generationKind, {
      project: sql.fragment`coalesce(g.project_id, t.project_id)`,
      id: sql.fragment`t.generation_id`,
    }),
    withComments &&
      readable(context, 'sessions:ListFeedback', feedbackKind, {
        project: sql.fragment`t.project_id`,
        id: sql.fragment`t.id`,
        parent: sql.fragment`t.session_id`,
      }),
  ])
  // Locked, so that a concurrent purge has either removed content and comments or waits and then finds the copies.
  await lockTurns(tx, [...new Set(selected.flatMap(({ generation_id }) => generation_id ?? []))])
  const turns = await readTurns(
    tx,
    selected.map(({ id }) => id),
  )
  if (!turns)
    return raiseInvalid({ code: 'TOO_BIG', path: 'limit', message: 'selects turns of more than 32 MiB of messages' })
  const drafts = turns.map(
    ({ feedback_id, comment, input, generation_id, conversation_id, actor_id }): ItemDraft => ({
      input,
      expected_output: withComments ? comment : null,
      metadata: { feedback_id },
      source_generation_id: generation_id,
      source_conversation_id: conversation_id,
      source_actor_id: actor_id,
    }),
  )
  for (const draft of drafts) checkItem(draft)
  const items = await addItems(tx, services, resource.id, drafts)
  return { created: items.length, ids: items.map(({ id }) => id), skipped: selected.length - items.length }
}

/** Returns the condition of the rows on which the caller may perform an action. Raises FORBIDDEN if there are none. */
function readable(
  { caller, resource: { project_id } }: Pick<FeedbackContext, 'caller' | 'resource'>,
  action: string,
  kind: Parameters<typeof listTargetOf>[0],
  columns: RowColumns,
): Fragment {
  const target = listTargetOf(kind)
  if (!listAllowed(caller, action, target, project_id)) raiseForbidden(caller, action)
  return visibleRows(caller, { ...target, action, project: project_id }, columns).rows
}

const selectedRow = sql.type(z.object({ id: z.string(), generation_id: z.string().nullable() }))

/** Lists the selected feedback, newest first, of deleted turns too. Index feedback_project. */
const listRatedTurns = (
  db: Queryable,
  { resource, body: { rating, label, from = null, to = null, limit } }: Pick<FeedbackContext, 'resource' | 'body'>,
  permitted: (Fragment | false)[],
) =>
  db.any(selectedRow`
    select t.id, t.generation_id from feedback t left join generations g on g.id = t.generation_id
    where ${allOf([
      sql.fragment`t.project_id = ${resource.project_id}`,
      rating != null && sql.fragment`t.rating = ${rating}`,
      label != null && sql.fragment`${label} = any(t.labels)`,
      timeRangeCondition(sql.fragment`t.created_at`, {
        from: from ? new Date(from) : null,
        to: to ? new Date(to) : null,
      }),
      ...permitted,
    ])}
    order by t.created_at desc, t.id desc limit ${limit}`)

const bytesRow = sql.type(z.object({ bytes: z.int() }))
const ratedTurnRow = sql.type(
  z.object({
    feedback_id: z.string(),
    comment: z.string().nullable(),
    generation_id: z.string(),
    conversation_id: z.string().nullable(),
    actor_id: z.string().nullable(),
    input: z.array(z.custom<ItemTurnMessage>()),
  }),
)

/** Reads the completed turns with content of feedback, in its order; null above MAX_COPIED_BYTES. */
async function readTurns(db: Queryable, feedbackIds: readonly string[]) {
  const turns = sql.fragment`
    unnest(${sql.array([...feedbackIds], 'text')}) with ordinality s (id, n) join feedback t on t.id = s.id
    join generations g on g.id = t.generation_id and g.status = 'completed' and g.content_mode <> 'none'
      and g.content_redacted_at is null and jsonb_typeof(g.input) = 'array' and g.input <> '[]'`
  const bytes = await db.oneFirst(bytesRow`
    select coalesce(sum(octet_length(g.input::text)), 0)::int8 as bytes from ${turns}`)
  if (bytes > MAX_COPIED_BYTES) return null
  return db.any(ratedTurnRow`
    select t.id as feedback_id, t.comment, g.id as generation_id, g.conversation_id, g.actor_id, g.input
    from ${turns} order by s.n`)
}

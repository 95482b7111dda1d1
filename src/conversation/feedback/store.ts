import { z } from 'zod'
import type { EndUser } from '#control/retention/erasure.ts'
import { allOf, type Fragment, idStatement, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import type { PrincipalRef } from '#core/iam/caller.ts'
import { type GenerationRow, generationKind } from '#execution/generations/model.ts'
import { messageOrigin } from '../dialog/messages/store.ts'
import { type FeedbackRow, feedbackKind, type GROUPS } from './model.ts'

/** The author of feedback. */
export type Author = { type: 'actor' | PrincipalRef['type']; id: string }

/** What feedback is about: a message, or a turn whose reply is no message. */
export type Target = Pick<
  FeedbackRow,
  | 'project_id'
  | 'session_id'
  | 'conversation_id'
  | 'document_id'
  | 'generation_id'
  | 'agent_id'
  | 'agent_version'
  | 'actor_id'
>

const messageRow = sql.type(
  z.object({ origin: z.string(), agent_id: z.string().nullable(), generation_id: z.string().nullable() }),
)

/** Reads a message and protects it from deletion until the transaction ends. Index: primary key. */
export const referenceMessage = (db: Queryable, conversationId: string, documentId: string) =>
  db.maybeOne(messageRow`
    select ${messageOrigin} as origin, m.agent_id, m.generation_id from conversation_messages m
    where m.conversation_id = ${conversationId} and m.document_id = ${documentId} for key share`)

const Turn = generationKind.row.pick({
  id: true,
  project_id: true,
  status: true,
  agent_id: true,
  agent_version: true,
  session_id: true,
  conversation_id: true,
  actor_id: true,
})
const turnRow = sql.type(Turn)

/** Reads a turn without its content. Until the transaction ends, its content is not erased. */
export const referenceTurn = (
  db: Queryable,
  id: string,
): Promise<Pick<GenerationRow, keyof z.output<typeof Turn>> | null> =>
  db.maybeOne(turnRow`
    select t.id, t.project_id, t.status, t.agent_id, t.agent_version, t.session_id, t.conversation_id, t.actor_id
    from generations t where t.id = ${id} for key share`)

const documentRow = sql.type(z.object({ document_id: z.string() }))

/** Returns the reply of a turn in its conversation, protected from deletion. By conversation_messages_generation. */
export const referenceReply = (
  db: Queryable,
  { id, conversation_id }: Pick<GenerationRow, 'id' | 'conversation_id'>,
): Promise<string | null> =>
  db.maybeOneFirst(documentRow`
    select m.document_id from conversation_messages m
    where m.generation_id = ${id} and m.conversation_id = ${conversation_id}
    order by m.position desc limit 1 for key share`)

/**
 * Locks and returns the feedback of an author: on the message, or on a turn without a message also that on its deleted
 * reply. Indexes feedback_message and feedback_generation.
 */
export const lockFeedback = (
  db: Queryable,
  { conversation_id, document_id, generation_id, session_id }: Target,
  author: Author,
): Promise<FeedbackRow | null> =>
  db.maybeOne(feedbackKind.sql`
    select ${feedbackKind.columns} from feedback t
    where ${
      document_id === null
        ? sql.fragment`t.generation_id = ${generation_id} and t.session_id is not distinct from ${session_id}`
        : sql.fragment`t.conversation_id = ${conversation_id} and t.document_id = ${document_id}`
    } and t.author_type = ${author.type} and t.author_id = ${author.id}
    order by t.id limit 1 for update`)

const GROUP_KEYS = {
  agent_version: sql.fragment`t.agent_version::text`,
  agent: sql.fragment`t.agent_id`,
  day: sql.fragment`to_char(t.created_at at time zone 'UTC', 'YYYY-MM-DD')`,
  label: sql.fragment`l.label`,
} satisfies Record<(typeof GROUPS)[number], Fragment>

const groupRow = sql.type(
  z.object({
    key: z.string().nullable(),
    count: z.int(),
    up: z.int(),
    down: z.int(),
    mean_score: z.number().nullable(),
  }),
)

/** Maximum number of groups; end users choose labels. */
const MAX_GROUPS = 1000

/** Maximum number of groups that a cell returns, the largest, for a response with the groups of all cells. */
const MAX_CELL_GROUPS = 100_000

type Group = (typeof GROUPS)[number]

/** Order of groups: newest version or day first, most frequent label or agent first. */
const orderOf = (group: Group, version: Fragment): Fragment =>
  ({
    agent_version: sql.fragment`max(${version}) desc nulls last`,
    agent: sql.fragment`2 desc, 1`,
    day: sql.fragment`1 desc`,
    label: sql.fragment`2 desc, 1`,
  })[group]

const groupedBy = (group: Group): Fragment => sql.fragment`
    from feedback t ${group === 'label' ? sql.fragment`cross join lateral unnest(t.labels) l (label)` : sql.fragment``}`

/** Returns sums by group. Index feedback_agent, or feedback_project without an agent. */
export const aggregateFeedback = (db: Queryable, group: Group, conditions: (Fragment | null | undefined | false)[]) =>
  db.any(groupRow`
    select ${GROUP_KEYS[group]} as key, count(*) as count, count(*) filter (where t.rating = 1) as up,
      count(*) filter (where t.rating = -1) as down, avg(t.score) as mean_score
    ${groupedBy(group)}
    where ${allOf(conditions)}
    group by 1 order by ${orderOf(group, sql.fragment`t.agent_version`)} limit ${MAX_GROUPS}`)

const groupsText = sql.type(z.strictObject({ groups: z.string() }))

/** Returns the sums by group of a cell, as JSON text for `aggregateOfCells`. Indexes as for `aggregateFeedback`. */
export const readFeedbackGroups = (
  db: Queryable,
  group: Group,
  conditions: (Fragment | null | undefined | false)[],
): Promise<string> =>
  db.oneFirst(groupsText`
    select coalesce(json_agg(g), '[]')::text as groups from (
      select ${GROUP_KEYS[group]} as key, count(*) as count, count(*) filter (where t.rating = 1) as up,
        count(*) filter (where t.rating = -1) as down, sum(t.score) as score, count(t.score) as scored,
        max(t.agent_version) as version
      ${groupedBy(group)}
      where ${allOf(conditions)}
      group by 1 order by 2 desc limit ${MAX_CELL_GROUPS}) g`)

/** Returns the sums by group of several cells. */
export const aggregateOfCells = (db: Queryable, group: Group, texts: readonly string[]) =>
  db.any(groupRow`
    select g.key, sum(g.count)::int8 as count, sum(g.up)::int8 as up, sum(g.down)::int8 as down,
      sum(g.score) / nullif(sum(g.scored), 0)::float8 as mean_score
    from unnest(${sql.array([...texts], 'text')}) t (groups) cross join lateral json_to_recordset(t.groups::json)
      as g (key text, count int8, up int8, down int8, score float8, scored int8, version int)
    group by 1 order by ${orderOf(group, sql.fragment`g.version`)} limit ${MAX_GROUPS}`)

const ratingsRow = sql.type(z.object({ key: z.string().nullable(), up: z.int(), down: z.int() }))

/** Returns the ratings of turns of a project by agent version. Indexes feedback_agent and feedback_generation. */
export const ratingsOfTurns = (db: Queryable, project: string, turns: Fragment) =>
  db.any(ratingsRow`
    select f.agent_version::text as key, count(*) filter (where f.rating = 1) as up,
      count(*) filter (where f.rating = -1) as down
    from feedback f where f.project_id = ${project} and f.generation_id in (${turns}) group by f.agent_version`)

/** Erases comments and labels; returns the ids of the rows not erased before. */
export const eraseTexts = (db: Queryable, condition: Fragment): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    update feedback t set comment = null, labels = '{}', erased = true where not t.erased and ${condition} returning id`)

/** Condition for feedback of an end user and on its turns. Indexes feedback_actor and feedback_author. */
export const isOfEndUser = ({ id, project_id }: Pick<EndUser, 'id' | 'project_id'>): Fragment =>
  sql.fragment`t.project_id = ${project_id}
    and (t.actor_id = ${id} or (t.author_id = ${id} and t.author_type = 'actor'))`

/** Lists feedback of an end user that was written until a time and is not erased. */
export const listFeedbackOfEndUser = (
  db: Queryable,
  endUser: Pick<EndUser, 'id' | 'project_id'>,
  until: string,
  limit: number,
): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select t.id from feedback t
    where ${isOfEndUser(endUser)} and not t.erased and t.updated_at <= ${until}::timestamptz
    order by t.id limit ${limit}`)

/** Moves the feedback of an end user to another one; where both rated a message, the other's is retained. */
export async function reassignFeedback(db: Queryable, from: string, to: string): Promise<void> {
  await db.query(voidStatement`update feedback set actor_id = ${to} where actor_id = ${from}`)
  await db.query(voidStatement`
    delete from feedback f using feedback kept
    where f.author_id = ${from} and f.author_type = 'actor' and kept.author_id = ${to} and kept.author_type = 'actor'
      and (kept.conversation_id, kept.document_id, kept.generation_id)
        is not distinct from (f.conversation_id, f.document_id, f.generation_id)`)
  await db.query(voidStatement`
    update feedback set author_id = ${to} where author_id = ${from} and author_type = 'actor'`)
}

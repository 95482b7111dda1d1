import { z } from 'zod'
import { fileKind } from '#content/files/model.ts'
import { usageKind } from '#control/usage/model.ts'
import { SumsRow, usageSince } from '#control/usage/sums.ts'
import { listAllowed, listTargetOf, visibleRows } from '#core/api/access.ts'
import type { Kind } from '#core/api/kind.ts'
import { itemOperation } from '#core/api/operation.ts'
import { allOf, type Fragment, isoTime, sql } from '#core/db/sql.ts'
import { reachOf } from '#core/iam/authority.ts'
import type { Caller } from '#core/iam/caller.ts'
import { APPROVAL_STATUSES, approvalKind } from '#execution/approvals/model.ts'
import { currentCondition, memoryKind, ownerColumn } from '#memory/facts/model.ts'
import { withinReach } from '#memory/reach.ts'
import { memoryStoreKind } from '#memory/stores/model.ts'
import { Actor, actorKind } from '../actors/model.ts'
import { sessionKind, sessionStatus } from './kind.ts'
import { previewFields, previewOfMessage } from './message-preview.ts'
import { CONTROLS, SESSION_STATUSES } from './model.ts'

/** Number of entries of each part. */
const NEWEST = 5
/** Days of usage; sums of usage are kept for 40. */
const USAGE_DAYS = 30

const time = z.iso.datetime()

const partOf = <T extends z.ZodRawShape>(action: string, what: string, entry: T) =>
  z
    .object({
      count: z.int().describe(`Number of ${what}`),
      newest: z.array(z.object(entry)).describe(`The newest ${NEWEST}, newest first`),
    })
    .nullable()
    .describe(`Null without \`${action}\``)

const Parts = z.object({
  sessions: partOf('sessions:ListSessions', 'sessions', {
    id: z.string(),
    name: z.string().nullable().describe('Display name'),
    agent_id: z.string().describe('ID of the agent that answers'),
    status: z.enum(SESSION_STATUSES).describe('Status of the session'),
    control: z.enum(CONTROLS).describe('Who answers'),
    needs_attention: z.boolean().describe('Whether a person is requested'),
    last_activity_at: time.nullable().describe('Time of the last user message'),
    created_at: time,
  }),
  messages: partOf('sessions:ListSessionMessages', 'messages of the sessions, including replies', {
    session_id: z.string(),
    document_id: z.string().describe('ID of the document with the text'),
    ...previewFields,
  }),
  notes: z
    .object({ count: z.int().describe('Number of notes of operators about the sessions') })
    .nullable()
    .describe('Null without `sessions:ListSessionNotes`'),
  facts: partOf('memories:ListMemories', 'current facts of the stores that the caller may list', {
    id: z.string(),
    memory_store_id: z.string().describe('ID of the memory store'),
    content: z.string(),
    created_at: time,
  }),
  files: partOf('files:GetFile', 'files that the end user uploaded', {
    id: z.string(),
    filename: z.string(),
    content_type: z.string().nullable(),
    size: z.int().nullable().describe('Size in bytes'),
    created_at: time,
  }),
  usage: SumsRow.pick({ events: true, tokens: true, cost_usd: true, unpriced: true })
    .extend({
      events: z.int().describe('Number of usage events'),
      tokens: z.int().describe('Number of tokens'),
      cost_usd: z.number().describe('Cost of the priced usage in US dollars'),
      unpriced: z.int().describe('Number of model calls without a price, which are not in the cost'),
      days: z.int().describe('Number of days that the sums cover'),
    })
    .nullable()
    .describe('Null without `usage:GetAggregate` on all usage of the project'),
  approvals: partOf('approvals:ListApprovals', 'approvals of turns of the end user', {
    id: z.string(),
    status: z.enum(APPROVAL_STATUSES).describe('Status of the approval'),
    session_id: z.string().nullable(),
    tool_name: z.string().nullable().describe('Name of the tool to call'),
    expires_at: time,
    created_at: time,
  }),
  tokens: z
    .object({
      revocations: z.int().describe('Number of revocations of all tokens'),
      open_streams: z.int().describe('Number of open streams of all tokens'),
      limits: z
        .array(
          z.object({
            name: z.string().describe('Limit of the end user'),
            used: z.int().describe('Use in the current window'),
            resets_at: time.describe('End of the window'),
          }),
        )
        .describe('Limits in use. Tokens themselves are not stored.'),
    })
    .nullable()
    .describe('Null without `actors:RevokeActorTokens` on the actor'),
  last_seen_at: time
    .nullable()
    .describe(
      'Time of the last message of the end user in these sessions. Null without any, and without the sessions.',
    ),
})

const ActorOverview = Parts.extend({ actor: Actor.describe('The actor, with its tags') }).meta({ id: 'ActorOverview' })

const partsRow = sql.type(Parts)

const createdAt = sql.fragment`'created_at', ${isoTime(sql.fragment`t.created_at`)}`
const NOTHING = sql.fragment`null::jsonb`

/** Returns the condition of the rows `t` of a kind that the caller may list, with the other conditions; null if there can be none. */
function visibleParts(caller: Caller, projectId: string) {
  return (kind: Kind<any, any>, action: string, ...conditions: (Fragment | null)[]): Fragment | null => {
    const target = listTargetOf(kind)
    if (!listAllowed(caller, action, target, projectId)) return null
    const { rows } = visibleRows(
      caller,
      { ...target, action, project: projectId },
      {
        project: sql.fragment`t.project_id`,
        id: sql.fragment`t.id`,
        ...(kind.tags ? { tags: sql.fragment`t.tags` } : {}),
        ...(kind.path ? { path: sql.fragment`t.path` } : {}),
      },
    )
    return allOf([...conditions, rows])
  }
}

/** Expression of a part: the number of rows, and the newest as objects of `fields`. Null if `rows` is. */
const partOfRows = (
  table: Fragment,
  rows: Fragment | null,
  fields: Fragment,
  order: Fragment = sql.fragment`t.created_at`,
): Fragment =>
  rows === null
    ? NOTHING
    : sql.fragment`jsonb_build_object(
        'count', (select count(*) from ${table} t where ${rows}),
        'newest', coalesce((
          select jsonb_agg(newest.entry order by newest.at desc, newest.id desc) from (
            select jsonb_build_object(${fields}) as entry, ${order} as at, t.id from ${table} t where ${rows}
            order by ${order} desc, t.id desc limit ${NEWEST}) newest), '[]'))`

/** Time of the last activity of a session `t`. */
const activity = sql.fragment`coalesce(t.last_activity_at, t.created_at)`

/**
 * Expression of the messages of sessions: their number by the counts of conversations, and the newest of the newest
 * sessions. By conversation_messages_position.
 */
const messagesOf = (sessions: Fragment | null): Fragment =>
  sessions === null
    ? NOTHING
    : sql.fragment`jsonb_build_object(
        'count', (
          select coalesce(sum(c.message_count), 0) from sessions t join conversations c on c.id = t.conversation_id
          where ${sessions}),
        'newest', coalesce((
          select jsonb_agg(newest.entry order by newest.created_at desc, newest.position desc) from (
            select m.created_at, m.position, jsonb_build_object('session_id', s.id, 'document_id', m.document_id, ${previewOfMessage}) as entry
            from (select t.id, t.conversation_id from sessions t where ${sessions} order by ${activity} desc, t.id desc
              limit ${NEWEST}) s
            cross join lateral (
              select * from conversation_messages m where m.conversation_id = s.conversation_id and not m.note
              order by m.position desc limit ${NEWEST}) m
            order by m.created_at desc, m.position desc limit ${NEWEST}) newest), '[]'))`

/** Expression of the number of notes about sessions. By session_notes_session. */
const notesOf = (sessions: Fragment | null): Fragment =>
  sessions === null
    ? NOTHING
    : sql.fragment`jsonb_build_object('count', (
        select count(*) from session_notes n where n.session_id in (select t.id from sessions t where ${sessions})))`

/** Expression of the use of tokens. By the primary keys of open_streams and actor_limits. */
const tokensOf = (actorId: string): Fragment => sql.fragment`(
  select jsonb_build_object('revocations', a.token_version - 1,
    'open_streams', (select coalesce(sum(o.streams), 0) from open_streams o where o.subject = a.id),
    'limits', coalesce((
      select jsonb_agg(jsonb_build_object('name', l.name, 'used', l.used, 'resets_at', ${isoTime(sql.fragment`l.resets_at`)})
        order by l.name)
      from actor_limits l where l.subject = a.id and l.resets_at > now()), '[]'))
  from actors a where a.id = ${actorId})`

/**
 * Reads all parts in one statement. By sessions_actor, memories_actor, files_actor, generations_actor and approvals_generation; its cost grows
 * with the rows of the end user.
 */
export const actorOverviewOperation = itemOperation(actorKind, {
  id: 'getActorOverview',
  method: 'get',
  path: '/actors/{actor_id}/overview',
  summary: 'Get an overview of an end user',
  description:
    'Returns the counts and the newest sessions, messages, facts, files and approvals of the end user, the number of notes about it, and its usage. Each part needs the permission of its list and is null without it.',
  tag: 'Actors',
  action: 'actors:GetActor',
  alsoActions: [
    'sessions:ListSessions',
    'sessions:ListSessionMessages',
    'sessions:ListSessionNotes',
    'memories:ListMemories',
    'files:GetFile',
    'usage:GetAggregate',
    'approvals:ListApprovals',
    'actors:RevokeActorTokens',
  ],
  answers: { 200: ActorOverview },
  async run({ db, caller, allowed, resource: actor }) {
    const { id, project_id } = actor
    const rowsOf = visibleParts(caller, project_id)
    const own = sql.fragment`t.actor_id = ${id}`
    const ownSessions = allOf([own, sql.fragment`not t.ephemeral`])
    const sessions = rowsOf(sessionKind, 'sessions:ListSessions', ownSessions)
    const { rows: stores } = visibleRows(
      caller,
      { ...listTargetOf(memoryStoreKind), action: 'memories:ListMemories', project: project_id },
      { project: sql.fragment`s.project_id`, id: sql.fragment`s.id`, tags: sql.fragment`s.tags` },
    )
    const usage = visibleRows(
      caller,
      { ...listTargetOf(usageKind), action: 'usage:GetAggregate', project: project_id },
      { project: sql.fragment`t.project_id`, id: sql.fragment`t.id` },
    )
    const parts = await db.one(partsRow`
      select
        ${partOfRows(
          sql.fragment`sessions`,
          sessions,
          sql.fragment`'id', t.id, 'name', t.name, 'agent_id', t.agent_id, 'status', ${sessionStatus}, 'control', t.control,
            'needs_attention', t.attention is not null, 'last_activity_at', ${isoTime(sql.fragment`t.last_activity_at`)}, ${createdAt}`,
          activity,
        )} as sessions,
        ${messagesOf(rowsOf(sessionKind, 'sessions:ListSessionMessages', ownSessions))} as messages,
        ${notesOf(rowsOf(sessionKind, 'sessions:ListSessionNotes', ownSessions))} as notes,
        ${partOfRows(
          sql.fragment`memories`,
          rowsOf(
            memoryKind,
            'memories:ListMemories',
            own,
            currentCondition,
            withinReach(ownerColumn(sql.fragment`t`), reachOf(caller)),
            sql.fragment`exists (select from memory_stores s where s.id = t.memory_store_id and ${stores})`,
          ),
          sql.fragment`'id', t.id, 'memory_store_id', t.memory_store_id, 'content', t.content, ${createdAt}`,
        )} as facts,
        ${partOfRows(
          sql.fragment`files`,
          rowsOf(fileKind, 'files:GetFile', own),
          sql.fragment`'id', t.id, 'filename', t.filename, 'content_type', t.content_type, 'size', t.size, ${createdAt}`,
        )} as files,
        ${
          usage.all
            ? sql.fragment`(
                select jsonb_build_object('events', u.events, 'tokens', u.tokens, 'cost_usd', u.cost_usd,
                  'unpriced', u.unpriced, 'days', ${USAGE_DAYS}::int)
                from (${usageSince({
                  project: sql.fragment`${project_id}`,
                  scope: sql.fragment`'actor'`,
                  ref: sql.fragment`${id}`,
                  since: sql.fragment`(date_trunc('hour', now(), 'UTC') - make_interval(days => ${USAGE_DAYS}))`,
                  meter: sql.fragment`null::text`,
                })}) u)`
            : NOTHING
        } as usage,
        ${partOfRows(
          sql.fragment`approvals`,
          rowsOf(
            approvalKind,
            'approvals:ListApprovals',
            sql.fragment`t.generation_id in (select g.id from generations g where g.actor_id = ${id})`,
          ),
          sql.fragment`'id', t.id, 'status', t.status, 'session_id', t.session_id,
            'tool_name', t.proposed_action ->> 'tool_name', 'expires_at', ${isoTime(sql.fragment`t.expires_at`)}, ${createdAt}`,
        )} as approvals,
        ${allowed('actors:RevokeActorTokens', { kind: actorKind, row: actor }) ? tokensOf(id) : NOTHING} as tokens,
        ${
          sessions === null
            ? sql.fragment`null::timestamptz`
            : sql.fragment`(select max(t.last_activity_at) from sessions t where ${sessions})`
        } as last_seen_at`)
    return { actor: actorKind.present(actor), ...parts }
  },
})

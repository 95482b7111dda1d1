import { z } from 'zod'
import { columnFilter, equalsFilter } from '#core/api/filters.ts'
import { booleanQuery, integerQuery, MAX_INTEGER, parseTime, textFilter, timeRangeCondition } from '#core/api/lists.ts'
import { type Context, combined, itemOperation, type Operation, operation } from '#core/api/operation.ts'
import { sql } from '#core/db/sql.ts'
import { resource } from '#core/resources/resource.ts'
import { generationKind } from '#execution/generations/model.ts'
import { sessionKind } from '../sessions/kind.ts'
import { giveAccess, listAccess } from './end-user.ts'
import { authorOf, deleteFeedback, giveFeedback, targetOfMessage, targetOfTurn } from './give.ts'
import { Feedback, FeedbackAggregate, FeedbackInput, feedbackKind, GROUPS } from './model.ts'
import { aggregateFeedback, aggregateOfCells, readFeedbackGroups } from './store.ts'

const tag = 'Feedback'
const feedback = resource(feedbackKind, { path: '/feedback', tag, module: 'sessions' })

const messagePath = '/sessions/{session_id}/messages/{document_id}/feedback'
const turnPath = '/generations/{generation_id}/feedback'

/** Models do not rate replies as the principal of their turn, so platform tools do not include the operations. */
const give = { tag, action: 'sessions:GiveFeedback', internal: true, mcp: true } as const

const time = z
  .string()
  .refine(value => parseTime(value) !== null, 'must be an ISO 8601 time')
  .transform(value => parseTime(value) as Date)
  .optional()

const AggregateQuery = z.object({
  agent_id: textFilter.describe('ID of the agent that replied'),
  group_by: z.enum(GROUPS).default('agent_version').describe('Dimension to group by. Default `agent_version`.'),
  from: time.describe('Feedback created at this time or later'),
  to: time.describe('Feedback created at this time or earlier'),
})
type AggregateQuery = z.output<typeof AggregateQuery>

/** Returns the conditions of the feedback `t` that an aggregate counts. */
const aggregateConditions = ({ query, visible }: Pick<Context<AggregateQuery>, 'query' | 'visible'>) => {
  const { agent_id, from = null, to = null } = query
  return [
    visible({ project: sql.fragment`t.project_id`, id: sql.fragment`t.id` }).rows,
    agent_id !== undefined && sql.fragment`t.agent_id = ${agent_id}`,
    timeRangeCondition(sql.fragment`t.created_at`, { from, to }),
  ]
}

export const feedbackOperations: Operation[] = [
  itemOperation(sessionKind, {
    ...give,
    id: 'putMessageFeedback',
    command: ['sessions', 'give-feedback'],
    method: 'put',
    path: messagePath,
    summary: 'Give feedback on a message',
    description: 'Replaces earlier feedback of the caller on the message, which must be a reply of the agent.',
    endUser: giveAccess,
    body: FeedbackInput,
    answers: { 200: Feedback },
    async run({ tx, caller, resource, params, body }) {
      const target = await targetOfMessage(tx, resource, params.document_id)
      return feedbackKind.present(await giveFeedback(tx, target, authorOf(caller), body))
    },
  }),
  itemOperation(sessionKind, {
    ...give,
    id: 'deleteMessageFeedback',
    command: ['sessions', 'delete-feedback'],
    method: 'delete',
    path: messagePath,
    summary: 'Delete feedback on a message',
    description: 'Deletes the feedback of the caller.',
    answers: { 204: null },
    async run({ tx, services, caller, resource, params }) {
      await deleteFeedback(tx, services, await targetOfMessage(tx, resource, params.document_id), authorOf(caller))
    },
  }),
  itemOperation(generationKind, {
    ...give,
    id: 'putGenerationFeedback',
    command: ['generations', 'give-feedback'],
    method: 'put',
    path: turnPath,
    summary: 'Give feedback on a generation',
    description:
      'Replaces earlier feedback of the caller on the generation. If its reply is a message, the feedback is that on the message.',
    body: FeedbackInput,
    answers: { 200: Feedback },
    raises: ['GENERATION_ALREADY_IN_PROGRESS'],
    async run({ tx, caller, resource, body }) {
      return feedbackKind.present(await giveFeedback(tx, await targetOfTurn(tx, resource.id), authorOf(caller), body))
    },
  }),
  itemOperation(generationKind, {
    ...give,
    id: 'deleteGenerationFeedback',
    command: ['generations', 'delete-feedback'],
    method: 'delete',
    path: turnPath,
    summary: 'Delete feedback on a generation',
    description: 'Deletes the feedback of the caller.',
    answers: { 204: null },
    raises: ['GENERATION_ALREADY_IN_PROGRESS', 'RESOURCE_NOT_FOUND'],
    async run({ tx, services, caller, resource }) {
      await deleteFeedback(tx, services, await targetOfTurn(tx, resource.id), authorOf(caller))
    },
  }),
  feedback.list({
    summary: 'List feedback',
    description:
      'Newest first. Each record is also allowed or denied by the name of its session. End users see their own feedback.',
    endUser: listAccess,
    internal: true,
    // Order by feedback_project, or by the index of an id.
    filters: {
      agent_id: equalsFilter('agent_id'),
      agent_version: columnFilter(
        integerQuery(0, MAX_INTEGER).optional().describe('Version of the agent that replied'),
        version => sql.fragment`t.agent_version = ${version}`,
      ),
      session_id: equalsFilter('session_id'),
      actor_id: columnFilter(
        textFilter.describe('ID of the end user of the rated turn'),
        id => sql.fragment`t.actor_id = ${id}`,
      ),
      generation_id: equalsFilter('generation_id'),
      rating: columnFilter(
        z.enum(['1', '-1']).optional().describe('1 – good, -1 – bad'),
        rating => sql.fragment`t.rating = ${Number(rating)}`,
      ),
      label: columnFilter(
        textFilter.describe('Label that the feedback has'),
        label => sql.fragment`${label} = any(t.labels)`,
      ),
      has_comment: columnFilter(
        booleanQuery.optional().describe('Whether the feedback has a comment'),
        has => sql.fragment`(t.comment is not null) = ${has}`,
      ),
    },
  }),
  operation({
    id: 'getFeedbackAggregate',
    method: 'get',
    path: '/feedback/aggregate',
    summary: 'Get aggregated feedback',
    description:
      'Counts ratings by agent version, agent, day (UTC) or label: the newest versions or days or the most frequent agents or labels, at most 1,000. Versions of several agents are counted together without `agent_id`.',
    tag,
    action: 'sessions:ListFeedback',
    lists: feedbackKind,
    paged: false,
    replica: true,
    query: AggregateQuery,
    answers: { 200: FeedbackAggregate },
    across: combined<AggregateQuery, string>(
      context => readFeedbackGroups(context.db, context.query.group_by, aggregateConditions(context)),
      async (groups, { db, query }) => ({ data: await aggregateOfCells(db, query.group_by, groups) }),
    ),
    run: async context => ({
      data: await aggregateFeedback(context.db, context.query.group_by, aggregateConditions(context)),
    }),
  }),
]

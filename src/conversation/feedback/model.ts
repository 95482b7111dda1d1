import { z } from 'zod'
import { kind } from '#core/api/kind.ts'
import { record } from '#core/api/record.ts'
import { sql } from '#core/db/sql.ts'

const AUTHOR_TYPES = ['actor', 'user', 'api_key'] as const

export const Feedback = record('Feedback', {
  session_id: z.string().nullable(),
  generation_id: z.string().nullable(),
  agent_id: z.string(),
  agent_version: z.int().nullable(),
  document_id: z.string().nullable().describe('ID of the rated message. Null for a turn whose reply is no message.'),
  author: z
    .object({
      type: z.enum(AUTHOR_TYPES).describe('actor for an end user'),
      id: z.string().describe('ID of the end user, user or key'),
    })
    .describe('Author of the feedback'),
  rating: z.int().nullable().describe('1 – good, -1 – bad. Null without a rating.'),
  score: z.number().nullable().describe('Score from 0 to 1. Null without a score.'),
  labels: z.array(z.string()).describe('Labels; empty if they were erased'),
  comment: z.string().nullable().describe('Comment. Null without one, or if it was erased.'),
})

export const FeedbackInput = z
  .strictObject({
    rating: z.literal([1, -1]).nullish().describe('1 – good, -1 – bad'),
    score: z.number().min(0).max(1).nullish().describe('Score from 0 to 1'),
    labels: z
      .array(z.string().trim().min(1).max(40))
      .max(10)
      .nullish()
      .transform(labels => [...new Set(labels ?? [])])
      .describe('Labels, such as `wrong` or `rude`; at most 10'),
    comment: z.string().trim().min(1).max(2000).nullish().describe('Comment in plain text; never given to a model'),
  })
  .refine(
    ({ rating, score, labels, comment }) => rating != null || score != null || labels.length > 0 || comment != null,
    { message: 'at least one of rating, score, labels and comment is required' },
  )
  .meta({ id: 'FeedbackInput', example: { rating: -1, labels: ['wrong'], comment: 'The shop closes at six.' } })

export const GROUPS = ['agent_version', 'agent', 'day', 'label'] as const

export const FeedbackAggregate = z
  .object({
    data: z.array(
      z.object({
        key: z
          .string()
          .nullable()
          .describe('Agent version, ID of the agent, day or label. Null for feedback without a version.'),
        count: z.int().describe('Number of feedback records'),
        up: z.int().describe('Number of ratings of 1'),
        down: z.int().describe('Number of ratings of -1'),
        mean_score: z.number().nullable().describe('Mean of the scores. Null without scores.'),
      }),
    ),
  })
  .meta({ id: 'FeedbackAggregate' })

export const feedbackKind = kind({
  name: 'feedback',
  plural: 'feedback',
  prefix: 'fb',
  table: 'feedback',
  // Deleted with the project.
  counted: false,
  countKept: true,
  references: [{ kind: 'project', column: 'project_id', on_delete: 'cascade' }],
  record: Feedback,
  computed: { author: sql.fragment`jsonb_build_object('type', t.author_type, 'id', t.author_id)` },
  hidden: {
    conversation_id: z.string().nullable(),
    actor_id: z.string().nullable(),
    author_type: z.enum(AUTHOR_TYPES),
    author_id: z.string(),
    erased: z.boolean(),
  },
  parent: { kind: 'session', column: 'session_id' },
  events: ['created', 'updated', 'deleted'],
  eventNotes: 'the comment is always null; adds has_comment',
})
export type FeedbackRow = z.output<typeof feedbackKind.row>
